"""Whether a job may go on from a checkpoint that an earlier form of it wrote. Pure.

Spark finds state by its place in the plan, and a chain finds it by the names of its operators. So of each end are kept,
in order, its sources and its **stores**: the operators that share a state store. A job may go on if

* its sources are the same topics, by the same names,
* its stores are as many, each has what it had: the same operators with the same windows, and perhaps new ones.

Functions, serdes and operators without state may change at will. The new function works on the old state.
"""

from __future__ import annotations

import json
from typing import Any, Final

from broker.streams import graph

VERSION: Final = 1
Form = dict[str, Any]


class JobChanged(Exception):
    """A job can't go on from its checkpoint; the text names the operator, and says what can be done."""


def form_of(end: graph.Sink) -> Form:
    """Return what is kept of an end."""
    found = list(graph.upstream(end))
    return {
        "version": VERSION,
        "sources": {each.name: each.topic for each in found if isinstance(each, graph.Source)},
        "stores": _stores(found),
    }


def encode(form: Form) -> str:
    """Return it as one line."""
    return json.dumps(form, sort_keys=True)


def decode(text: str) -> Form:
    """Return what ``encode`` was given."""
    form: Form = json.loads(text)
    return form


def check(job_id: str, end: str, before: Form, now: Form) -> None:
    """Raise JobChanged unless a job of form ``now`` may go on from a checkpoint of form ``before``."""
    where = f"The job {job_id} can't go on from its checkpoint ({end}):"
    way_out = "Write it as it was, or give it a new checkpoint."
    if before["version"] != VERSION:
        raise JobChanged(f"{where} another release wrote it. {way_out}")
    if before["sources"] != now["sources"]:
        raise JobChanged(
            f"{where} its sources were {_listed(before['sources'])}, and are {_listed(now['sources'])}. {way_out}"
        )
    for place, store in enumerate(before["stores"]):
        here = now["stores"][place] if place < len(now["stores"]) else {}
        for name, kind in store.items():
            if name not in here:
                raise JobChanged(
                    f"{where} its state has the operator {name} ({kind}), which the job lacks at this place. {way_out}"
                )
            if here[name] != kind:
                raise JobChanged(
                    f"{where} the operator {name} was {kind}, and is {here[name]}. {way_out}"
                )
    for store in now["stores"][len(before["stores"]) :]:
        raise JobChanged(
            f"{where} the operator {next(iter(store))} has state of its own, for which the checkpoint has no place. "
            f"{way_out}"
        )


def _listed(sources: dict[str, str]) -> str:
    return ", ".join(f"{name}: {topic}" for name, topic in sources.items())


def _stores(operators: list[graph.Operator]) -> list[dict[str, str]]:
    """Return the operators with state, those of a store together."""
    stores: list[dict[str, str]] = []
    store_of: dict[graph.Operator, dict[str, str]] = {}
    for each in operators:
        behind = store_of.get(each.parents[0]) if len(each.parents) == 1 else None
        if isinstance(each, graph.Stateless):
            if behind is not None and each.kind not in {"key_by", "to_stream"}:
                store_of[each] = behind
        elif isinstance(each, graph.Stateful):
            if behind is None or isinstance(each, graph.Join):
                behind = {}
                stores.append(behind)
            behind[each.name] = _kind(each)
            store_of[each] = behind
    return stores


def _kind(operator: graph.Operator) -> str:
    match operator:
        case graph.Aggregate():
            by = "" if operator.windows is None else f" by {operator.windows}"
            return f"{operator.kind}{by}"
        case graph.Join():
            return operator.text.removeprefix(f"{operator.name}: ") + " join"
        case _:
            return "process"

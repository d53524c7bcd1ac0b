"""Decide if a job may go on from a checkpoint that an earlier form of the job wrote. Pure.

Spark finds state by its place in the plan. A chain finds its state by the names of its operators. So the checkpoint
keeps a **form** of each end: its sources and its **stores**, in order. A store is the operators that share a state
store, and how Spark runs them: by itself, or as a chain of Python with or without times. A job may go on if

* its sources are the same topics, by the same names,
* it has the same number of stores,
* Spark runs each store in the same way as before,
* each store has at least the same operators with the same windows as before. It may have new ones.

A form counts once a micro-batch was committed in it. Until then the job may also go back to its form before.

Functions, serdes and operators without state may change at will. The new function works on the old state.
"""

from __future__ import annotations

import json
from typing import Any, Final

from broker.streams import graph
from broker.streams.native import is_native

VERSION: Final = 1
Form = dict[str, Any]
Store = dict[str, Any]
"""``operators``: the kind of each operator by its name; ``run``: how Spark runs them."""

BY_SPARK: Final = "by Spark itself"
TIMED: Final = "with times"
UNTIMED: Final = "without times"


class JobChanged(Exception):
    """A job can't go on from its checkpoint; the text names the operator, and a way out."""


def form_of(end: graph.Sink) -> Form:
    """Return the form of an end."""
    found = list(graph.upstream(end))
    return {
        "version": VERSION,
        "sources": {each.name: each.topic for each in found if isinstance(each, graph.Source)},
        "stores": _stores(found),
    }


def encode(form: Form) -> str:
    """Return a form as one line of text."""
    return json.dumps(form, sort_keys=True)


def decode(text: str) -> Form:
    """Return the form that ``encode`` made into ``text``; of any other text an empty one, which ``check`` refuses."""
    try:
        form = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return form if isinstance(form, dict) and {"sources", "stores"} <= form.keys() else {}


def pending(before: Form, now: Form, batch: int) -> Form:
    """Return what to store as a job begins in another form: a start that fails can be taken back.

    ``batch`` is the last batch that was committed in the form ``before``; -1: there is none.
    """
    return now if before == now else {**now, "before": before, "batch": batch}


def settled(stored: Form, batch: int) -> Form:
    """Return the form in which the last batch was committed, ``batch``; -1: there is none."""
    if stored.get("batch") == batch:
        before: Form = stored["before"]
        return before
    return {name: stored[name] for name in stored if name not in {"before", "batch"}}


def check(job_id: str, end: str, before: Form, now: Form) -> None:
    """Raise JobChanged unless a job of form ``now`` may go on from a checkpoint of form ``before``."""
    where = f"The job {job_id} can't go on from its checkpoint ({end}):"
    way_out = "Write it as it was, or give it a new checkpoint."
    if before.get("version") != VERSION:
        raise JobChanged(f"{where} another release wrote it, or it is damaged. {way_out}")
    if before["sources"] != now["sources"]:
        raise JobChanged(
            f"{where} its sources were {_listed(before['sources'])}, and are {_listed(now['sources'])}. {way_out}"
        )
    for place, store in enumerate(before["stores"]):
        here = now["stores"][place] if place < len(now["stores"]) else None
        problem = _problem(store, here)
        if problem is not None:
            raise JobChanged(f"{where} {problem} {way_out}")
    for store in now["stores"][len(before["stores"]) :]:
        raise JobChanged(
            f"{where} the operator {next(iter(store['operators']))} needs its own state, but the checkpoint has none for "
            f"it. {way_out}"
        )


def _problem(before: Store, now: Store | None) -> str | None:
    """Return why a store can't take over its earlier state; None if it can."""
    here = {} if now is None else now["operators"]
    for name, kind in before["operators"].items():
        if name not in here:
            return f"its state has the operator {name} ({kind}), but the job has no such operator at this place."
        if here[name] != kind:
            return f"the operator {name} was {kind}, and is {here[name]}."
    if now is not None and before["run"] != now["run"]:
        was, are = ", ".join(before["operators"]), ", ".join(here)
        return f"{was} was run {before['run']}, and {are} {'is' if len(here) == 1 else 'are'} run {now['run']}."
    return None


def _listed(sources: dict[str, str]) -> str:
    return ", ".join(f"{name}: {topic}" for name, topic in sources.items())


def _stores(operators: list[graph.Operator]) -> list[Store]:
    """Return the operators with state, grouped by their store."""
    stores: list[Store] = []
    store_of: dict[graph.Operator, Store] = {}
    for each in operators:
        behind = store_of.get(each.parents[0]) if len(each.parents) == 1 else None
        if isinstance(each, graph.Stateless):
            if behind is not None and each.kind not in {"key_by", "to_stream"}:
                store_of[each] = behind
        elif isinstance(each, graph.Stateful):
            if behind is None or BY_SPARK in {behind["run"], _run(each)}:
                behind = {"operators": {}, "run": _run(each)}
                stores.append(behind)
            behind["operators"][each.name] = _kind(each)
            if _run(each) == TIMED:
                behind["run"] = TIMED
            store_of[each] = behind
    return stores


def _run(operator: graph.Stateful) -> str:
    """Return how Spark runs an operator."""
    match operator:
        case graph.Aggregate() if is_native(operator):
            return BY_SPARK
        case graph.Join(function=str()):
            return BY_SPARK
        case graph.Process():
            return TIMED
        case _:
            return UNTIMED if operator.windows is None else TIMED


def _kind(operator: graph.Operator) -> str:
    match operator:
        case graph.Aggregate():
            by = "" if operator.windows is None else f" by {operator.windows}"
            return f"{operator.kind}{by}"
        case graph.Join():
            return operator.text.removeprefix(f"{operator.name}: ") + " join"
        case _:
            return "process"

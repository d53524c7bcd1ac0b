"""A request of the client, made from the table of operations, and the reading of an answer's JSON: no I/O, no state.

The table (``operations.table``) has the facts of each request: method, path, effect, the shape of its answer. A caller adds the
rest (``protocol``). Paths are relative to the broker's address.

The effect decides what the client may do after a lost answer. A *reading* request has no effect. A *repeatable* write has the
same effect when it is done twice (a publish under an idempotency key, a rollback): the client may send it again, but until an
answer comes its outcome is unknown. The client sends any other write again only if the broker said that it refused it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from broker.http import answer
from broker.model import TopicId
from broker.operations.media_types import JSON
from broker.operations.operation import DeclaredOperation, RepeatEffect
from broker.operations.shapes import Shape, fits
from broker.operations.table import OPERATIONS
from broker.wire.jsontext import json_of


class ClientRequest(NamedTuple):
    """One HTTP request; ``answer``: the shape of its JSON. The module explains ``reading`` and ``repeatable``."""

    method: str
    path: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    topic: TopicId | None = None
    reading: bool = False
    repeatable: bool = False
    answer: Shape = dict


Reply = answer.HttpAnswer
"""One complete HTTP answer. The names in ``headers`` are in lower case."""


class _Facts(NamedTuple):
    """The facts that all requests of an operation have. ``accept``: the type of its answer, if it has one type only."""

    method: str
    template: str
    reading: bool
    repeatable: bool
    accept: str
    answer: Shape


def _facts(operation: DeclaredOperation) -> _Facts:
    effect = operation.effect
    return _Facts(
        operation.method,
        operation.template,
        effect.is_reading,
        # A keyed write is repeatable only with a key.
        effect.is_repeatable and effect is not RepeatEffect.KEYED,
        operation.gives[0][0] if len(operation.gives) == 1 else "",
        operation.answer,
    )


_FACTS: Final = {operation.name: _facts(operation) for operation in OPERATIONS}


def request_for(  # noqa: PLR0913 - The parts of a request, each by its name.
    name: str,
    topic: TopicId | None = None,
    *,
    query: Mapping[str, object] | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: bytes = b"",
    sent: object = None,
    repeatable: bool | None = None,
    **names: str,
) -> ClientRequest:
    """Return a request of the operation with this name.

    Args:
        name: the operation's name in the table.
        topic: its topic, if its path has one.
        query: its parameters; those with None are left out.
        headers: its headers, beside ``Accept`` if its answer has one type only.
        body: its body; or
        sent: the value of its body, which becomes JSON.
        repeatable: whether it may be done twice, if the table does not tell.
        names: the other names in its path.
    """
    facts = _FACTS[name]
    path = facts.template if topic is None else _path(facts.template, topic)
    for each, value in names.items():
        path = path.replace(f"{{{each}}}", quote(value, safe=""))
    if query:
        path = _with_query(path, query)
    if facts.accept and "Accept" not in headers:
        headers = {**headers, "Accept": facts.accept}
    if sent is not None:
        headers, body = {**headers, "Content-Type": JSON}, json.dumps(sent).encode()
    if repeatable is None:
        repeatable = facts.repeatable
    return ClientRequest(
        facts.method, path, headers, body, topic, facts.reading, repeatable, facts.answer
    )


@lru_cache(maxsize=4096)
def _path(template: str, topic: TopicId) -> str:
    path = template.replace("{namespace}", topic.namespace)
    return path.replace("{topic}", topic.topic)


def _with_query(path: str, asked: Mapping[str, object]) -> str:
    """Return a path with the given parameters; those with None are left out."""
    given = {name: value for name, value in asked.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote, safe='@')}" if given else path


def json_object(reply: Reply) -> dict[str, Any]:
    """Read an answer that is a JSON object. Raises TypeError, ValueError if it is none."""
    value = json_of(reply.body)
    if not isinstance(value, dict):
        raise TypeError("no JSON object")
    return value


def read_as(shape: Shape) -> Callable[[Reply], dict[str, Any]]:
    """Return a function that reads an answer of a shape. It raises TypeError, ValueError for another answer.

    Any JSON service may answer in the broker's place, with an object of another shape. It must not reach the caller: it would
    end as a KeyError there, or as the figures of a topic.
    """

    def read(reply: Reply) -> dict[str, Any]:
        found = json_object(reply)
        if not fits(found, shape):
            raise TypeError("a JSON object of another shape")
        return found

    return read

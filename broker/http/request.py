"""The request as handlers see it: a value that is cheap to make.

One object is made for each HTTP request. So it has slots, keeps the header mapping of the parser, and splits its query
only when a handler reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from broker.errors import BadRequest
from broker.http.budget import BudgetKind, Usage
from broker.model import MessageId, TopicId
from broker.places import GENERATION_HEADER, Place, generation_of
from broker.principal import ANYONE, Principal

QUERY_FIELDS_MAX = 50
_NO_QUERY: Mapping[str, str] = {}


class PathNames(NamedTuple):
    """The names in a path: a namespace, maybe with a topic and its stage or cursor; or a transaction; or a node.

    ``who`` is a principal, the id of a token, or another name for which rules are kept. The router has checked ``namespace`` and ``topic`` only. Names not in the path are empty.
    """

    namespace: str = ""
    topic: TopicId | None = None
    node: str = ""
    stage: str = ""
    cursor: str = ""
    transaction: str = ""
    who: str = ""


NO_NAMES = PathNames()


def never() -> asyncio.Future[None]:
    """Return a future that is never done: callers within the process do not go away."""
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One request.

    Attributes:
        id: its X-Request-Id.
        headers: case-insensitive.
        body: whole and inflated.
        deadline: in seconds of the monotonic clock.
        principal: the caller, as its credentials say.
        forwarded: True if a node sent it, not a client.
        repeat: the facts that make a forwarded request repeatable.
        caller: the address of the client that sent it; empty within the process.
        source: the connection on which it came. The requests of one connection keep their order.
        abandoned: returns a future that is done once the client is gone or this node drains. A handler that waits
            must stop then.
        usage: counts the memory and the work that the node spends on it.
    """

    method: str
    path: str
    query_string: str
    headers: Mapping[str, str]
    body: bytes
    _: KW_ONLY
    id: str = ""
    names: PathNames = NO_NAMES
    principal: Principal = ANYONE
    caller: str = ""
    deadline: float | None = None
    source: object | None = None
    abandoned: Callable[[], asyncio.Future[None]] = never
    usage: Usage = field(default_factory=lambda: Usage(None))
    forwarded: bool = field(default=False, init=False)
    repeat: Any = field(default=None, init=False)
    _query: Mapping[str, str] | None = field(default=None, init=False)
    _generation: int | None = field(default=None, init=False)

    @property
    def topic(self) -> TopicId:
        """The topic in the path. Only for routes that have one."""
        topic = self.names.topic
        assert topic is not None, f"{self.path} names no topic"
        return topic

    @property
    def query(self) -> Mapping[str, str]:
        """The query's parameters. Raises BadRequest if it can't be read, or a parameter comes twice."""
        if self._query is None:
            self._query = _parse_query(self.query_string) if self.query_string else _NO_QUERY
        return self._query

    @property
    def generation(self) -> int | None:
        """The topic's generation that the request names, in its header or with a place; None: any.

        Raises BadRequest.
        """
        text = self.headers.get(GENERATION_HEADER)
        return self._generation if text is None else self._one(generation_of(text))

    def id_at(self, place: Place) -> MessageId:
        """Return the id of a place, and take its generation as the request's. Raises BadRequest."""
        if place.generation is not None:
            self._generation = self._one(place.generation)
        return place.id

    def _one(self, generation: int) -> int:
        if self._generation not in (None, generation):
            raise BadRequest(
                f"The request names two generations, {self._generation} and {generation}."
            )
        return generation

    def let_go_of_body(self) -> None:
        """Free the body, which the handler has decoded."""
        if self.body:
            self.body = b""
            self.usage.give(BudgetKind.BODY_BYTES)

    def ask(self, query_string: str) -> None:
        """Replace the query, before a handler reads it."""
        self.query_string = query_string
        self._query = None


def _parse_query(text: str) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except (UnicodeDecodeError, ValueError) as error:
        raise BadRequest(f"The query can't be read: {error}") from error
    query: dict[str, str] = {}
    for name, value in pairs:
        if name in query:
            raise BadRequest(f"{name!a:.80} comes twice in the query. Give it once.")
        query[name] = value
    return query

"""The request as handlers see it: a value, cheap to make and parsed no further than asked.

One of these is made per HTTP request, so it has slots, keeps the header mapping that the parser made,
and splits its query only when a handler looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from broker.errors import BadRequest
from broker.http.budget import BudgetKind, Hold
from broker.model import TopicId

QUERY_FIELDS_MAX = 50
_NO_QUERY: Mapping[str, str] = {}


class PathNames:
    """The names in a path: a namespace, perhaps a topic in it and a stage or a cursor of that; a transaction; or a node."""

    __slots__ = ("cursor", "namespace", "node", "stage", "topic", "transaction")

    def __init__(
        self,
        namespace: str = "",
        topic: TopicId | None = None,
        *,
        node: str = "",
        stage: str = "",
        cursor: str = "",
        transaction: str = "",
    ) -> None:
        """Keep names that have been checked, but for those behind ``topic``; empty where the path has none."""
        self.namespace = namespace
        self.topic = topic
        self.node = node
        self.stage = stage
        self.cursor = cursor
        self.transaction = transaction


NO_NAMES = PathNames()


def never() -> asyncio.Future[None]:
    """Return a future that nobody resolves: callers within the process do not go away."""
    return asyncio.get_running_loop().create_future()


class Request:
    """One request.

    ``headers`` is case-insensitive. ``body`` is whole and inflated. ``deadline`` is in seconds of the
    monotonic clock. ``forwarded`` says that a node, not a client, sent it, and ``repeat`` what makes it
    repeatable then. ``source`` is the connection by which it came: the requests of one keep their order.
    ``abandoned`` gives a future that is done once the caller is gone or this node drains; handlers that
    wait race against it. ``hold`` counts what the node holds for it.
    """

    __slots__ = (
        "_query",
        "abandoned",
        "body",
        "deadline",
        "forwarded",
        "headers",
        "hold",
        "id",
        "method",
        "names",
        "path",
        "principal",
        "query_string",
        "repeat",
        "source",
    )

    def __init__(  # noqa: PLR0913 - A value; every part is named by its callers.
        self,
        method: str,
        path: str,
        query_string: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        identifier: str = "",
        names: PathNames = NO_NAMES,
        principal: str | None = None,
        deadline: float | None = None,
        source: object | None = None,
        abandoned: Callable[[], asyncio.Future[None]] = never,
        hold: Hold | None = None,
    ) -> None:
        """Keep the parts."""
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        self.body = body
        self.id = identifier
        self.names = names
        self.principal = principal
        self.deadline = deadline
        self.source = source
        self.forwarded = False
        self.repeat: Any = None
        self.abandoned = abandoned
        self.hold = hold or Hold(None)
        self._query: Mapping[str, str] | None = None

    @property
    def topic(self) -> TopicId:
        """The topic that the path names; a bug if the route has none."""
        topic = self.names.topic
        assert topic is not None, f"{self.path} names no topic"
        return topic

    @property
    def query(self) -> Mapping[str, str]:
        """The query's parameters. Raises BadRequest, also where one comes twice."""
        if self._query is None:
            self._query = _parse_query(self.query_string) if self.query_string else _NO_QUERY
        return self._query

    def let_go_of_body(self) -> None:
        """Hold the body no longer: it was decoded, and is needed no more."""
        if self.body:
            self.body = b""
            self.hold.give(BudgetKind.BODY_BYTES)

    def ask(self, query_string: str) -> None:
        """Give the request another query, before a handler has it."""
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


# --- What several handlers read from a query or a header ------------------------------------------


def whole_number(
    query: Mapping[str, str], name: str, *, least: int, most: int, default: int
) -> int:
    """Return a whole number of the query, or ``default`` if absent. Raises BadRequest."""
    text = query.get(name)
    if text is None:
        return default
    # More digits than any bound has are refused before int() spends time on them.
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else -1
    if not least <= number <= most:
        raise BadRequest(f"{name} must be a whole number from {least} to {most}, not {text!r}.")
    return number


def one_of(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return one of ``choices``, the first if the parameter is absent. Raises BadRequest."""
    text = query.get(name, choices[0])
    if text not in choices:
        raise BadRequest(f"{name} must be one of {', '.join(choices)}, not {text!r}.")
    return text

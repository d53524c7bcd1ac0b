"""Access to the transaction service for this node's own parts: the sweeper, the blockers of a topic, pruning.

In a cluster another node may lead the service. So these calls go through the same handlers as a client's requests,
which forward them to the leader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

import orjson

from broker.api.router import Handler
from broker.clock import Clock
from broker.errors import (
    BadRequest,
    BrokerError,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    RequestError,
    Unavailable,
    registry,
)
from broker.http.answer import HttpAnswer
from broker.http.reply import Reply
from broker.http.request import PathNames, Request
from broker.model import Snapshot
from broker.operations.media_types import JSON, THRIFT
from broker.operations.table import BY_NAME
from broker.topics.reserved import TRANSACTIONS
from broker.wire.transaction import decode_transaction

DEADLINE_S: Final = 10.0
_FIRST: Final[list[type[BrokerError]]] = [BadRequest, NoLeader, Overloaded]
"""The errors that stand for a code which others have, too."""
_BY_CODE: Final = {
    error.code: error for error in (*reversed(registry()), *_FIRST) if error is not NotLeader
}


class AnyService(Protocol):
    """A transaction service: this cluster's or another one. Every method may raise BrokerError.

    ``deadline`` is that of the request that asks (monotonic seconds). None: DEADLINE_S from the call on.
    """

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now."""

    async def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> dict[str, Any]:
        """Return the transactions in progress, as ``GET /v1/transactions`` answers."""

    async def show(self, transaction_id: int, deadline: float | None = None) -> dict[str, Any]:
        """Return one transaction as the service knows it. Raises NotFound."""

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Forget invalid transactions; return how many were known."""


class OwnService:
    """The service of this node or of its cluster. Call ``bind`` before the first call."""

    def __init__(self, clock: Clock) -> None:
        """Keep the clock, for the deadlines of calls."""
        self._clock = clock
        self._handlers: Mapping[str, Handler] = {}

    def bind(self, handlers: Mapping[str, Handler]) -> None:
        """Call these handlers from now on. Their keys are the names of their routes."""
        self._handlers = handlers

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now."""
        reply = await self._ask("transactions_snapshot", {"Accept": THRIFT}, deadline=deadline)
        return decode_transaction(bytes(reply.body))

    async def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> dict[str, Any]:
        """Return the transactions in progress."""
        query = "" if limit is None else f"limit={limit}"
        return _object(await self._ask("list_transactions", query=query, deadline=deadline))

    async def show(self, transaction_id: int, deadline: float | None = None) -> dict[str, Any]:
        """Return one transaction as the service knows it. Raises NotFound."""
        named = str(transaction_id)
        return _object(await self._ask("show_transaction", transaction=named, deadline=deadline))

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Forget invalid transactions; return how many were known."""
        body = orjson.dumps({"ids": [str(each) for each in ids]})
        sent = {"Content-Type": JSON}
        reply = await self._ask("truncate_transactions", sent, body=body, deadline=deadline)
        return int(_object(reply)["removed"])

    async def _ask(
        self,
        name: str,
        headers: Mapping[str, str] | None = None,
        *,
        query: str = "",
        body: bytes = b"",
        transaction: str = "",
        deadline: float | None = None,
    ) -> Reply:
        handler = self._handlers.get(name)
        if handler is None:
            raise Unavailable("This node has no transaction service yet.")
        operation = BY_NAME[name]
        request = Request(
            operation.method,
            operation.template.replace("{transaction}", transaction),
            query,
            headers or {},
            body,
            names=PathNames(topic=TRANSACTIONS, transaction=transaction),
            deadline=self._clock.monotonic() + DEADLINE_S if deadline is None else deadline,
        )
        reply = await handler(request)
        assert isinstance(reply, Reply), "these answers are no streams"
        if reply.status >= 400:
            headers = {header.lower(): value for header, value in reply.headers}
            raise error_of(HttpAnswer(reply.status, headers, bytes(reply.body)))
        return reply


def _object(reply: Reply) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads(reply.body)
    return value


def error_of(reply: HttpAnswer) -> BrokerError:
    """Return the error in another node's reply. Its body is JSON or plain text, as the request asked for."""
    try:
        message = str(orjson.loads(reply.body)["message"])
    except (ValueError, KeyError, TypeError):
        message = reply.body.decode("utf-8", "replace")
    if reply.headers.get("broker-outcome") != "refused":
        return OutcomeUnknown(message)
    other = RequestError if reply.status < 500 else Unavailable
    return _BY_CODE.get(reply.headers.get("broker-error", ""), other)(message)

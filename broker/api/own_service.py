"""The transaction service for this node's own parts, on any node of a cluster.

Another node may lead the service. ``OwnService`` serves the sweeper, the blockers of a topic, and pruning: its calls go through
the same handlers as a client's requests, which forward them to the leader. ``RoutedTransactions`` serves the Thrift port: if
this node leads, it calls the service directly. Otherwise the call becomes the request that a client would send over HTTP
(api/transactions.py), forwarded and retried like such a request (routing/routing.py); this module decodes the answer.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar

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
from broker.operations.media_types import JSON, TEPHRA_SNAPSHOT, THRIFT
from broker.operations.table import BY_NAME
from broker.routing.routed_calls import Call, Relayed
from broker.routing.routing import Routing
from broker.topics.reserved import TRANSACTIONS
from broker.transactions.service import Transactions
from broker.wire.jsontext import shown_long
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


# --- The calls of the Thrift port -----------------------------------------------------------------

Result = TypeVar("Result")


class RoutedTransactions:
    """The service, led by any node. Methods raise the errors of Transactions, but never NotLeader."""

    def __init__(self, local: Transactions, routing: Routing, *, deadline_s: float) -> None:
        """Keep the parts. ``local`` answers if this node leads. ``deadline_s`` bounds the wait for a leader."""
        self._local = local
        self._routing = routing
        self._deadline_s = deadline_s

    async def start(
        self,
        *,
        long: bool = False,
        timeout_s: float | None = None,
        client: str = "",
        deadline: float | None = None,
        caller: str = "",
    ) -> Snapshot:
        """Begin a transaction."""
        here = partial(
            self._local.start, long=long, timeout_s=timeout_s, client=client, caller=caller
        )
        return await self._ask(
            "start_transaction",
            lambda by: here(deadline=by),
            decode_transaction,
            {"type": "long" if long else "short", "timeout_s": timeout_s, "client": client},
            accept=THRIFT,
            deadline=deadline,
        )

    async def can_commit(self, transaction_id: int, changes: Collection[bytes]) -> None:
        """Tell the service the keys that a transaction changed. They must fit into the service's bound."""
        sent = {"changes": [base64.b64encode(key).decode() for key in changes]}
        here = partial(self._local.can_commit, transaction_id, changes)
        await self._ask("can_commit_transaction", here, _read_nothing, sent, of=transaction_id)

    async def commit(self, transaction_id: int, write_pointer: int | None = None) -> None:
        """Commit a transaction: its writes become visible."""
        sent = {"write_pointer": shown_long(write_pointer)}
        here = partial(self._local.commit, transaction_id, write_pointer)
        await self._ask("commit_transaction", here, _read_nothing, sent, of=transaction_id)

    async def abort(self, transaction_id: int) -> None:
        """Abort a transaction whose client has undone its writes."""
        here = partial(self._local.abort, transaction_id)
        await self._ask("abort_transaction", here, _read_nothing, of=transaction_id)

    async def invalidate(self, transaction_id: int) -> bool:
        """Make a transaction invalid. Return whether it was in progress."""
        here = partial(self._local.invalidate, transaction_id)
        return await self._ask("invalidate_transaction", here, _read_invalidated, of=transaction_id)

    async def checkpoint(self, transaction_id: int) -> Snapshot:
        """Give a transaction a further write pointer."""
        here = partial(self._local.checkpoint, transaction_id)
        return await self._ask(
            "checkpoint_transaction", here, decode_transaction, of=transaction_id, accept=THRIFT
        )

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now."""
        here = self._local.snapshot
        return await self._ask(
            "transactions_snapshot", here, decode_transaction, accept=THRIFT, deadline=deadline
        )

    async def tephra_snapshot(self) -> bytes:
        """Return the whole state in Tephra's snapshot format."""
        here = self._local.tephra_snapshot
        return await self._ask("transactions_snapshot", here, bytes, accept=TEPHRA_SNAPSHOT)

    async def truncate_invalid(self, ids: Collection[int]) -> int:
        """Remove pointers from the invalid list. Return how many were in it."""
        here, sent = partial(self._local.truncate_invalid, ids), {"ids": [*map(str, ids)]}
        return await self._ask("truncate_transactions", here, _read_removed, sent)

    async def truncate_invalid_before(self, before_ms: int) -> int:
        """Remove pointers given before a moment from the invalid list. Return how many were in it."""
        here, sent = (
            partial(self._local.truncate_invalid_before, before_ms),
            {"before_ms": before_ms},
        )
        return await self._ask("truncate_transactions", here, _read_removed, sent)

    async def invalid_count(self) -> int:
        """Return the number of invalid pointers."""
        count, query = self._local.invalid_count, "?limit=0"
        return await self._ask("list_transactions", lambda _: count(), _read_invalid, query=query)

    async def reset(self) -> tuple[int, int]:
        """Forget all transactions. Return the numbers of those in progress, and of invalid pointers."""
        return await self._ask("reset_transactions", self._local.reset, _read_forgotten)

    async def _ask(  # noqa: PLR0913 - The parts of a call.
        self,
        name: str,
        here: Callable[[float], Awaitable[Result]],
        read: Callable[[bytes], Result],
        sent: Mapping[str, Any] | None = None,
        *,
        of: int | None = None,
        query: str = "",
        accept: str = JSON,
        deadline: float | None = None,
    ) -> Result:
        """Return the leader's answer, by a deadline: this node's own, or another node's reply decoded by ``read``.

        ``of`` is the transaction in the path. Raises BrokerError.
        """
        operation = BY_NAME[name]
        path = operation.template.replace("{transaction}", str(of))
        call = Call(
            operation.effect,
            name,
            TRANSACTIONS,
            operation.method,
            path + query,
            {"Accept": accept, "Content-Type": JSON},
            b"" if sent is None else orjson.dumps(sent),
            self._routing.clock.monotonic() + self._deadline_s if deadline is None else deadline,
        )

        async def local(_: object) -> Result:
            return await here(call.deadline)

        answer = await self._routing.answer(call, local)
        if not isinstance(answer, Relayed):
            return answer
        if answer.reply.status != 200:
            raise error_of(answer.reply)
        try:
            return read(answer.reply.body)
        except Exception as error:
            raise OutcomeUnknown(
                f"{answer.reply.url} answered, but not as a node does: {error}"
            ) from error


def _read_nothing(_: bytes) -> None:
    """Ignore an empty answer."""


def _read_forgotten(body: bytes) -> tuple[int, int]:
    told = orjson.loads(body)
    return int(told["in_progress"]), int(told["invalid"])


def _read_invalid(body: bytes) -> int:
    return int(orjson.loads(body)["invalid"])


def _read_invalidated(body: bytes) -> bool:
    return bool(orjson.loads(body)["invalidated"])


def _read_removed(body: bytes) -> int:
    return int(orjson.loads(body)["removed"])

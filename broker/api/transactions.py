"""Handlers of the transaction service, and of pruning.

They answer a transaction as JSON, or as the bytes of Tephra's TTransaction.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from broker.api import asked
from broker.api.asked import checked, shown_id
from broker.errors import BadRequest
from broker.http.reply import Answer, Reply, json_reply
from broker.http.request import Request
from broker.long_work import heavy
from broker.model import LOG_KEY_BYTES, POINTER_MAX, Snapshot, timestamp_of
from broker.moments import rfc3339
from broker.operations.media_types import TEPHRA_SNAPSHOT, THRIFT
from broker.operations.parameters import THROUGH, TRANSACTION_LIMIT
from broker.operations.replies import (
    Invalidated,
    Nothing,
    Pruned,
    PrunePlan,
    Reset,
    Truncated,
    Unpassed,
)
from broker.operations.sent import ChangesSent, CommitSent, TransactionSent, TruncateSent
from broker.operations.shapes import Shape
from broker.transactions.prune import Pruning, PruningPlan
from broker.transactions.service import Transactions
from broker.wire import Take
from broker.wire.jsontext import parse, read_long, shown_long
from broker.wire.transaction import encode_snapshot, encode_transaction

NAME_EPOCH: Final = "Broker-Name-Epoch"
"""The header of a start under a name: the epoch of the program that owns the name."""
POINTERS_AT_ONCE_MAX: Final = 10_000
"""A snapshot with so many pointers is written as JSON at once. That takes 2 ms."""


class TransactionsApi:
    """The handlers of transactions."""

    def __init__(self, transactions: Transactions) -> None:
        """Keep the service."""
        self._service = transactions

    async def start_transaction(self, request: Request) -> Answer:
        """Begin a transaction."""
        sent: TransactionSent = await _sent(request, TransactionSent)
        name, epoch = sent.get("name", ""), sent.get("epoch")
        if epoch is not None:
            epoch = _pointer("epoch", epoch)
            if not name:
                raise BadRequest("epoch: give it only with a name.")
        begun = await self._service.start(
            long=sent.get("type") == "long",
            timeout_s=sent.get("timeout_s"),
            client=sent.get("client", ""),
            name=name,
            epoch=epoch,
            deadline=request.deadline,
            caller=request.caller,
        )
        reply = await snapshot_reply(request, begun)
        if not name:
            return reply
        own = begun.transaction_id if epoch is None else epoch
        return reply.with_headers((NAME_EPOCH, str(own)))

    async def can_commit_transaction(self, request: Request) -> Answer:
        """Take the keys that a transaction changed, and answer whether it may commit."""
        transaction = transaction_of(request)
        changes = await asked.read(request, _decode_changes)
        await self._service.can_commit(transaction, changes, request.deadline)
        return json_reply(Nothing())

    async def commit_transaction(self, request: Request) -> Answer:
        """Commit a transaction: its writes become visible."""
        sent: CommitSent = await _sent(request, CommitSent)
        pointer = sent.get("write_pointer")
        if pointer is not None:
            pointer = _pointer("write_pointer", pointer)
        await self._service.commit(transaction_of(request), pointer, request.deadline)
        return json_reply(Nothing())

    async def abort_transaction(self, request: Request) -> Answer:
        """Abort a transaction whose client has undone its writes."""
        await _sent(request, Nothing)
        await self._service.abort(transaction_of(request), request.deadline)
        return json_reply(Nothing())

    async def invalidate_transaction(self, request: Request) -> Answer:
        """Make a transaction invalid."""
        await _sent(request, Nothing)
        done = await self._service.invalidate(transaction_of(request), request.deadline)
        return json_reply(Invalidated(invalidated=done))

    async def checkpoint_transaction(self, request: Request) -> Answer:
        """Give a transaction a further write pointer."""
        await _sent(request, Nothing)
        found = await self._service.checkpoint(transaction_of(request), request.deadline)
        return await snapshot_reply(request, found)

    async def transactions_snapshot(self, request: Request) -> Answer:
        """Answer a snapshot as of now, or the whole state in Tephra's snapshot format."""
        if _accepts(request, TEPHRA_SNAPSHOT):
            state = await self._service.tephra_snapshot(request.deadline)
            return Reply(200, state, TEPHRA_SNAPSHOT)
        return await snapshot_reply(request, await self._service.snapshot(request.deadline))

    async def list_transactions(self, request: Request) -> Answer:
        """Answer the transactions in progress, the oldest first, and the counts of each state."""
        limit = TRANSACTION_LIMIT.of(request.query)
        return json_reply(await self._service.listing(limit, request.deadline))

    async def show_transaction(self, request: Request) -> Answer:
        """Answer a transaction's state and details."""
        return json_reply(await self._service.show(transaction_of(request), request.deadline))

    async def truncate_transactions(self, request: Request) -> Answer:
        """Remove pointers from the invalid list."""
        ids, before_ms = await truncated(request)
        if before_ms is None:
            removed = await self._service.truncate_invalid(ids, request.deadline)
        else:
            removed = await self._service.truncate_invalid_before(before_ms, request.deadline)
        return json_reply(Truncated(removed=removed))

    async def reset_transactions(self, request: Request) -> Answer:
        """Forget all transactions. Answer how many transactions in progress and invalid pointers no longer hide messages."""
        await _sent(request, Nothing)
        in_progress, invalid = await self._service.reset(request.deadline)
        return json_reply(Reset(in_progress=in_progress, invalid=invalid))


async def truncated(request: Request) -> tuple[list[int], int | None]:
    """Return the ids, or the moment in ms, of a request that truncates. Raises BadRequest, BodyTooLarge."""
    return await asked.read(request, _decode_truncated)


def _decode_truncated(body: bytes, *, take: Take) -> tuple[list[int], int | None]:
    sent: dict[str, Any] = _decode_fields(body, TruncateSent, take)
    if "before_ms" in sent:
        return [], _pointer("before_ms", sent["before_ms"])
    return [_pointer("ids", each) for each in sent["ids"]], None


async def snapshot_reply(request: Request, snapshot: Snapshot) -> Reply:
    """Return a transaction in the form that the request accepts."""
    if _accepts(request, THRIFT):
        return Reply(200, encode_transaction(snapshot), THRIFT)
    if len(snapshot.invalids) + len(snapshot.in_progress) <= POINTERS_AT_ONCE_MAX:
        return json_reply(encode_snapshot(snapshot))
    return await heavy(request.usage.caller, lambda: json_reply(encode_snapshot(snapshot)))


def _accepts(request: Request, content_type: str) -> bool:
    return request.headers.get("Accept", "").strip().lower() == content_type


def transaction_of(request: Request) -> int:
    """Return the transaction id in the path. Raises BadRequest."""
    text = request.names.transaction
    if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= POINTER_MAX:
        return int(text)
    raise BadRequest(
        f"A transaction's id must be a whole number from 0 to 2^63-1, not {text!r:.80}."
    )


def _pointer(name: str, value: object) -> int:
    return read_long(name, value, least=0, most=POINTER_MAX)


async def _sent(request: Request, shape: Shape) -> Any:
    """Return the fields of a body of this shape; an empty body has none. Raises BadRequest, BodyTooLarge."""
    return await asked.read(request, lambda body, take: _decode_fields(body, shape, take))


def _decode_fields(body: bytes, shape: Shape, take: Take) -> Any:
    return checked(_counted(body, take) if body.strip() else {}, shape)


def _counted(body: bytes, take: Take) -> object:
    take(body.count(b",") + 1)
    return parse(body)


def _decode_changes(body: bytes, *, take: Take) -> list[bytes]:
    sent: ChangesSent = checked(_counted(body, take), ChangesSent)
    return [_key(text) for text in sent["changes"]]


def _key(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise BadRequest(f"changes: {text!r:.80} is not base64.")


# --- Pruning --------------------------------------------------------------------------------------


class PruningApi:
    """The handlers of pruning. Any node answers: the facts lie in the records and in the transaction service."""

    def __init__(self, pruning: Pruning) -> None:
        """Keep the pruning service."""
        self._pruning = pruning

    async def prune_plan(self, request: Request) -> Answer:
        """Answer which transactions can be pruned. Change nothing."""
        return json_reply(
            told(await self._pruning.plan(THROUGH.of(request.query), request.deadline))
        )

    async def prune_transactions(self, request: Request) -> Answer:
        """Prune all transactions that may be pruned."""
        plan, removed = await self._pruning.prune(THROUGH.of(request.query), request.deadline)
        return json_reply(Pruned(**told(plan), removed=removed))


def told(plan: PruningPlan) -> PrunePlan:
    """Return a plan as JSON."""
    prunable = plan.prunable
    return PrunePlan(
        invalid=plan.invalid,
        prunable=len(prunable),
        oldest_prunable=str(prunable[0]) if prunable else None,
        newest_prunable=str(prunable[-1]) if prunable else None,
        oldest_left=shown_long(plan.oldest_left),
        reason=reason(plan),
        settled_at=None if plan.settled_ms is None else rfc3339(plan.settled_ms),
        in_progress=shown_long(plan.in_progress),
        unpassed=_unpassed(plan),
    )


def _unpassed(plan: PruningPlan) -> Unpassed | None:
    each = plan.unpassed
    if each is None:
        return None
    page = each.page.ljust(LOG_KEY_BYTES, b"\0")
    return Unpassed(
        namespace=each.topic.namespace,
        topic=each.topic.topic,
        generation=each.generation,
        passed_below=str(each.below),
        page=shown_id(page),
        page_time=rfc3339(timestamp_of(page)) if any(page) else None,
    )


def reason(plan: PruningPlan) -> str | None:
    """Return why not more transactions can be pruned; None if none is left."""
    if plan.unpassed is not None:
        name = "/".join(plan.unpassed.topic)
        return (
            f"No sweep has passed topic {name} (generation {plan.unpassed.generation}) since transaction "
            f"{plan.oldest_left} was settled. The node that should lead the topic passes it in one of its next sweeps, at "
            "most an hour after the last one. If it does not, its log says why."
        )
    if plan.in_progress is not None:
        return (
            f"Transaction {plan.in_progress} began before transaction {plan.oldest_left}, and is still in progress. See "
            f"broker tx show {plan.in_progress}."
        )
    if plan.settled_ms is not None:
        return (
            f"Transaction {plan.oldest_left} is younger than the longest life of a transaction plus the margin. It can be "
            f"pruned after {rfc3339(plan.settled_ms)}."
        )
    return None

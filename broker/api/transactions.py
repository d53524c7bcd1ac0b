"""Handlers of the transaction service, of pruning, and of the blockers of a topic.

They answer a transaction as JSON, or as the bytes of Tephra's TTransaction.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, Final

from broker.access.meter import Meter
from broker.access.quotas import QuotaKind
from broker.api import asked
from broker.api.asked import checked, place_in, shown_id
from broker.api.router import Handler, TopicHandlers
from broker.errors import BadRequest, BrokerError, NotFound
from broker.http.budget import PRINCIPAL
from broker.http.reply import Answer, Reply, json_reply, media_type
from broker.http.request import Request
from broker.long_work import heavy
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, POINTER_MAX, Snapshot, timestamp_of
from broker.moments import rfc3339
from broker.operations import replies
from broker.operations.media_types import JSON, TEPHRA_SNAPSHOT, THRIFT
from broker.operations.operation import whole_number
from broker.operations.parameters import BLOCKER_LIMIT, NAME_EPOCH, THROUGH, TRANSACTION_LIMIT
from broker.operations.replies import Blockers, FirstMessage, Nothing, Pruned, PrunePlan, Unpassed
from broker.operations.shapes import Shape
from broker.operations.table import BY_NAME
from broker.principal import Principal
from broker.topics.blockers import Blocker, BlockersQuery, as_transaction
from broker.transactions.prune import Pruning, PruningPlan
from broker.transactions.service import Transactions
from broker.transactions.service_calls import CALLS, ServiceCall, carried_out
from broker.wire import Take
from broker.wire.jsontext import parse, read_long, shown_long
from broker.wire.transaction import decode_transaction, encode_snapshot, encode_transaction

POINTERS_AT_ONCE_MAX: Final = 10_000
"""A snapshot with so many pointers is written as JSON at once. That takes 2 ms."""


def service_handlers(transactions: Transactions, meter: Meter | None = None) -> dict[str, Handler]:
    """Return the handlers of the service's operations, by their names."""
    return {name: partial(_answer, transactions, meter, name) for name in CALLS}


def _check_quotas(transactions: Transactions, meter: Meter, principal: Principal) -> None:
    """Raise QuotaExceeded if a principal may begin no further transaction."""
    state = transactions.state
    if state is None or not meter.bounds(principal)[0]:
        return
    in_progress, invalid = transactions.callers.held(state, PRINCIPAL + principal.name)
    meter.check(principal, QuotaKind.OPEN_TRANSACTIONS, in_progress + 1)
    meter.check(principal, QuotaKind.INVALID_POINTERS, invalid + 1)


async def _answer(
    transactions: Transactions, meter: Meter | None, name: str, request: Request
) -> Reply:
    call = await call_of(name, request)
    if meter is not None and name == "start_transaction":
        _check_quotas(transactions, meter, request.principal)
    answer = await carried_out(transactions, call)
    if isinstance(answer, bytes):
        return Reply(200, answer, TEPHRA_SNAPSHOT)
    if not isinstance(answer, Snapshot):
        return json_reply(answer)
    reply = await snapshot_reply(request, answer)
    if "name" not in call.sent:
        return reply
    epoch = call.sent.get("epoch")
    own = answer.transaction_id if epoch is None else epoch
    return reply.with_headers((NAME_EPOCH, str(own)))


async def call_of(name: str, request: Request) -> ServiceCall:
    """Return the call that a request asks for. Raises BadRequest, BodyTooLarge."""
    operation = BY_NAME[name]
    of = transaction_of(request) if "{transaction}" in operation.template else 0
    sent: Mapping[str, Any] = {}
    if operation.method == "POST":
        shape = dict(operation.takes).get(JSON, Nothing)
        sent = await asked.read(request, lambda body, take: _decode_fields(body, shape, take))
    if sent.get("epoch") is not None and "name" not in sent:
        raise BadRequest("epoch: give it only with a name.")
    limit = TRANSACTION_LIMIT.of(request.query) if name == "list_transactions" else None
    accept = _accepted(request)
    name_of = request.principal.name
    caller = PRINCIPAL + name_of if name_of else request.caller
    return ServiceCall(name, sent, of, limit, accept, caller, request.deadline)


async def snapshot_reply(request: Request, snapshot: Snapshot) -> Reply:
    """Return a transaction in the form that the request accepts."""
    if _accepted(request) == THRIFT:
        return Reply(200, encode_transaction(snapshot), THRIFT)
    if len(snapshot.invalids) + len(snapshot.in_progress) <= POINTERS_AT_ONCE_MAX:
        return json_reply(encode_snapshot(snapshot))
    return await heavy(request.usage.caller, lambda: json_reply(encode_snapshot(snapshot)))


def _accepted(request: Request) -> str:
    return request.headers.get("Accept", "").strip().lower()


def transaction_of(request: Request) -> int:
    """Return the transaction id in the path. Raises BadRequest."""
    text = request.names.transaction
    if not 0 <= (number := whole_number(text)) <= POINTER_MAX:
        raise BadRequest(
            f"A transaction's id must be a whole number from 0 to 2^63-1, not {text!r:.80}."
        )
    return number


# --- The fields of bodies -------------------------------------------------------------------------

_POINTERS: Final = ("epoch", "write_pointer", "before_ms")


def _decode_fields(body: bytes, shape: Shape, take: Take) -> Mapping[str, Any]:
    """Return the fields of a body of this shape as values; an empty body has none."""
    sent: object = {}
    if body.strip():
        take(body.count(b",") + 1)
        sent = parse(body)
    return {name: _value(name, value) for name, value in checked(sent, shape).items()}


def _value(name: str, sent: Any) -> Any:
    if name == "changes":
        return [_key(text) for text in sent]
    if name == "ids":
        return [_pointer(name, each) for each in sent]
    return sent if sent is None or name not in _POINTERS else _pointer(name, sent)


def _pointer(name: str, value: object) -> int:
    return read_long(name, value, least=0, most=POINTER_MAX)


def _key(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise BadRequest(f"changes: {text!r:.80} is not base64.")


def shown_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body with these values."""
    return {name: _shown(name, value) for name, value in values.items()}


def _shown(name: str, value: Any) -> Any:
    if name == "changes":
        return [base64.b64encode(key).decode() for key in value]
    if name == "ids":
        return [*map(str, value)]
    return shown_long(value) if name in _POINTERS else value


# --- Pruning --------------------------------------------------------------------------------------


class PruningApi(TopicHandlers):
    """The handlers of pruning. Any node answers: the facts lie in the records and in the transaction service."""

    @cached_property
    def _pruning(self) -> Pruning:
        around = self._topics.around
        return Pruning(
            self._topics.registry,
            self._parts.service,
            around.clock,
            life_ms=around.settings.transaction_life_max_s * 1000,
            margin_ms=around.settings.sweep_margin_ms,
        )

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


# --- The blockers of a topic, with advice for the operator ---------------------------------------------

LISTED_MAX: Final = 10_000


class BlockersApi(TopicHandlers):
    """The handler of blockers."""

    async def blockers(self, request: Request) -> Answer:
        """Answer which transactions block a consumer, the first one first."""
        limit = BLOCKER_LIMIT.of(request.query)
        place = place_in(request, "from")
        snapshot, of = await self._snapshot(request)
        wanted = BlockersQuery(snapshot, place, limit, request.generation)
        found = await self._topics.blockers(request.topic, wanted, request.usage)
        known, problem = (
            await self._known(request, found.blockers) if found.blockers else ({}, None)
        )
        now_ms = self._topics.around.clock.now_ms()
        return json_reply(
            Blockers(
                snapshot_of=of,
                read_pointer=str(snapshot.read_pointer),
                blockers=[
                    _blocker_fields(each, known.get(each.pointer), now_ms)
                    for each in found.blockers
                ],
                complete=found.complete,
                service_problem=problem,
            )
        )

    async def _snapshot(self, request: Request) -> tuple[Snapshot, str]:
        """Return the consumer's snapshot, and its source. Raises BadRequest, NotFound."""
        text = request.query.get("transaction")
        if request.body.strip():
            if text is not None:
                raise BadRequest("transaction: give it, or a snapshot in the body, but not both.")
            if media_type(request.headers) == THRIFT:
                return await asked.read(request, decode_transaction), "request"
            return await asked.read_snapshot(request), "request"
        if text is None:
            return await self._parts.service.snapshot(request.deadline), "now"
        number = min(whole_number(text), POINTER_MAX)
        if number < 0:
            raise BadRequest(f"transaction: must be the number of a transaction, not {text!r:.80}.")
        shown = await self._parts.service.show(number, request.deadline)
        if shown["state"] not in ("in_progress", "committing"):
            raise BadRequest(
                f"transaction: {number} is {shown['state']}, so it can't read any more."
            )
        now = await self._parts.service.snapshot(request.deadline)
        checkpoints = [*map(int, shown.get("checkpoints", ()))]
        is_long = shown.get("type") == "long"
        return as_transaction(now, number, checkpoints, long=is_long), "transaction"

    async def _known(
        self, request: Request, blockers: list[Blocker]
    ) -> tuple[dict[int, dict[str, Any]], str | None]:
        """Return the service's answers by write pointer; if it does not answer, none and the reason."""
        try:
            listed = await self._parts.service.list(limit=LISTED_MAX, deadline=request.deadline)
            known = {
                pointer: {"state": "in_progress", **each}
                for each in listed["in_progress"]
                for pointer in map(int, (each["id"], *each["checkpoints"]))
            }
            for pointer in (each.pointer for each in blockers):
                try:
                    shown = await self._parts.service.show(pointer, request.deadline)
                    known[pointer] = {**known.get(pointer, {}), **shown}
                except NotFound:
                    known.setdefault(pointer, {"state": "unknown"})
        except BrokerError as error:
            return {}, error.message
        return known, None


def _blocker_fields(blocker: Blocker, known: dict[str, Any] | None, now_ms: int) -> replies.Blocker:
    told = known or {}
    since_ms = timestamp_of(blocker.first)
    transaction = int(told.get("id", blocker.pointer))
    started_ms, expires_ms = told.get("started_ms"), told.get("expires_ms")
    return replies.Blocker(
        transaction=str(transaction),
        write_pointer=str(blocker.pointer),
        first=FirstMessage(
            id=(blocker.first + LOG_KEY_MIN).hex(),
            time=rfc3339(since_ms),
            timestamp_ms=since_ms,
        ),
        since_s=max(now_ms - since_ms, 0) / 1000,
        messages=blocker.messages,
        waiting=blocker.waiting,
        state=told.get("state"),
        type=told.get("type"),
        client=told.get("client"),
        started_at=None if started_ms is None else rfc3339(started_ms),
        expires_at=None if expires_ms is None else rfc3339(expires_ms),
        advice=advice(told.get("state"), transaction, expires_ms),
    )


def advice(state: str | None, transaction: int, expires_ms: int | None) -> str:
    """Return advice for an operator about a transaction that blocks consumers."""
    if state in ("in_progress", "committing"):
        until = "" if expires_ms is None else f" It ends by itself at {rfc3339(expires_ms)}."
        return (
            f"It is in progress.{until} If its client is gone, end it: broker tx invalidate {transaction}. "
            "Consumers then skip its messages."
        )
    if state == "invalid":
        return "It is now invalid. Consumers with a newer snapshot skip its messages. Begin a new transaction."
    if state == "unknown":
        return (
            "The service does not know it. Either it has ended, and a newer snapshot shows how; or another service gave its "
            "number. If it also blocks a snapshot of now, roll its messages back (POST …/rollback), or wait until they expire."
        )
    return "The transaction service does not answer. Ask again when it answers: broker tx list."

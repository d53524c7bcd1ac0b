"""The blockers of a topic: the transactions that block a consumer, with advice for the operator."""

from __future__ import annotations

from typing import Any, Final

from broker.api import asked
from broker.api.asked import place_in
from broker.api.router import TopicHandlers
from broker.errors import BadRequest, BrokerError, NotFound
from broker.http.reply import Answer, json_reply, media_type
from broker.http.request import Request
from broker.model import LOG_KEY_MIN, POINTER_MAX, Snapshot, timestamp_of
from broker.moments import rfc3339
from broker.operations import replies
from broker.operations.media_types import THRIFT
from broker.operations.parameters import BLOCKER_LIMIT
from broker.operations.replies import Blockers, FirstMessage
from broker.topics.blockers import Blocker, BlockersQuery, as_transaction
from broker.wire.transaction import decode_transaction

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
        if not (text.isascii() and text.isdecimal() and len(text) <= 19):
            raise BadRequest(f"transaction: must be the number of a transaction, not {text!r:.80}.")
        number = min(int(text), POINTER_MAX)
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

"""Mutants of what lies above the logs: routing, leading, topics. See mutants.py.

Each takes away one check, in one function, and does nothing else: what a careless change would do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest import mock

from broker.leading import instances
from broker.routing import deadlines
from broker.routing.lanes import ReceivedLanes, Turn
from broker.topics.claiming import TopicClaims
from broker.topics.ids import Position, RowIds
from broker.topics.keyed import KeyedLog
from broker.topics.leader import TopicLeader
from broker.topics.reading import PayloadReader
from broker.topics.retention import Sweeper
from broker.topics.stored import StoredPayloads

if TYPE_CHECKING:
    from broker.model import RowId
    from broker.topics.dedupe import Answer

Patch = AbstractContextManager[object]


def id_claim() -> Patch:
    """A node goes on under an instance id that another has claimed since."""

    async def nobody(*_: object) -> None:
        return None

    return mock.patch.object(instances, "check_incarnation", nobody)


def lane_order() -> Patch:
    """A leader takes what is forwarded in the order in which it comes, however late."""

    def take(*_: object, **__: object) -> Turn:
        return Turn.TAKE

    return mock.patch.object(ReceivedLanes, "judge", take)


def deadline() -> Patch:
    """A leader gives what is forwarded its full time, however long it was on the way."""

    def late(deadline_ms: int, monotonic: float, now_ms: int) -> float:
        del deadline_ms, now_ms
        return monotonic + deadlines.REQUEST_TIMEOUT_S_MAX

    return mock.patch.object(deadlines, "from_the_wire", late)


def sweep_margin() -> Patch:
    """A sweep removes what has expired by its own clock at once."""
    return mock.patch.object(Sweeper, "_margin_ms", 0)


def clock() -> Patch:
    """A node whose clock is far off leads all the same."""

    def believe(self: TopicClaims, skew_ms: int) -> None:
        self.clock_skew_ms = skew_ms

    return mock.patch.object(TopicClaims, "judge_clock", believe)


def ids_rise() -> Patch:
    """Ids come from the clock alone."""

    def by_the_clock(_: RowIds, now_ms: int) -> Position:
        return Position(now_ms, 0)

    return mock.patch.object(RowIds, "_start", by_the_clock)


def dedupe() -> Patch:
    """A key is not looked up: neither in memory nor in storage."""

    async def unknown(*_: object, **__: object) -> Answer | None:
        return None

    return mock.patch.object(KeyedLog, "_known", unknown)


def proof() -> Patch:
    """A leader answers from memory without a proof of leading."""

    async def believe(self: TopicLeader) -> bool:
        return self.ended is None

    return mock.patch.object(TopicLeader, "is_proven", believe)


def store_proof() -> Patch:
    """A store is acknowledged without a proof of leading the topic."""

    async def believe(_: StoredPayloads) -> None:
        return None

    return mock.patch.object(StoredPayloads, "_confirm", believe)


def look_for_the_reference() -> Patch:
    """The reference of a sealed payload log is appended again, without a look for the first."""

    async def not_there(*_: Any) -> RowId | None:
        return None

    return mock.patch.object(StoredPayloads, "_find_reference", not_there)


def closed_reference() -> Patch:
    """A reader of a reference ends in a page that is not closed."""

    async def whole(self: PayloadReader) -> bool:
        self.ended = True
        return True

    return mock.patch.object(PayloadReader, "_is_whole", whole)


MUTANTS = {
    "id-claim": id_claim,
    "lane-order": lane_order,
    "deadline": deadline,
    "sweep-margin": sweep_margin,
    "clock": clock,
    "ids-rise": ids_rise,
    "dedupe": dedupe,
    "proof": proof,
    "store-proof": store_proof,
    "look-for-the-reference": look_for_the_reference,
    "closed-reference": closed_reference,
}
"""By the names of the design's guards."""

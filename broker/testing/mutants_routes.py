"""Mutants of what lies above the logs: routing, leading, topics. See mutants.py.

Each takes one check away and does nothing else: what a careless change would do.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from broker.client import dead_letters
from broker.coordination import instances
from broker.coordination.claims import Written
from broker.errors import NotFound
from broker.model import MessageId, Topic
from broker.routing import deadlines
from broker.routing.lanes import LaneDecision, ReceivedLanes
from broker.storage.log_reader import LogReader
from broker.topics.clock_comparison import ClockComparison
from broker.topics.cursors import Cursors, StoredCursor
from broker.topics.ids import Position, RowIds
from broker.topics.keyed_log import KeyedLog
from broker.topics.payload_reader import PayloadReader
from broker.topics.producers import Producers
from broker.topics.references import References
from broker.topics.retention import Sweeper
from broker.topics.stored_payloads import StoredPayloads
from broker.topics.topic_reader import TopicReading


class Above(NamedTuple):
    """One check dropped: ``attribute`` of ``owner`` is swapped for what ``swap`` makes of it."""

    does: str
    owner: Any
    attribute: str
    swap: Callable[[Any], Any]


def _nothing(_: Any) -> Any:
    async def mutant(*_: object, **__: object) -> None:
        return None

    return mutant


def _none_of_them(_: Any) -> Any:
    async def mutant(*_: object) -> dict[int, bytes]:
        return {}

    return mutant


def _lane_order(_: Any) -> Any:
    def mutant(*_: object, **__: object) -> LaneDecision:
        return LaneDecision.TAKE

    return mutant


def _deadline(_: Any) -> Any:
    def mutant(deadline_ms: int, monotonic: float, now_ms: int) -> float:
        del deadline_ms, now_ms
        return monotonic + deadlines.REQUEST_TIMEOUT_S_MAX

    return mutant


def _sweep_margin(_: Any) -> Any:
    return 0


def _clock(_: Any) -> Any:
    def mutant(_: ClockComparison, written: Written) -> bool:
        del written
        return False

    return mutant


def _ids_rise(_: Any) -> Any:
    def mutant(_: RowIds, now_ms: int) -> Position:
        return Position(now_ms, 0)

    return mutant


def _closed_reference(_: Any) -> Any:
    async def mutant(self: PayloadReader) -> bool:
        self.ended = True
        return True

    return mutant


def _whole_range(_: Any) -> Any:
    def mutant(self: TopicReading, reader: LogReader) -> bool:
        del self, reader
        return True

    return mutant


def _cursor_version(put: Any) -> Any:
    async def mutant(
        self: Cursors,
        topic: Topic,
        name: str,
        after: MessageId | None,
        expected: str | None,
        data: str,
    ) -> StoredCursor:
        with contextlib.suppress(NotFound):
            expected = (await self.get(topic, name)).version
        return await put(self, topic, name, after, expected, data)  # type: ignore[no-any-return]

    return mutant


def _letter_once(_: Any) -> Any:
    def mutant(*_: object) -> str:
        return uuid.uuid4().hex

    return mutant


MUTANTS: Final[Mapping[str, Above]] = {
    "id-claim": Above(
        "a node goes on under a number that another has claimed",
        instances,
        "check_incarnation",
        _nothing,
    ),
    "lane-order": Above(
        "what is forwarded is taken as it comes, however late", ReceivedLanes, "judge", _lane_order
    ),
    "deadline": Above(
        "a leader gives what is forwarded its full time, however long it was on the way",
        deadlines,
        "from_the_wire",
        _deadline,
    ),
    "sweep-margin": Above(
        "a sweep removes at once what has expired by its own clock",
        Sweeper,
        "_margin_ms",
        _sweep_margin,
    ),
    "clock": Above(
        "a node whose clock is far off leads and reads all the same",
        ClockComparison,
        "_is_off",
        _clock,
    ),
    "ids-rise": Above("ids come from the clock alone", RowIds, "_start", _ids_rise),
    "dedupe": Above(
        "a key is looked up neither in memory nor in storage", KeyedLog, "_known", _nothing
    ),
    "producer-number": Above(
        "a producer's last number is looked up neither in memory nor in storage",
        Producers,
        "_last",
        _nothing,
    ),
    "store-proof": Above(
        "a store is acknowledged without a proof of leading", StoredPayloads, "_confirm", _nothing
    ),
    "look-for-the-reference": Above(
        "the reference of a sealed payload log is appended again",
        References,
        "_find_references",
        _none_of_them,
    ),
    "closed-reference": Above(
        "a reader of a reference ends in a page that is not closed",
        PayloadReader,
        "_is_whole",
        _closed_reference,
    ),
    "cursor-version": Above(
        "a cursor is moved whatever version the request expects", Cursors, "put", _cursor_version
    ),
    "letter-once": Above(
        "a dead letter has another idempotency key each time", dead_letters, "key_of", _letter_once
    ),
    "whole-range": Above(
        "a bulk read ends where storage ends, though its range goes on",
        TopicReading,
        "_is_whole",
        _whole_range,
    ),
}

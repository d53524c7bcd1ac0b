"""Mutants of the layers above the logs: routing, leaders, topics. See mutants.py.

Each takes away one check and changes nothing else, as a careless change might.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from broker.client import dead_letters
from broker.coordination import instances
from broker.errors import NotFound
from broker.model import MessageId, Topic, first_log_key_at
from broker.operations.parameters import REQUEST_TIMEOUT_S_MAX
from broker.routing import nodeheaders
from broker.routing.lanes import LaneDecision, ReceivedLanes
from broker.routing.peer_requests import SeenNumbers
from broker.topics.clock_comparison import ClockComparison
from broker.topics.cursors import Cursors, StoredCursor
from broker.topics.keyed_log import KeyedLog
from broker.topics.log_keys import LogKeys, Position
from broker.topics.mark_window import MarkWindow
from broker.topics.payload_reader import PayloadReader
from broker.topics.producers import Producers
from broker.topics.references import References
from broker.topics.retention import Sweeper
from broker.topics.stored_payloads import StoredPayloads
from broker.topics.topic_reader import TopicReading

Swap = Callable[[Any], Any]
"""Takes the product's function, and returns its replacement."""


class Mutant(NamedTuple):
    """One guard dropped.

    ``owner`` and ``attribute`` name the replaced function. ``plan`` names the random runs of tests/kit/logs that find
    the mutant; None: its own test finds it.
    """

    does: str
    owner: Any
    attribute: str
    swap: Swap
    plan: str | None = None


def always(value: object) -> Swap:
    """Replace a function by one that returns ``value``."""
    return lambda _: lambda *_, **__: value


def nothing(_: Any) -> Any:
    """Replace a coroutine function by one that does nothing."""

    async def mutant(*_: object, **__: object) -> None:
        return None

    return mutant


def _none_of_them(_: Any) -> Any:
    async def mutant(*_: object) -> dict[int, bytes]:
        return {}

    return mutant


def _closed_reference(_: Any) -> Any:
    def mutant(self: PayloadReader) -> bool:
        self.ended = True
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


MUTANTS: Final[Mapping[str, Mutant]] = {
    "id-claim": Mutant(
        "a node goes on under an instance id that another node has claimed",
        instances,
        "check_incarnation",
        nothing,
    ),
    "lane-order": Mutant(
        "a leader takes forwarded requests in any order, and late ones too",
        ReceivedLanes,
        "judge",
        always(LaneDecision.TAKE),
    ),
    "deadline": Mutant(
        "a leader gives a forwarded request its full time, without the time that it was in flight",
        nodeheaders,
        "from_the_wire",
        lambda _: lambda _deadline_ms, monotonic, _now_ms: monotonic + REQUEST_TIMEOUT_S_MAX,
    ),
    "signature": Mutant(
        "a leader takes a request that no node signed",
        nodeheaders.Envelope,
        "check",
        always(None),
    ),
    "copies": Mutant(
        "a leader takes a copy of a signed request",
        SeenNumbers,
        "take",
        always(None),
    ),
    "sweep-margin": Mutant(
        "a sweep removes messages as soon as they have expired by its own clock",
        Sweeper,
        "_margin_ms",
        lambda _: 0,
    ),
    "clock": Mutant(
        "a node whose clock is far off still leads and reads",
        ClockComparison,
        "_is_off",
        always(value=False),
    ),
    "ids-rise": Mutant(
        "ids come from the clock alone",
        LogKeys,
        "_start",
        lambda _: lambda _ids, now_ms: Position(now_ms, 0),
    ),
    "dedupe": Mutant(
        "a leader looks up an idempotency key neither in memory nor in storage",
        KeyedLog,
        "_find_answer",
        nothing,
    ),
    "own-effect": Mutant(
        "a repeated key is answered as done, whichever transaction has the messages, rolled back or not",
        KeyedLog,
        "_check_effect",
        nothing,
    ),
    "mark-window": Mutant(
        "the window of a mark passes by the wall clock alone",
        MarkWindow,
        "passed_before",
        lambda _: lambda window, life_ms: first_log_key_at(int(window.clock.now_ms() - life_ms)),
    ),
    "producer-number": Mutant(
        "a leader looks up a producer's last number neither in memory nor in storage",
        Producers,
        "_last",
        nothing,
    ),
    "store-proof": Mutant(
        "a leader acknowledges a store without a proof that it leads",
        StoredPayloads,
        "_confirm",
        nothing,
    ),
    "look-for-the-reference": Mutant(
        "a leader appends the reference of a sealed payload log again",
        References,
        "_find_references",
        _none_of_them,
    ),
    "closed-reference": Mutant(
        "a reader of a reference ends in a page that is not closed",
        PayloadReader,
        "_update_ended",
        _closed_reference,
    ),
    "cursor-version": Mutant(
        "a put of a cursor ignores the expected version", Cursors, "put", _cursor_version
    ),
    "letter-once": Mutant(
        "a dead letter has another idempotency key at each retry",
        dead_letters,
        "key_of",
        lambda _: lambda *_: uuid.uuid4().hex,
    ),
    "whole-range": Mutant(
        "a bulk read ends at the end of storage, though its range goes on",
        TopicReading,
        "_is_complete",
        always(value=True),
    ),
}

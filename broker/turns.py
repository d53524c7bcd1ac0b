"""Turns: a limit of calls in flight to other servers, and the order in which waiting calls get their turn.

One part of the called side may hang while the rest works: a *region* of storage, or a topic at its leader. Then its
calls get no answer for as long as a call may take. So no region and no topic may take every turn. A call that is
*late* keeps its connection but gives its turn back::

    turns       calls that are not late          turns_max
    of these    of one topic of a region         half of them
                of one region                    three quarters
                of a slow region                 one, if fewer than SLOW_LATE_MAX of its calls are late
    late        calls without an answer for      late_max; a call that becomes late beyond that keeps its turn
                LATE_S

A region is slow from its first late call until it answers again. So a region that hangs takes turns from the others
for at most LATE_S. After that it gets one call at a time. Waiting topics and regions get their turns in rotation.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LATE_S: Final = 1.0
SLOW_LATE_MAX: Final = 2
"""A slow region with so many late calls gets no further call until one of them has ended."""
SLOW_KNOWN_MAX: Final = 4096
"""How many slow regions without calls in flight are remembered."""


class CallSubject(NamedTuple):
    """The subject of a call: the region, which may hang by itself, and a topic in it, if there is one."""

    region: str
    topic: bytes = b""


@dataclass(slots=True, eq=False, repr=False)
class Turn:
    """One call's turn. ``begun_s`` is a time of the loop's clock."""

    place: CallSubject
    begun_s: float
    is_late: bool = False


@dataclass(slots=True, eq=False, repr=False)
class _Region:
    """The calls in flight to one region, including late ones."""

    calls: int = 0
    late: int = 0
    is_slow: bool = False
    topics: Counter[bytes] = field(default_factory=Counter)


Waiting = OrderedDict[bytes, deque[asyncio.Future[Turn]]]


class Turns:
    """The turns of one node. Made and used in one event loop."""

    def __init__(self, turns_max: int, late_max: int) -> None:
        """Give at most ``turns_max`` turns at once; ``late_max`` more calls may be late."""
        self._turns_max = turns_max
        self._late_max = late_max
        self._of_region_max = turns_max - turns_max // 4
        self._of_topic_max = turns_max - turns_max // 2
        self._in_time: OrderedDict[Turn, None] = OrderedDict()
        """The turns that are not late, in the order in which they began."""
        self._late = 0
        self._regions: dict[str, _Region] = {}
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        """How many calls are in flight, including late ones."""
        return len(self._in_time) + self._late

    async def take(self, place: CallSubject, wait_s: float) -> Turn:
        """Wait for a turn for a call and return it. Raises TimeoutError after ``wait_s``."""
        loop = asyncio.get_running_loop()
        self._note_late(loop.time())
        if place.topic not in self._waiting.get(place.region, ()) and self._may_begin(place):
            return self._begin(place, loop.time())
        waiter: asyncio.Future[Turn] = loop.create_future()
        topics = self._waiting.setdefault(place.region, OrderedDict())
        topics.setdefault(place.topic, deque()).append(waiter)
        self._set_timer()
        try:
            async with asyncio.timeout(wait_s):
                return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                # The turn came while the caller was being cancelled.
                self.give_back(waiter.result())
            else:
                self._remove_waiter(place, waiter)
            raise

    def give_back(self, turn: Turn, *, answered: bool = False) -> None:
        """End a turn. ``answered``: the region has answered the call, so it is not slow any more."""
        name, topic = turn.place
        region = self._regions[name]
        if turn.is_late:
            self._late -= 1
            region.late -= 1
        else:
            del self._in_time[turn]
        region.calls -= 1
        region.topics[topic] -= 1
        if not region.topics[topic]:
            del region.topics[topic]
        if answered:
            region.is_slow = False
        if not region.calls and (not region.is_slow or len(self._regions) > SLOW_KNOWN_MAX):
            del self._regions[name]
        self._pass_on()

    def _may_begin(self, place: CallSubject) -> bool:
        """True if a call may begin now."""
        if len(self._in_time) >= self._turns_max:
            return False
        region = self._regions.get(place.region)
        return region is None or (
            self._takes_more(region) and self._takes_more_of_topic(region, place.topic)
        )

    def _takes_more(self, region: _Region) -> bool:
        if not region.is_slow:
            return region.calls < self._of_region_max
        if not region.calls:
            return True
        # Half of ``late_max`` is reserved for other regions, which may begin to hang.
        is_bounded = region.late < SLOW_LATE_MAX and 2 * self._late < self._late_max
        return region.calls == region.late and is_bounded

    def _takes_more_of_topic(self, region: _Region, topic: bytes) -> bool:
        return not topic or region.topics[topic] < self._of_topic_max

    def _begin(self, place: CallSubject, now_s: float) -> Turn:
        turn = Turn(place, now_s)
        self._in_time[turn] = None
        region = self._regions.get(place.region)
        if region is None:
            region = self._regions[place.region] = _Region()
        region.calls += 1
        region.topics[place.topic] += 1
        return turn

    def _note_late(self, now_s: float) -> None:
        """Mark calls without an answer for LATE_S as late, and take their turns back."""
        while self._in_time and self._late < self._late_max:
            oldest = next(iter(self._in_time))
            if now_s < oldest.begun_s + LATE_S:
                return
            del self._in_time[oldest]
            oldest.is_late = True
            self._late += 1
            region = self._regions[oldest.place.region]
            region.late += 1
            region.is_slow = True

    # Waiting calls.

    def _pass_on(self) -> None:
        """Give free turns to waiting calls."""
        if not self._waiting:
            return
        now_s = asyncio.get_running_loop().time()
        self._note_late(now_s)
        while (place := self._next()) is not None:
            waiter = self._waiting[place.region][place.topic].popleft()
            self._rotate(place)
            if not waiter.done():
                waiter.set_result(self._begin(place, now_s))
        self._set_timer()

    def _next(self) -> CallSubject | None:
        """Return the subject of the first waiting call that may begin."""
        if len(self._in_time) >= self._turns_max:
            return None
        for name, topics in self._waiting.items():
            region = self._regions.get(name)
            if region is not None and not self._takes_more(region):
                continue
            # This loop is short: few topics can be at their limit while the region is below its own.
            for topic in topics:
                if region is None or self._takes_more_of_topic(region, topic):
                    return CallSubject(name, topic)
        return None

    def _rotate(self, place: CallSubject) -> None:
        """Move the topic and its region to the end of the line; remove them if no call of theirs waits."""
        topics = self._waiting[place.region]
        if topics[place.topic]:
            topics.move_to_end(place.topic)
        else:
            del topics[place.topic]
        if topics:
            self._waiting.move_to_end(place.region)
        else:
            del self._waiting[place.region]

    def _remove_waiter(self, place: CallSubject, waiter: asyncio.Future[Turn]) -> None:
        topics = self._waiting.get(place.region)
        waiters = None if topics is None else topics.get(place.topic)
        if topics is None or waiters is None or waiter not in waiters:
            return
        waiters.remove(waiter)
        if not waiters:
            del topics[place.topic]
        if not topics:
            del self._waiting[place.region]

    def _set_timer(self) -> None:
        """If calls wait for turns, set a timer for the time when the oldest call becomes late."""
        if self._timer is not None or not self._waiting or not self._in_time:
            return
        if self._late >= self._late_max:
            return  # No further call becomes late before one ends.
        oldest = next(iter(self._in_time))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(oldest.begun_s + LATE_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pass_on()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

"""Rounds over many topics, some of which may hang: bounded side by side, and each topic backs off by itself.

One region of storage may hang while the rest works. So a round works on PLACES topics at once. A topic that is *late*
gives its place to the next one, and goes on beside it. A round waits for the last ones a little, and then ends without
them. A topic that failed late is left out for a time, which doubles with each such failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from broker.clock import Clock
from broker.model import TopicId

PLACES: Final = 8
LATE_S: Final = 1.0
LATE_MAX: Final = 256
"""How many late topics may have given their place back; further ones keep theirs."""
END_S: Final = 30.0
"""How long a round waits for its last topics: longer than a topic of a region that hangs takes to fail."""
WAIT_S_FIRST: Final = 600.0
WAIT_S_MAX: Final = 3_600.0

Work = Callable[[], Awaitable[str | None]]
"""Works on one topic, and returns its problem, if there was one. It raises only bugs."""


class _Wait(NamedTuple):
    """A topic that is left out until a monotonic time."""

    problem: str
    seconds: float
    until: float


class SweepRounds:
    """The topics under way, and those that are left out."""

    def __init__(self, clock: Clock) -> None:
        """Have none yet."""
        self._clock = clock
        self._places = asyncio.Semaphore(PLACES)
        self._late = 0
        self._under_way: dict[TopicId, asyncio.Task[None]] = {}
        self._waits: dict[TopicId, _Wait] = {}
        self._begun: set[TopicId] = set()
        """The topics that this round began."""
        self._bugs: list[Exception] = []

    def left_out(self, topic: TopicId) -> str | None:
        """Return why a topic must not be begun now; None: it may."""
        if topic in self._under_way:
            return "its last sweep is still under way"
        wait = self._waits.get(topic)
        if wait is None or wait.until <= self._clock.monotonic():
            return None
        return wait.problem

    def forget(self, topic: TopicId) -> None:
        """Forget the failures of a topic."""
        self._waits.pop(topic, None)

    async def place(self) -> None:
        """Wait for a place. ``begin`` takes it over; ``give_back`` returns it."""
        await self._places.acquire()

    def give_back(self) -> None:
        """Return a place."""
        self._places.release()

    def begin(self, topic: TopicId, work: Work) -> None:
        """Begin the work on a topic, with the place that the caller has."""
        self._begun.add(topic)
        self._under_way[topic] = asyncio.create_task(self._run(topic, work))

    async def _run(self, topic: TopicId, work: Work) -> None:
        began, gave_back = self._clock.monotonic(), False

        def late() -> None:
            nonlocal gave_back
            if self._late < LATE_MAX:
                self._late += 1
                gave_back = True
                self.give_back()

        timer = asyncio.get_running_loop().call_later(LATE_S, late)
        problem = None
        try:
            problem = await work()
        except Exception as error:  # noqa: BLE001 - A bug at one topic ends no other's sweep: ``end`` raises it.
            self._bugs.append(error)
        finally:
            timer.cancel()
            if gave_back:
                self._late -= 1
            else:
                self.give_back()
            del self._under_way[topic]
        now, before = self._clock.monotonic(), self._waits.pop(topic, None)
        if problem is not None and now >= began + LATE_S:
            seconds = WAIT_S_FIRST if before is None else min(before.seconds * 2, WAIT_S_MAX)
            self._waits[topic] = _Wait(problem, seconds, now + seconds)

    async def end(self) -> set[TopicId]:
        """Wait for the topics of this round, END_S at most; return those still under way. Raises a bug of any."""
        begun, self._begun = self._begun, set()
        left = begun & self._under_way.keys()
        if left:
            await asyncio.wait([self._under_way[topic] for topic in left], timeout=END_S)
        if self._bugs:
            bugs, self._bugs = self._bugs, []
            raise bugs[0]
        return left & self._under_way.keys()

    async def close(self) -> None:
        """End the work on all topics."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

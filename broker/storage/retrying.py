"""How often and how long a call to the tables is repeated.

Pauses grow and have a random part, so that many callers of one slow server do not come back together.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.clock import Clock
from broker.errors import OutcomeUnknown, Unavailable
from broker.storage.cells import CellsError

PAUSE_S_FIRST = 0.01
PAUSE_S_MAX = 0.5

Answer = TypeVar("Answer")


class Pauses:
    """The pauses of one call, until its deadline."""

    def __init__(self, clock: Clock, chance: random.Random, deadline: float) -> None:
        """Begin with the shortest."""
        self._clock = clock
        self._chance = chance
        self._deadline = deadline
        self._pause_s = PAUSE_S_FIRST

    def check(self, what: str) -> float:
        """Return how many seconds are left. Raises OutcomeUnknown past the deadline."""
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= 0:
            raise OutcomeUnknown(f"Gave up: {what}.")
        return left_s

    async def next(self, what: str) -> None:
        """Wait a little longer than the last time. Raises OutcomeUnknown past the deadline."""
        left_s = self.check(what)
        await self._clock.sleep(min(self._pause_s * self._chance.uniform(0.5, 1.5), left_s))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


class Retrying:
    """Repeats calls until ``call_s`` seconds have passed."""

    def __init__(self, clock: Clock, call_s: float, chance: random.Random) -> None:
        """Give each call ``call_s`` seconds; ``chance`` spreads the pauses."""
        self.clock = clock
        self.call_s = call_s
        self._chance = chance

    def deadline(self) -> float:
        """Return when a call that begins now ends, in monotonic seconds."""
        return self.clock.monotonic() + self.call_s

    def pauses(self, deadline: float) -> Pauses:
        """Return the pauses of a call that ends at ``deadline``."""
        return Pauses(self.clock, self._chance, deadline)

    async def read(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a read until it is answered. Raises Unavailable: reads leave nothing behind."""
        pauses = self.pauses(self.deadline())
        while True:
            try:
                return await call()
            except CellsError as error:
                try:
                    await pauses.next(f"storage does not answer: {error}")
                except OutcomeUnknown as unknown:
                    raise Unavailable(unknown.message) from error

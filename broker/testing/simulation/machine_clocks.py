"""The clocks of simulated machines: they can be stepped, fast, slow, stopped, or wrong from the start.

A machine has a wall clock, and faults change it. A process on the machine reads this clock through the same guard as
production (broker/clock.py). Its monotonic clock is always right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from broker.clock import WallGuard
from broker.testing.virtual_time import EPOCH_MS, VirtualLoop


@dataclass(slots=True, eq=False)
class _Drift:
    """A temporary rate, and the error that it has added to the clock."""

    rate: float
    off_ms: float = 0.0


class MachineWall:
    """The wall clock of one machine."""

    def __init__(self, loop: VirtualLoop, *, off_ms: float = 0.0, rate: float = 1.0) -> None:
        """Start with an error of ``off_ms``, and run at ``rate``."""
        self._loop = loop
        self._shown_ms = EPOCH_MS + loop.time() * 1000 + off_ms
        self._since_s = loop.time()
        self._rate = rate
        self._drifts: list[_Drift] = []

    def boot_ms(self) -> float:
        """Return true milliseconds since the simulation began."""
        return self._loop.time() * 1000

    def wall_ms(self) -> float:
        """Return the time that the clock shows."""
        return self._shown_ms + self._passed_ms() * self._rate_now()

    def _passed_ms(self) -> float:
        return (self._loop.time() - self._since_s) * 1000

    def _rate_now(self) -> float:
        return self._drifts[-1].rate if self._drifts else self._rate

    @property
    def off_ms(self) -> float:
        """How far the clock is ahead of true time, in ms."""
        return self.wall_ms() - EPOCH_MS - self.boot_ms()

    def step(self, by_ms: float) -> None:
        """Set the clock forward or back."""
        self._settle()
        self._shown_ms += by_ms

    def run(self, rate: float) -> None:
        """Run at another rate from now on; 0 stops the clock."""
        self._settle()
        self._rate = rate

    def drift(self, rate: float) -> Callable[[], None]:
        """Run at another rate until the caller calls the returned function, which takes the added error back.

        Of several rates the last one counts. Other changes to the clock in this time stay.
        """
        self._settle()
        drift = _Drift(rate)
        self._drifts.append(drift)

        def end() -> None:
            if drift in self._drifts:
                self._settle()
                self._drifts.remove(drift)
                self._shown_ms -= drift.off_ms

        return end

    def mend(self) -> None:
        """Show true time, and run at the right rate."""
        self._settle()
        self._drifts.clear()
        self._shown_ms, self._rate = EPOCH_MS + self.boot_ms(), 1.0

    def _settle(self) -> None:
        """Note the shown time, and add the error since the last note to the drift that made it."""
        shown_ms = self.wall_ms()
        if self._drifts:
            self._drifts[-1].off_ms += shown_ms - self._shown_ms - self._passed_ms()
        self._shown_ms, self._since_s = shown_ms, self._loop.time()


class ProcessClock:
    """The Clock port of one process: its machine's clocks behind the guard."""

    def __init__(self, wall: MachineWall) -> None:
        """Take the first reading."""
        self._wall = wall
        self._guard = WallGuard(wall.wall_ms(), wall.boot_ms())

    def now_ms(self) -> int:
        """Return the guarded wall clock, ms since 1970."""
        return self._guard.now_ms(self._wall.wall_ms(), self._wall.boot_ms())

    def patient_ms(self, life_ms: float) -> int:
        """Return the guarded wall clock, less its jumps forward in the last ``life_ms``."""
        return self._guard.patient_ms(self._wall.wall_ms(), self._wall.boot_ms(), life_ms)

    def monotonic(self) -> float:
        """Return true seconds."""
        return self._wall.boot_ms() / 1000

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def steady_ms(self) -> float:
        """Return the ms for which the wall clock has been steady."""
        self.now_ms()
        return self._wall.boot_ms() - self._guard.unsteady_at_ms

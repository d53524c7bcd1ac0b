"""The clocks of simulated machines: stepped, fast or slow, wrong from the start, standing still.

A machine has a wall clock, which faults change. A process on it goes by that clock behind the same guard
as production (broker/clock.py), and by a monotonic one, which is always right.
"""

from __future__ import annotations

import asyncio

from broker.clock import WallGuard
from broker.testing.clock import EPOCH_MS, VirtualLoop


class MachineWall:
    """The wall clock of one machine."""

    def __init__(self, loop: VirtualLoop, *, off_ms: float = 0.0, rate: float = 1.0) -> None:
        """Be off by so much from the start, and run at ``rate``."""
        self._loop = loop
        self._shown_ms = EPOCH_MS + loop.time() * 1000 + off_ms
        self._since_s = loop.time()
        self._rate = rate

    def boot_ms(self) -> float:
        """Return true milliseconds since the world began."""
        return self._loop.time() * 1000

    def wall_ms(self) -> float:
        """Return what the clock shows."""
        return self._shown_ms + (self._loop.time() - self._since_s) * 1000 * self._rate

    @property
    def off_ms(self) -> float:
        """How far it is ahead of the truth."""
        return self.wall_ms() - EPOCH_MS - self.boot_ms()

    def step(self, by_ms: float) -> None:
        """Set it forward or back."""
        self._set(self.wall_ms() + by_ms, self._rate)

    def run(self, rate: float) -> None:
        """Run faster or slower from now on; 0 stands still."""
        self._set(self.wall_ms(), rate)

    def mend(self) -> None:
        """Show the right time, at the right rate."""
        self._set(EPOCH_MS + self.boot_ms(), 1.0)

    def _set(self, shown_ms: float, rate: float) -> None:
        self._shown_ms, self._since_s, self._rate = shown_ms, self._loop.time(), rate


class ProcessClock:
    """The Clock port of one process: its machine's clocks behind the guard."""

    def __init__(self, wall: MachineWall) -> None:
        """Take the first reading."""
        self._wall = wall
        self._guard = WallGuard(wall.wall_ms(), wall.boot_ms())

    def now_ms(self) -> int:
        """Return the guarded wall clock, ms since 1970."""
        return self._guard.now_ms(self._wall.wall_ms(), self._wall.boot_ms())

    def monotonic(self) -> float:
        """Return true seconds."""
        return self._wall.boot_ms() / 1000

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def steady_ms(self) -> float:
        """Return for how many ms the wall clock has been steady."""
        self.now_ms()
        return self._wall.boot_ms() - self._guard.unsteady_at_ms

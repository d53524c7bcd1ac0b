"""Time: the port, the system's clock, and the guard that keeps a jumping clock from doing harm.

A node has one clock, and it serves ids, expiry, windows and longest lives alike. Wall clocks jump: an
operator sets them, a virtual machine wakes up, a time server lies for a minute. The guard watches the
difference between the wall clock and the boot clock, which only ever counts up at the true rate, also
through a suspend. Small changes are the time daemon at work and are followed. A jump is believed only
when it has stood for a minute; until then time goes on at the boot clock's rate from where it was::

    wall - boot    ______          ______________
                         |  60 s  |                     believed after a minute
                         |________|
                                   ↑ still the old offset until here

While a jump is pending, and some minutes after, nothing is swept: removing is the one thing that a
wrong clock makes irreversible.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

JUMP_MS_MIN = 500
"""A change of offset between two readings that is more than slewing."""
JUMP_BELIEVED_AFTER_MS = 60_000


class Clock(Protocol):
    """What code may know of time."""

    def now_ms(self) -> int:
        """Return the guarded wall clock, ms since 1970."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never jumps."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def steady_ms(self) -> float:
        """Return for how many ms the wall clock has been steady: no jump pending or followed."""


class WallGuard:
    """The decision which wall time to believe: a function of pairs of readings.

    Pure: both readings are given. ``offset_ms`` is the believed difference wall - boot.
    """

    def __init__(self, wall_ms: float, boot_ms: float) -> None:
        """Believe the first reading: there is nothing to compare it with."""
        self.offset_ms = wall_ms - boot_ms
        self.unsteady_at_ms = boot_ms
        """Boot time of the last sign of a jump, or of the start."""
        self._jumped_to_ms = 0.0
        self._jumped_at_ms: float | None = None

    def now_ms(self, wall_ms: float, boot_ms: float) -> int:
        """Return the time to go by, given both clocks' readings."""
        offset = wall_ms - boot_ms
        if abs(offset - self.offset_ms) < JUMP_MS_MIN:
            self.offset_ms = offset
            self._jumped_at_ms = None
        else:
            self._weigh(offset, boot_ms)
        return int(boot_ms + self.offset_ms)

    def _weigh(self, offset: float, boot_ms: float) -> None:
        self.unsteady_at_ms = boot_ms
        if self._jumped_at_ms is None or abs(offset - self._jumped_to_ms) >= JUMP_MS_MIN:
            self._jumped_at_ms = boot_ms
        elif boot_ms - self._jumped_at_ms >= JUMP_BELIEVED_AFTER_MS:
            self.offset_ms = offset
            self._jumped_at_ms = None
        self._jumped_to_ms = offset


class SystemClock:
    """The machine's clocks behind the guard. One per node, so that all of it agrees."""

    def __init__(self) -> None:
        """Take the first reading."""
        self._guard = WallGuard(time.time() * 1000, self.monotonic() * 1000)  # noqa: TID251

    def now_ms(self) -> int:
        """Return the guarded wall clock, ms since 1970."""
        wall_s, boot_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: TID251
        return self._guard.now_ms(wall_s * 1000, boot_s * 1000)

    def monotonic(self) -> float:
        """Return seconds of the boot clock: it counts a suspend, as other machines do."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)

    def steady_ms(self) -> float:
        """Return for how many ms the wall clock has been steady."""
        self.now_ms()
        return self.monotonic() * 1000 - self._guard.unsteady_at_ms

"""Time: the port, the system's clock, and the guard against jumps of the wall clock.

A node has one clock for ids, expiry, windows and the longest lives of transactions. Wall clocks jump: an operator
sets them, a virtual machine wakes up, a time server is wrong for a minute. The guard watches the difference between
the wall clock and the boot clock. The boot clock only counts up at the true rate, also through a suspend. The guard
follows small changes, which come from the time daemon. It follows a jump only after the jump has lasted for a
minute. Until then time goes on at the boot clock's rate, without the jump::

    wall - boot    ______          ______________
                         |  60 s  |                     the guard follows after a minute
                         |________|
                                   ↑ the old offset counts until here

While a jump is pending, and some minutes after it, the sweeper removes nothing: of all effects of a wrong clock,
only a removal can't be undone.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

JUMP_MS_MIN = 500
"""A change of the offset between two readings from which on it is a jump, and not slewing."""
JUMP_BELIEVED_AFTER_MS = 60_000


class Clock(Protocol):
    """All access to time."""

    def now_ms(self) -> int:
        """Return the guarded wall clock, ms since 1970."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never jumps."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def steady_ms(self) -> float:
        """Return for how many ms the wall clock has been steady: without a jump, pending or followed."""


class WallGuard:
    """Decides which wall time counts, from pairs of readings.

    It reads no clock itself: the caller gives both readings. ``offset_ms`` is the difference wall - boot that counts.
    """

    def __init__(self, wall_ms: float, boot_ms: float) -> None:
        """Accept the first reading, as there is no earlier one to compare it with."""
        self.offset_ms = wall_ms - boot_ms
        self.unsteady_at_ms = boot_ms
        """Boot time of the last sign of a jump, or of the start."""
        self._jumped_to_ms = 0.0
        self._jumped_at_ms: float | None = None

    def now_ms(self, wall_ms: float, boot_ms: float) -> int:
        """Return the guarded time for a reading of both clocks."""
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
    """The machine's clocks behind the guard. A node has one, so that all its parts use the same time."""

    def __init__(self) -> None:
        """Take the first reading."""
        self._guard = WallGuard(time.time() * 1000, self.monotonic() * 1000)  # noqa: TID251

    def now_ms(self) -> int:
        """Return the guarded wall clock, ms since 1970."""
        wall_s, boot_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: TID251
        return self._guard.now_ms(wall_s * 1000, boot_s * 1000)

    def monotonic(self) -> float:
        """Return seconds of the boot clock: it also counts during a suspend, as other machines do."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)

    def steady_ms(self) -> float:
        """Return for how many ms the wall clock has been steady."""
        self.now_ms()
        return self.monotonic() * 1000 - self._guard.unsteady_at_ms

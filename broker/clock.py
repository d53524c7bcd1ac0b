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
only a removal can't be undone. And a jump forward makes no time pass: a life or a window is over only when it has
passed by the wall clock and by the boot clock (``patient_ms``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Protocol

JUMP_MS_MIN = 500
"""A change of the offset between two readings from which on it is a jump, and not slewing."""
JUMP_BELIEVED_AFTER_MS = 60_000
JUMPS_MAX: Final = 100
"""How many jumps are remembered apart. Of more, the two oldest count as one."""


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

    def patient_ms(self, life_ms: float) -> int:
        """Return the wall clock, less its jumps forward in the last ``life_ms``.

        If ``life_ms`` have passed by this time since a moment that was stamped with ``now_ms``, they have passed by
        the boot clock too, as far as this process was there.
        """


class Jumps:
    """The jumps that a wall clock made, by the offset wall - boot before each."""

    def __init__(self) -> None:
        """Begin without a jump."""
        self._before: deque[tuple[float, float]] = deque()

    def note(self, boot_ms: float, offset_ms: float) -> None:
        """Note a jump, with the offset that counted until now."""
        self._before.append((boot_ms, offset_ms))
        if len(self._before) > JUMPS_MAX:
            (_, first), (at_ms, second) = self._before.popleft(), self._before.popleft()
            self._before.appendleft((at_ms, min(first, second)))

    def least(self, offset_ms: float, since_ms: float) -> float:
        """Return the least offset that counted after ``since_ms``, given the present one."""
        return min([offset_ms, *(before for at, before in self._before if at >= since_ms)])


class WallGuard:
    """Decides which wall time counts, from pairs of readings.

    It reads no clock itself: the caller gives both readings. ``offset_ms`` is the difference wall - boot that counts.
    """

    def __init__(self, wall_ms: float, boot_ms: float) -> None:
        """Accept the first reading, as there is no earlier one to compare it with."""
        self.offset_ms = wall_ms - boot_ms
        self.unsteady_at_ms = boot_ms
        """Boot time of the last sign of a jump, or of the start."""
        self.jumps = Jumps()
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
            self.jumps.note(boot_ms, self.offset_ms)
            self.offset_ms = offset
            self._jumped_at_ms = None
        self._jumped_to_ms = offset

    def patient_ms(self, wall_ms: float, boot_ms: float, life_ms: float) -> int:
        """Return the guarded time, less the jumps forward in the last ``life_ms``."""
        self.now_ms(wall_ms, boot_ms)
        return int(boot_ms + self.jumps.least(self.offset_ms, boot_ms - life_ms))


class SystemClock:
    """The machine's clocks behind the guard. A node has one, so that all its parts use the same time."""

    def __init__(self) -> None:
        """Take the first reading."""
        self._guard = WallGuard(time.time() * 1000, self.monotonic() * 1000)  # noqa: TID251

    def now_ms(self) -> int:
        """Return the guarded wall clock, ms since 1970."""
        wall_s, boot_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: TID251
        return self._guard.now_ms(wall_s * 1000, boot_s * 1000)

    def patient_ms(self, life_ms: float) -> int:
        """Return the guarded wall clock, less its jumps forward in the last ``life_ms``."""
        wall_s, boot_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: TID251
        return self._guard.patient_ms(wall_s * 1000, boot_s * 1000, life_ms)

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

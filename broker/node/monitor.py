"""Measuring how long single pieces of work block the event loop.

All requests of a node share one event loop. While one piece of work has the loop, or holds the interpreter's lock
in another thread, every other request waits. So no piece may take more than 20 ms. This module measures that::

    tick            due             tick
     |----10 ms------|====late=======|
                      work that blocks the loop

A tick is also late if the operating system gave the processor to other programs. That is not the node's fault. So
the module subtracts the time that the loop's thread waited for a processor, and never counts more than this process
computed. Consecutive short pieces within one iteration of the loop count as one, because no other request ran between
them.

A piece of work that begins before a tick is due counts only from the due time, so up to 10 ms are missing. A node at
rest ticks every 50 ms, because each tick wakes the processor. So up to 50 ms of the first piece of work after a rest
may be missing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from broker import logs

TICK_S: Final = 0.01
REST_TICK_S: Final = 0.05
REST_SHARE_MAX: Final = 0.05
"""A process that computes for at most this share of the time is at rest."""
LOGGED_S: Final = 0.1
"""From this duration on, the log reports it."""
LOGGED_EVERY_S: Final = 10.0
_WAITS = "/proc/thread-self/schedstat"

log = logs.get_logger()


class ClockReading(NamedTuple):
    """A reading of the clocks at one moment, in seconds.

    ``computed_s``: processor time of this process. ``waited_s``: how long the loop's thread was ready to run and
    had no processor.
    """

    at_s: float
    computed_s: float
    waited_s: float


def next_tick_s(before: ClockReading, now: ClockReading) -> float:
    """Return in how many seconds the next tick is due, by the work done since the last one."""
    computed_s, passed_s = now.computed_s - before.computed_s, now.at_s - before.at_s
    return REST_TICK_S if computed_s <= passed_s * REST_SHARE_MAX else TICK_S


def blocked_s(due_s: float, before: ClockReading, now: ClockReading) -> float:
    """Return how long the loop was blocked, in seconds, when a tick that was due at ``due_s`` comes now.

    ``before`` is the reading at the last tick.
    """
    late = now.at_s - due_s - (now.waited_s - before.waited_s)
    return max(0.0, min(late, now.computed_s - before.computed_s))


class MachineClocks:
    """The machine's clocks, for the thread that makes this object. The caller closes it."""

    def __init__(self) -> None:
        """Open the kernel's statistics of this thread; without them ``waited_s`` is always 0."""
        try:
            self._waits = os.open(_WAITS, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._waits = -1

    def __call__(self) -> ClockReading:
        """Read all three clocks. It takes 2 µs."""
        waited_ns = int(os.pread(self._waits, 96, 0).split()[1]) if self._waits >= 0 else 0
        return ClockReading(time.monotonic(), time.process_time(), waited_ns / 1e9)

    def close(self) -> None:
        """Close the kernel's statistics."""
        if self._waits >= 0:
            os.close(self._waits)
            self._waits = -1


class Monitor:
    """Measures the running event loop within a ``with`` block."""

    def __init__(self, tell: Callable[[float], None], read: Callable[[], ClockReading]) -> None:
        """Call ``tell`` at each tick with the seconds for which the loop was blocked."""
        self._tell = tell
        self._read = read
        self._before = read()
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._times = 0
        self._longest_s = 0.0
        self._log_again_s = 0.0

    def __enter__(self) -> Self:
        """Start ticking."""
        self._before = self._read()
        self._tick_in(TICK_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        """Measure once. The event loop calls this."""
        now = self._read()
        blocked = blocked_s(self._due_s, self._before, now)
        next_s = next_tick_s(self._before, now)
        self._before = now
        self._tell(blocked)
        if blocked >= LOGGED_S:
            self._times += 1
            self._longest_s = max(self._longest_s, blocked)
        if self._times and now.at_s >= self._log_again_s:
            self._log(now.at_s)
        self._tick_in(next_s)

    def _tick_in(self, seconds: float) -> None:
        self._due_s = self._before.at_s + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self.tick)

    def _log(self, now_s: float) -> None:
        log.warning(
            "event loop held: every request waited",
            longest_s=round(self._longest_s, 3),
            times=self._times,
        )
        self._times, self._longest_s = 0, 0.0
        self._log_again_s = now_s + LOGGED_EVERY_S

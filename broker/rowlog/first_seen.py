"""Ages by the clock of this process alone.

Machines' clocks differ, so a process never compares a time that another process wrote with its own time. It notes when
it first saw a thing - a claim, a lock - and counts from there. That is never longer than the thing is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from broker.clock import Clock

REMEMBERED: Final = 10_000


class FirstSeen:
    """When this process first saw each of the things that it looked at last."""

    def __init__(self, clock: Clock) -> None:
        """Have seen nothing yet."""
        self._clock = clock
        self._at: OrderedDict[Hashable, float] = OrderedDict()

    def at(self, thing: Hashable) -> float:
        """Return when this process first saw ``thing``, seconds of its monotonic clock."""
        at = self._at.setdefault(thing, self._clock.monotonic())
        self._at.move_to_end(thing)
        if len(self._at) > REMEMBERED:
            self._at.popitem(last=False)
        return at

    def ms(self, thing: Hashable) -> int:
        """Return when this process first saw ``thing``, ms since 1970, as its clock shows now."""
        return wall_ms(self._clock, self.at(thing))


def wall_ms(clock: Clock, at: float) -> int:
    """Return a time of the monotonic clock as ms since 1970, as the clock shows now."""
    return clock.now_ms() - int((clock.monotonic() - at) * 1000)


def steady_ms(clock: Clock, wall: int) -> int:
    """Return a time in ms since 1970, as the clock shows now, as ms of the monotonic clock, which never steps. 0 stays 0."""
    return wall and max(int(clock.monotonic() * 1000) + wall - clock.now_ms(), 1)

"""A queue's deadlines: who waits past its own is refused then, not when its turn comes.

Turns come as storage takes batches. When it takes its time, whoever is refused only on its turn hears of
it as late as that::

    storage   [ batch ··························································· ]
    queue          request, 2 s ──▶ refused          not: ──────────────────────▶ refused

A timer for each request would cost more than queueing it does, so a queue has one, for the earliest of its
deadlines. They mostly come in their order: then it is set anew only when it has gone off. Each time the
whole queue is looked at, so not more often than every LOOK_S, however many deadlines pass.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from broker.clock import Clock

LOOK_S: Final = 0.05
"""By so much somebody may be refused late, if others were just before."""


class Overdue:
    """Calls ``look`` when the earliest deadline is reached, or soon after; it returns the next one, infinite if none."""

    __slots__ = ("_clock", "_look", "_loop", "_timer", "due")

    def __init__(self, clock: Clock, look: Callable[[], float]) -> None:
        """Watch nothing yet."""
        self.due = math.inf
        """When (monotonic) it calls. A queue has nothing whose deadline is earlier, but for what is over."""
        self._clock = clock
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline: float) -> None:
        """Call at this deadline, if not before."""
        if deadline >= self.due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.due = deadline
        self._timer = self._loop.call_later(deadline - self._clock.monotonic(), self._called)

    def _called(self) -> None:
        self._timer, self.due = None, math.inf
        # Called a moment early, by a loop whose clock is another, it finds the same deadline again.
        self.watch(max(self._look(), self._clock.monotonic() + LOOK_S))

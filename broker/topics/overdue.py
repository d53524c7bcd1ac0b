"""Watch a queue's deadlines: refuse a request when its deadline passes, not when its turn comes.

A request's turn comes when storage has finished the batch before. If storage is slow, a refusal at that turn would
come too late::

    storage   [ batch ··························································· ]
    queue          request, 2 s ──▶ refused          not: ──────────────────────▶ refused

A timer for each request would cost more than queueing it. So a queue has one timer, for its earliest deadline.
Deadlines mostly come in order: then the timer is set again only after it has fired. Each time, ``look`` searches the
whole queue. So it runs at most every LOOK_S, even if many deadlines pass.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from broker.clock import Clock

LOOK_S: Final = 0.05
"""A refusal may be late by this much, if other requests were refused just before."""


class Overdue:
    """Calls ``look`` at the earliest deadline, or soon after. It returns the next deadline, infinity if none."""

    __slots__ = ("_clock", "_look", "_loop", "_timer", "due")

    def __init__(self, clock: Clock, look: Callable[[], float]) -> None:
        """Watch nothing yet."""
        self.due = math.inf
        """The monotonic time of the next call. At most LOOK_S after the earliest deadline in the queue."""
        self._clock = clock
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline: float) -> None:
        """Call ``look`` at this deadline or before."""
        if deadline >= self.due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.due = deadline
        self._timer = self._loop.call_later(deadline - self._clock.monotonic(), self._fire)

    def _fire(self) -> None:
        self._timer, self.due = None, math.inf
        # The loop has another clock, and may call too early: then ``look`` finds the same deadline again.
        self.watch(max(self._look(), self._clock.monotonic() + LOOK_S))

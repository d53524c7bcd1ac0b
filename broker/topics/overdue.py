"""Watch a queue's deadlines: refuse a request when its deadline passes, not when its turn comes.

A request's turn comes when storage has finished the batch before. If storage is slow, a refusal at that turn would
come too late::

    storage   [ batch ··························································· ]
    queue          request, 2 s ──▶ refused          not: ──────────────────────▶ refused

A timer for each request would cost more than queueing it. So a queue has one timer, for its earliest deadline.
Deadlines mostly come in order: then the timer is set again only after it has fired. Each time, ``look`` searches the
whole queue. So it runs at most every LOOK_S, even if many deadlines pass.

A request also waits before it queues: for the look-up of its key, or for its producer's publish before. There it has
changed nothing yet, so ``in_time`` cancels the wait at the deadline. Once its change is in progress, only the caller
stops waiting: its answer is that the outcome is unknown (``answered_in_time``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar

from broker.clock import Clock
from broker.errors import BrokerError, OutcomeUnknown, Unavailable
from broker.shield import bare

Result = TypeVar("Result")
LOOK_S: Final = 0.05
"""A refusal may be late by this much, if other requests were refused just before."""
ANSWER_S: Final = 2 * LOOK_S
"""A change whose outcome is unknown is answered so long after its deadline: a refusal comes first."""


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

    def stop(self) -> None:
        """Watch no deadline any more: the timer would keep the queue in memory."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.due = None, math.inf

    def _fire(self) -> None:
        self._timer, self.due = None, math.inf
        # The loop has another clock, and may call too early: then ``look`` finds the same deadline again.
        self.watch(max(self._look(), self._clock.monotonic() + LOOK_S))


def _late() -> BrokerError:
    return Unavailable(
        "The request's deadline passed before storage, or the transaction service, answered."
    )


def _joined_late() -> BrokerError:
    return OutcomeUnknown("The same request is in progress, and has no outcome yet.")


def unanswered() -> BrokerError:
    """Return the error of a change that is in progress at its deadline."""
    return OutcomeUnknown("The request's deadline passed before its outcome was known.")


@asynccontextmanager
async def in_time(
    clock: Clock, deadline: float | None, late: Callable[[], BrokerError] = _late
) -> AsyncIterator[None]:
    """Cancel the wait in this block at the request's deadline (monotonic seconds). The wait changes nothing.

    Raises:
        BrokerError: the error of ``late``, by default Unavailable: the deadline has passed.
    """
    left_s = math.inf if deadline is None else max(deadline - clock.monotonic(), 0.0)
    bound = asyncio.timeout(left_s if math.isfinite(left_s) else None)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise late() from bare(error)


def answered_in_time(clock: Clock, deadline: float | None) -> AbstractAsyncContextManager[None]:
    """Answer a change in time, wherever it waits. The block must be safe to cancel: what it has begun goes on.

    Raises:
        OutcomeUnknown: no refusal and no outcome came until shortly after the deadline.
    """
    return in_time(clock, None if deadline is None else deadline + ANSWER_S, unanswered)


async def joined_in_time(
    clock: Clock, deadline: float | None, work: asyncio.Future[Result]
) -> Result:
    """Return the result of another request's work that this request joins. The work goes on in any case.

    Raises:
        OutcomeUnknown: the deadline has passed, and the work may still be done.
    """
    try:
        async with in_time(clock, deadline, _joined_late):
            return await asyncio.shield(work)
    finally:
        del work  # See ``shield``.

"""Calls that another thread answers, and their deadline.

A thread that hangs in a disk call can't report that. So the event loop checks. One timer serves all calls, so a call
needs no timer of its own. There are two rules:

* *each*: a call fails when its own deadline has passed, also if others were answered meanwhile. So do reads: one
  thread may hang while another answers.
* *together*: if no call was answered for the length of the deadline, all waiting calls fail. So do writes: one thread
  makes them in order, and a write that hangs stops all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

_TICK_S: Final = 0.001


class WriteResult(NamedTuple):
    """How a call ended: with a result, or with an error."""

    future: asyncio.Future[Any]
    result: Any
    error: BaseException | None = None


class Pending:
    """The calls that wait for an answer of one or more threads."""

    def __init__(
        self, deadline_s: float, hung: Callable[[], BaseException], *, each: bool = False
    ) -> None:
        """Start without calls. Must be called on the event loop.

        Args:
            deadline_s: how long calls may wait without any answer.
            hung: called when the deadline has passed; returns the error for the calls that fail.
            each: whether each call has a deadline of its own.
        """
        self._loop = asyncio.get_running_loop()
        self._deadline_s = deadline_s
        self._hung = hung
        self._each = each
        self._waiting: dict[asyncio.Future[Any], float] = {}
        """The calls in their order, each with its deadline by the loop's clock."""
        self._answered = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self) -> asyncio.Future[Any]:
        """Add a call and return its future."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[future] = self._loop.time() + self._deadline_s
        if self._timer is None:
            self._timer = self._loop.call_later(
                self._deadline_s, self._check_deadline, self._answered
            )
        return future

    def _check_deadline(self, answered: int) -> None:
        self._timer = None
        if not self._waiting:
            return
        if (self._each or answered == self._answered) and (late := self._late()):
            error = self._hung()
            self.answer([WriteResult(future, None, error) for future in late])
        if self._each and self._waiting:
            due = next(iter(self._waiting.values()))
            self._timer = self._loop.call_at(due, self._check_deadline, self._answered)
        elif self._waiting:
            self._timer = self._loop.call_later(
                self._deadline_s, self._check_deadline, self._answered
            )

    def _late(self) -> list[asyncio.Future[Any]]:
        """Return the calls that fail now."""
        if not self._each:
            return list(self._waiting)
        # The timer may fire a tick early.
        now = self._loop.time() + _TICK_S
        return [
            future for future, _ in takewhile(lambda call: call[1] <= now, self._waiting.items())
        ]

    def answer(self, answers: Sequence[WriteResult]) -> None:
        """End calls. To be called on the event loop."""
        self._answered += 1
        for future, result, error in answers:
            self._waiting.pop(future, None)
            if future.done():
                continue  # The caller was cancelled, or the call has failed at the deadline.
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def tell(self, answers: Sequence[WriteResult], then: Callable[[], None] | None = None) -> None:
        """End calls from another thread, in the order of these calls. ``then`` is called after it."""
        # RuntimeError: the event loop is closed, and no caller is left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answer_then, answers, then)

    def _answer_then(self, answers: Sequence[WriteResult], then: Callable[[], None] | None) -> None:
        self.answer(answers)
        if then is not None:
            then()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

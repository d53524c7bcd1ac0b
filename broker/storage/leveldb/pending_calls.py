"""Calls that another thread answers, and their deadline.

A thread that hangs in a disk call can't report that. So the event loop checks: if calls wait, and no call was
answered for the length of the deadline, all waiting calls fail. One timer serves all of them, so a call needs no
timer of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class WriteResult(NamedTuple):
    """How a call ended: with a result, or with an error."""

    future: asyncio.Future[Any]
    result: Any
    error: BaseException | None = None


class Pending:
    """The calls that wait for an answer of one or more threads."""

    def __init__(self, deadline_s: float, hung: Callable[[], BaseException]) -> None:
        """Start without calls. Must be called on the event loop.

        Args:
            deadline_s: how long calls may wait without any answer.
            hung: called when the deadline has passed; returns the error for all waiting calls.
        """
        self._loop = asyncio.get_running_loop()
        self._deadline_s = deadline_s
        self._hung = hung
        self._waiting: set[asyncio.Future[Any]] = set()
        self._answered = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self) -> asyncio.Future[Any]:
        """Add a call and return its future."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        if self._timer is None:
            self._timer = self._loop.call_later(
                self._deadline_s, self._check_deadline, self._answered
            )
        return future

    def _check_deadline(self, answered: int) -> None:
        self._timer = None
        if not self._waiting:
            return
        if answered == self._answered:
            error = self._hung()
            self.answer([WriteResult(future, None, error) for future in self._waiting])
        else:
            self._timer = self._loop.call_later(
                self._deadline_s, self._check_deadline, self._answered
            )

    def answer(self, answers: Sequence[WriteResult]) -> None:
        """End calls. To be called on the event loop."""
        self._answered += 1
        for future, result, error in answers:
            self._waiting.discard(future)
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

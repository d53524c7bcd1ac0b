"""Calls that another thread answers, and their deadline.

A thread that hangs in the disk can't tell so. The event loop therefore looks: while calls wait and not one
was answered for the length of the deadline, all that wait are given up. One timer serves all of them, so a
call costs no timer of its own.
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
    """The calls that one or more threads have still to answer."""

    def __init__(self, deadline_s: float, hung: Callable[[], BaseException]) -> None:
        """Start with none. Must be called on the event loop.

        Args:
            deadline_s: how long nothing may be answered while calls wait.
            hung: called when that was so; returns the error for all that wait.
        """
        self._loop = asyncio.get_running_loop()
        self._deadline_s = deadline_s
        self._hung = hung
        self._waiting: set[asyncio.Future[Any]] = set()
        self._answered = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self) -> asyncio.Future[Any]:
        """Return the future of one more call."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        if self._timer is None:
            self._timer = self._loop.call_later(self._deadline_s, self._look, self._answered)
        return future

    def _look(self, answered: int) -> None:
        self._timer = None
        if not self._waiting:
            return
        if answered == self._answered:
            error = self._hung()
            self.answer([WriteResult(future, None, error) for future in self._waiting])
        else:
            self._timer = self._loop.call_later(self._deadline_s, self._look, self._answered)

    def answer(self, answers: Sequence[WriteResult]) -> None:
        """End calls. To be called on the event loop."""
        self._answered += 1
        for future, result, error in answers:
            self._waiting.discard(future)
            if future.done():
                continue  # Its caller was cancelled, or it was given up.
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def tell(self, answers: Sequence[WriteResult], then: Callable[[], None] | None = None) -> None:
        """End calls from another thread, in the order of such tellings; ``then`` is called after."""
        # RuntimeError: the event loop is closed, and all callers went with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told, answers, then)

    def _told(self, answers: Sequence[WriteResult], then: Callable[[], None] | None) -> None:
        self.answer(answers)
        if then is not None:
            then()

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

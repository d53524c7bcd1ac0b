"""Work that goes on if its caller is cancelled, and that several callers may await.

A task keeps its error. The error's traceback keeps the frames that it passed through, with their variables. If one of
these variables leads to the task, that is a cycle, and the request's body stays in memory until the next garbage
collection::

    task ──▶ error ──▶ traceback ──▶ frame of the caller ──▶ task
                                          └──▶ body

So no frame that awaits a task may keep a name for it. The functions of this module keep this rule for their callers: a
caller passes the task or the work itself, and names neither.

``asyncio.timeout`` breaks the rule: its frame in the traceback of a TimeoutError has the task. An error that is raised in
place of it keeps it, as its cause or its context. So it is raised ``from bare(error)``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_under_way: set[asyncio.Task[Any]] = set()
"""Keeps the tasks alive: the event loop itself holds them only weakly."""


def bare(error: OSError) -> OSError:
    """Return an error, such as a TimeoutError, without its traceback, to be the cause of another one."""
    return error.with_traceback(None)


def begin(
    work: Coroutine[Any, Any, Result], ended: Callable[[], object] | None = None
) -> asyncio.Task[Result]:
    """Begin ``work``, and call ``ended`` when it has ended. asyncio does not report its error if no caller is left."""
    task = asyncio.ensure_future(work)

    def has_ended(done: asyncio.Task[Result]) -> None:
        if ended is not None:
            ended()
        if not done.cancelled():
            done.exception()  # Retrieved here, because all callers may be gone.

    task.add_done_callback(has_ended)
    return task


async def result_of(task: asyncio.Future[Result]) -> Result:
    """Return the result of work that goes on if this caller is cancelled. Raises the error of the work.

    Call it with an expression, not with a variable of the caller's: ``await result_of(self._tasks[key])``.
    """
    try:
        return await asyncio.shield(task)
    finally:
        del task  # The error's traceback keeps this frame.


async def is_done_within(task: asyncio.Future[Any], seconds: float | None) -> bool:
    """Return whether work ends within a time. Raises the error of the work."""
    try:
        await asyncio.wait((task,), timeout=seconds)
        if task.done():
            task.result()
        return task.done()
    finally:
        del task


async def result_within(
    task: asyncio.Future[Result], seconds: float, late: Callable[[], None]
) -> Result:
    """Do as ``result_of``, and call ``late`` if the work has not ended in time. It may raise the caller's error."""
    try:
        if not await is_done_within(task, seconds if math.isfinite(seconds) else None):
            late()
        return await asyncio.shield(task)
    finally:
        del task


async def to_its_end(
    work: Coroutine[Any, Any, Result], among: set[asyncio.Task[Any]] | None = None
) -> Result:
    """Return what ``work`` returns; if the caller is cancelled, ``work`` goes on. ``among`` has the task meanwhile.

    A client that disconnects cancels its handler. A change of more than one place must not stop halfway then.
    """
    kept = _under_way if among is None else among
    task = begin(work)
    kept.add(task)
    task.add_done_callback(kept.discard)
    try:
        return await asyncio.shield(task)
    finally:
        del task


# --- A client that may go away --------------------------------------------------------------------

T = TypeVar("T")


async def unless_abandoned(
    work: Coroutine[Any, Any, T], abandoned: asyncio.Future[None]
) -> T | None:
    """Return the result of ``work``. If ``abandoned`` is done first, cancel ``work`` and return None.

    ``work`` must have no effects, since it may be cancelled at any point. It runs in the caller's task, like under
    ``asyncio.timeout``. That costs a third of a separate task with a wait for both.
    """
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    cancelling, is_over, is_abandoned = task.cancelling(), False, False

    def abandon(_: asyncio.Future[None]) -> None:
        nonlocal is_abandoned
        if not is_over:
            is_abandoned = True
            task.cancel()

    abandoned.add_done_callback(abandon)
    try:
        return await work
    except asyncio.CancelledError:
        if is_abandoned and task.uncancel() <= cancelling:
            return None
        raise
    finally:
        is_over = True
        abandoned.remove_done_callback(abandon)

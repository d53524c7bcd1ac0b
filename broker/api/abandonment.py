"""Wait for a client that may go away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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

"""Finish work even if its caller is cancelled.

A client that disconnects cancels its handler. A change of more than one place must not stop halfway then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_under_way: set[asyncio.Task[Any]] = set()
"""Keeps the tasks alive: the event loop itself holds them only weakly."""


async def to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``work`` returns; if the caller is cancelled, ``work`` goes on without it."""
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_finished)
    try:
        return await asyncio.shield(task)
    finally:
        # The task refers to its error, and the error to this frame: this breaks the reference cycle.
        del task


def _finished(task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved here, because the caller may be gone.

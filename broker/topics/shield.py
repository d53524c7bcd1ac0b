"""Work that is brought to its end though its caller goes away.

A client that hangs up cancels its handler. What changes more than one place must not stop halfway then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_under_way: set[asyncio.Task[Any]] = set()
"""The event loop itself holds tasks weakly."""


async def to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``work`` returns; if the caller is cancelled, ``work`` goes on without it."""
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_finished)
    try:
        return await asyncio.shield(task)
    finally:
        del (
            task
        )  # It has the error, the error this frame: they would wait for the collector together.


def _finished(task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # Looked at here, since the caller may be gone.

"""Waiting on behalf of a caller who may go away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless_abandoned(
    work: Coroutine[Any, Any, T], abandoned: asyncio.Future[None]
) -> T | None:
    """Return what ``work`` returns, or None, with ``work`` cancelled, once ``abandoned`` is done.

    Only for work without effects: it may be cancelled anywhere.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, abandoned), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))

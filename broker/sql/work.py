"""Pieces of work in SQL transactions of their own, for a program for asyncio, whichever engine it has.

The package sqlalchemy comes in by the extra ``sql``; nothing that every client imports needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

P = ParamSpec("P")
T = TypeVar("T")


class SqlWork:
    """Runs functions of a connection, each in one SQL transaction: committed if it returns, rolled back if it raises.

    Args:
        engine: a plain Engine, whose work is done in threads; or an AsyncEngine.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine

    async def __call__(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Carry out a piece of work. It is at its end when this returns, also if the caller is cancelled meanwhile."""
        engine = self._engine
        if isinstance(engine, Engine):
            return await _to_its_end(asyncio.to_thread(lambda: run(engine, work, *args, **kwargs)))
        async with engine.begin() as connection:
            return await connection.run_sync(lambda plain: work(plain, *args, **kwargs))


def run(
    engine: Engine,
    work: Callable[Concatenate[Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Carry out a piece of work, blocking."""
    with engine.begin() as connection:
        return work(connection, *args, **kwargs)


async def _to_its_end(working: Coroutine[Any, Any, T]) -> T:
    """Await what runs in a thread: a thread can't be cancelled, and must not be left behind."""
    task = asyncio.ensure_future(working)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise

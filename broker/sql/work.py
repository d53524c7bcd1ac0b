"""Run functions in SQL transactions of their own, from an asyncio program, with either kind of engine.

The package sqlalchemy is installed by the extra ``sql``. No module that every client imports needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, LargeBinary
from sqlalchemy.dialects.mysql import LONGBLOB
from sqlalchemy.exc import SQLAlchemyError

from broker import user_code

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

LARGE: Final = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
"""The type of a column of messages. In MySQL and MariaDB the type BLOB ends at 65,535 bytes."""

DATABASE_ERRORS: Final = (SQLAlchemyError, OSError)
"""The errors of a database. SQLAlchemy passes some on as they are, such as asyncpg's TimeoutError."""

P = ParamSpec("P")
T = TypeVar("T")


class SqlWork:
    """Runs functions, each in one SQL transaction: commit if the function returns, roll back if it raises an error.

    Args:
        engine: a plain Engine, whose functions run in threads; or an AsyncEngine.
        in_turn: run them one after the other. SQLite has one writer, and a pool has few connections.
    """

    def __init__(self, engine: Engine | AsyncEngine, *, in_turn: bool = False) -> None:
        self._engine = engine
        self._turn: AbstractAsyncContextManager[object] = (
            asyncio.Lock() if in_turn else nullcontext()
        )

    async def __call__(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function in a SQL transaction. When this returns, the function has ended, also after a cancellation.

        Raises the errors of the database, see ``Ended.checked``: a driver may raise a CancelledError of its own, too.
        """
        engine = self._engine
        async with self._turn:
            if isinstance(engine, Engine):
                ended = await _await_thread(
                    asyncio.to_thread(user_code.call, lambda: run(engine, work, *args, **kwargs))
                )
            else:
                ended = await user_code.run(
                    _run_async, engine, lambda plain: work(plain, *args, **kwargs)
                )
        try:
            return ended.checked()
        finally:
            del ended  # The error's traceback keeps this frame.


def run(
    engine: Engine,
    work: Callable[Concatenate[Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a function in a SQL transaction, blocking."""
    with engine.begin() as connection:
        return work(connection, *args, **kwargs)


async def _run_async(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    async with engine.begin() as connection:
        return await connection.run_sync(work)


async def _await_thread(working: Coroutine[Any, Any, T]) -> T:
    """Await a thread to its end, also after a cancellation: a thread can't be cancelled, and must not be left behind."""
    task = asyncio.ensure_future(working)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise

"""Each error of a function or a driver comes out of a SQL transaction as an error, and rolls it back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, text

from broker.sql.work import SqlWork
from broker.user_code import EndedOddly


class OwnEnd(BaseException):
    """An end of user code that is no Exception."""


@pytest.mark.parametrize("kind", ["engine", "async_engine"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (asyncio.CancelledError(), EndedOddly),
        (StopIteration(), RuntimeError),
        (OwnEnd(), EndedOddly),
        (ValueError("its own"), ValueError),
    ],
)
async def test_any_end_of_a_function_rolls_back(
    database: Any, kind: str, error: BaseException, told: type[Exception]
) -> None:
    engine = getattr(database, kind)()
    work = SqlWork(engine, in_turn=True)
    await work(lambda connection: connection.execute(text("CREATE TABLE things (n INTEGER)")))

    def fails(connection: Connection) -> None:
        connection.execute(text("INSERT INTO things VALUES (1)"))
        raise error

    async with asyncio.timeout(30):
        with pytest.raises(told):
            await work(fails)
        count = text("SELECT count(*) FROM things")
        assert await work(lambda connection: connection.scalar(count)) == 0
    disposed = engine.dispose()
    if disposed is not None:
        await disposed

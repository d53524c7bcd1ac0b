"""Opening a rowlog, and closing it."""

import threading
from typing import Any

import pytest

from broker.errors import BadRequest, NotFound, Unavailable
from broker.rowlog import RowLog
from tests.unit.rowlog.world import INDEX, ROW, World, virtual


class NoConnection:
    """A pool whose gateway does not answer."""

    def connection(self, timeout: float) -> Any:
        raise OSError("connection refused")


async def test_an_opening_that_failed_leaves_no_threads() -> None:
    pool: Any = NoConnection()
    log = RowLog(pool, "records", id="mq")
    with pytest.raises(Unavailable, match="connection refused"):
        await log.open()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("rowlog")]


def test_a_rowlog_without_a_way_to_its_rows_is_refused() -> None:
    for given in ({}, {"synced": True}):
        with pytest.raises(BadRequest):
            RowLog(None, "records", id="mq", **given)  # type: ignore[arg-type]


@virtual
async def test_a_rowlog_can_be_opened_again(world: World) -> None:
    log = await world.log("a")
    message = await log.put(ROW)
    await log.close()
    table = world.stored.pop(INDEX)
    with pytest.raises(NotFound):
        await log.open(make=False)
    world.stored[INDEX] = table
    await log.open(make=False)
    assert await log.open_messages(ROW) == [message]

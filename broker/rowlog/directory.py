"""Open rowlogs by their id alone: commands do not know a rowlog's table and family."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import happybase

from broker.clock import Clock, SystemClock
from broker.errors import NotFound, StorageCorrupt, Unavailable
from broker.rowlog.cell_keys import TABLE_PREFIX, check_id
from broker.rowlog.meta import Meta
from broker.rowlog.row_table import RowTable, TableError
from broker.rowlog.rowlog import RowLog
from broker.rowlog.setup import Setup
from broker.rowlog.thrift1 import Thrift1Rows
from broker.rowlog.thrift2 import Thrift2Rows

THREADS: Final = 4
TIMEOUT_MS: Final = 30_000


class Door:
    """The rows of an HBase through one gateway: Thrift-1, or Thrift-2 if ``synced``."""

    def __init__(self, address: tuple[str, int], *, synced: bool, clock: Clock) -> None:
        """Connect to nothing yet."""
        self._address = address
        self._synced = synced
        self._clock = clock
        self._pool: happybase.ConnectionPool | None = None

    async def open(self) -> RowTable:
        """Return the rows. Raises Unavailable."""
        host, port = self._address
        if self._synced:
            return Thrift2Rows([f"{host}:{port}"])
        try:
            self._pool = await asyncio.to_thread(
                happybase.ConnectionPool, THREADS, host=host, port=port, timeout=TIMEOUT_MS
            )
        except Exception as error:  # thriftpy2's errors have no common base.
            raise Unavailable(f"No Thrift-1 gateway of HBase answers at {host}:{port}.") from error
        return Thrift1Rows(self._pool, self._clock, threads=THREADS)

    def close(self) -> None:
        """Close the pool's connections, for which happybase has no call."""
        while self._pool is not None and not self._pool._queue.empty():  # noqa: SLF001
            self._pool._queue.get_nowait().close()  # noqa: SLF001


@asynccontextmanager
async def rows_at(address: tuple[str, int], *, synced: bool) -> AsyncIterator[RowTable]:
    """Give the rows of an HBase through the gateway at ``address``. Raises Unavailable."""
    door = Door(address, synced=synced, clock=SystemClock())
    rows = await door.open()
    try:
        yield rows
    except TableError as error:
        raise Unavailable(f"HBase does not answer: {error}.") from error
    finally:
        await rows.close()
        door.close()


async def all_setups(rows: RowTable) -> tuple[list[Setup], list[str]]:
    """Return the setups of all rowlogs, and why others can't be read. Raises TableError, Unavailable."""
    found, problems = list[Setup](), list[str]()
    for name in await rows.tables():
        if not name.startswith(TABLE_PREFIX.encode()):
            continue
        try:
            found.append(await Meta(rows, name, SystemClock()).fresh())
        except (NotFound, StorageCorrupt) as error:
            problems.append(f"{name.decode(errors='backslashreplace')}: {error.message}")
    return found, problems


@asynccontextmanager
async def opened(rows: RowTable, name: str, zookeeper: Sequence[str] = ()) -> AsyncIterator[RowLog]:
    """Give the rowlog of an id.

    Raises:
        NotFound: there is no such rowlog.
        Unavailable: HBase or ZooKeeper does not answer.
    """
    table = (TABLE_PREFIX + check_id(name)).encode()
    setup = await Meta(rows, table, SystemClock()).find()
    log = RowLog(
        None,
        setup.table,
        id=setup.id,
        family=setup.family,
        log_byte=setup.log_byte,
        rows=rows,
        zookeeper=zookeeper,
    )
    await log.open(make=False)
    try:
        yield log
    finally:
        await log.close()

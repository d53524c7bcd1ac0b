"""Rows through happybase: Thrift-1, with the user's own ``ConnectionPool``.

happybase blocks, so each call runs in a thread of this object, and the event loop waits for it. happybase has no
``checkAndPut`` (of one cell), so that call uses the Thrift client of happybase's connection.

**A write is as durable as HBase makes it for Thrift-1: in the memory of the datanodes, never synced to disk.** The
gateway sets SYNC_WAL for every call, and ignores the table's own setting. A write survives a killed process, but not a
power cut of all replicas. ``synced=True`` uses Thrift-2 instead.

A gateway closes a connection that was idle for a minute, and does not announce that. A write into such a connection has
an unknown outcome. So this module opens a connection again before it uses one that was idle for half a minute.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import happybase
from happybase.batch import Mutation
from happybase.pool import NoConnectionsAvailable

from broker.clock import Clock
from broker.errors import Unavailable
from broker.rowlog.row_table import (
    Cells,
    Guard,
    NotWritten,
    TableError,
    WriteUnknown,
    is_family,
)

Result = TypeVar("Result")

IDLE_S: Final = 30.0
POOL_S: Final = 10.0
"""How long a call waits for a connection of the pool."""
SCAN_ROWS: Final = 500


class Thrift1Rows:
    """Implements RowTable over a pool of happybase connections, which stays the caller's."""

    changes_together = False

    def __init__(self, pool: happybase.ConnectionPool, clock: Clock, *, threads: int = 8) -> None:
        """Make up to ``threads`` calls at once. Give as many as the pool has connections."""
        self._pool = pool
        self._clock = clock
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rowlog")
        self._used: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    async def _do(self, work: Callable[[Any], Result], *, again: bool) -> Result:
        """Run ``work(connection)`` in a thread. If ``again``, repeat it once after an unknown outcome."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._blocking, work)
        except WriteUnknown:
            if not again:
                raise
        return await loop.run_in_executor(self._threads, self._blocking, work)

    def _blocking(self, work: Callable[[Any], Result]) -> Result:
        began = False
        try:
            with self._pool.connection(timeout=POOL_S) as connection:
                self._freshen(connection)
                began = True
                try:
                    result = work(connection)
                except BaseException:
                    connection.close()  # The pool replaces it by a new one.
                    raise
                self._used[connection] = self._clock.monotonic()
                return result
        except NoConnectionsAvailable as error:
            raise NotWritten("all connections of the pool are in use") from error
        except TableError:
            raise
        except Exception as error:  # thriftpy2's errors have no common base.
            kind = WriteUnknown if began else NotWritten
            raise kind(f"HBase's Thrift-1 gateway: {_told(error)}") from error

    def _freshen(self, connection: Any) -> None:
        used = self._used.get(connection)
        if used is None or self._clock.monotonic() - used > IDLE_S:
            connection.close()
            connection.open()

    async def put(self, table: bytes, rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        """Put cells."""

        def work(connection: Any) -> None:
            with connection.table(table).batch() as batch:
                for row, cells in rows:
                    batch.put(row, cells)

        await self._do(work, again=False)

    async def change(
        self,
        table: bytes,
        row: bytes,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        guard: Guard | None,
    ) -> bool:
        """Raise Unavailable: Thrift-1 can't do this in one step."""
        del table, row, puts, deletes, guard
        raise Unavailable("Thrift-1 can't put, delete and compare in one step; use synced=True.")

    async def check_and_put(
        self, table: bytes, row: bytes, column: bytes, expected: bytes, value: bytes
    ) -> bool:
        """Compare and set one cell."""

        def work(connection: Any) -> bool:
            mutation = Mutation(column=column, value=value)
            named = connection.table(table).name
            # None means, as an empty value does: the cell is absent or empty.
            return bool(
                connection.client.checkAndPut(named, row, column, expected or None, mutation, {})
            )

        return await self._do(work, again=False)

    async def increment(self, table: bytes, row: bytes, column: bytes, by: int = 1) -> int:
        """Raise a counter. After a lost answer the repeated call leaves a gap."""
        return int(
            await self._do(lambda each: each.table(table).counter_inc(row, column, by), again=True)
        )

    async def get(
        self, table: bytes, rows: Sequence[bytes], columns: Sequence[bytes]
    ) -> dict[bytes, Cells]:
        """Return rows."""

        def work(connection: Any) -> dict[bytes, Cells]:
            there = connection.table(table)
            if len(rows) == 1:
                found = there.row(rows[0], columns=_named(columns))
                return {rows[0]: dict(found)} if found else {}
            return {row: dict(cells) for row, cells in there.rows(list(rows), _named(columns))}

        return await self._do(work, again=True)

    async def scan(
        self,
        table: bytes,
        start: bytes,
        stop: bytes,
        columns: Sequence[bytes],
        *,
        limit: int,
        qualifier_prefix: bytes = b"",
    ) -> list[tuple[bytes, Cells]]:
        """Return rows in order."""
        chosen = _prefix_filter(qualifier_prefix) if qualifier_prefix else None

        def work(connection: Any) -> list[tuple[bytes, Cells]]:
            scanned = connection.table(table).scan(
                row_start=start,
                row_stop=stop or None,
                columns=_named(columns),
                filter=chosen,
                batch_size=min(limit, SCAN_ROWS),
                limit=limit,
            )
            return [(row, dict(cells)) for row, cells in scanned]

        return await self._do(work, again=True)

    async def delete(self, table: bytes, rows: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        """Delete columns. A repeated deletion does no harm, and a lost one is repaired later."""

        def work(connection: Any) -> None:
            with connection.table(table).batch() as batch:
                for row, columns in rows:
                    batch.delete(row, list(columns))

        await self._do(work, again=True)

    async def make_table(self, table: bytes, family: bytes, splits: Sequence[bytes]) -> bool:
        """Make a table of one region: Thrift-1 can't pre-split."""
        del splits

        def work(connection: Any) -> bool:
            if table in connection.tables():
                return False
            connection.create_table(table, {family.decode(): {"max_versions": 1}})
            return True

        return await self._do(work, again=True)

    async def region_starts(self, table: bytes) -> list[bytes]:
        """Return the first key of each region."""
        found = await self._do(lambda connection: connection.table(table).regions(), again=True)
        return sorted({b"", *(each["start_key"] for each in found)})

    async def tables(self) -> list[bytes]:
        """Return the names of all tables."""
        return sorted(await self._do(lambda connection: connection.tables(), again=True))

    async def close(self) -> None:
        """End the threads after their current calls."""
        await asyncio.to_thread(self._threads.shutdown)


def _named(columns: Sequence[bytes]) -> list[bytes]:
    """Return columns in Thrift-1's form: it takes ``family:`` for the column without a name, ``family`` for all."""
    # A qualifier may end with the byte of ":", too: the families alone lose it.
    return [each[:-1] if is_family(each) else each for each in columns]


def _prefix_filter(prefix: bytes) -> bytes:
    return b"ColumnPrefixFilter('%b')" % prefix.replace(b"'", b"''")


def _told(error: Exception) -> str:
    """Return the text of an error: str() of some errors of thriftpy2 raises an error itself."""
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "no answer in time"
    message = getattr(error, "message", None)
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    return (text or repr(error.args)).partition("\n")[0]

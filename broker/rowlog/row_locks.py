"""Row locks: one cell of the row, taken by compare-and-set, for as long as a put takes.

The value is Lily's: the time at which the lock was taken, and four random bytes. A process that has seen one value for
the lock's time-out, by its own clock, may take the lock over. The guarantee depends on the table:

* Thrift-2, memory: the put compares the lock's cell in the same step. A holder that lost its lock can't write.
* Thrift-1 can't compare a cell in a put. A holder sends no put in the last LATE_MS of its lock, by its own clock. A put
  that was sent before and arrives more than LATE_MS later is written, after the put of the next holder. So a holder
  does not release the lock while its put may be in flight: the lock ends with its time-out.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker.clock import Clock
from broker.errors import OutcomeUnknown
from broker.rowlog.cells import encode_permit
from broker.rowlog.first_seen import FirstSeen
from broker.rowlog.refusals import RowLocked
from broker.rowlog.row_table import Guard, NotWritten, RowTable, TableError
from broker.rowlog.rows import Rows
from broker.rowlog.setup import Settings

PAUSE_S: Final = 0.02
LATE_MS: Final = 3_000
"""How long before its end a lock becomes useless for a put that can't compare it."""


class Permit:
    """A lock that this process holds on a row."""

    def __init__(self, guard: Guard, good_until: float) -> None:
        """Be valid until a time of the monotonic clock, seconds."""
        self.guard = guard
        self.good_until = good_until
        self.is_used = False
        """True once a put that can't compare the lock was sent."""


class RowLocks:
    """The locks of one rowlog."""

    def __init__(self, table: RowTable, rows: Rows, clock: Clock) -> None:
        """Keep locks in the lock cells that ``rows`` names."""
        self._table = table
        self._rows = rows
        self._clock = clock
        self._seen = FirstSeen(clock)

    @asynccontextmanager
    async def locked(self, row: bytes, settings: Settings) -> AsyncIterator[Permit]:
        """Hold the lock on a row.

        Raises:
            RowLocked: others held it for a whole lock time-out, or the table does not answer.
        """
        permit = await self._take(row, settings)
        in_flight = False
        try:
            yield permit
        except (OutcomeUnknown, asyncio.CancelledError):
            in_flight = permit.is_used
            raise
        finally:
            if not in_flight:
                await self._release(row, permit)

    async def _take(self, row: bytes, settings: Settings) -> Permit:
        column = self._rows.columns.lock
        timeout_s = settings.lock_timeout_ms / 1000
        deadline: float | None = None
        while True:
            began = self._clock.monotonic()
            value = encode_permit(self._clock.now_ms(), secrets.token_bytes(4))
            try:
                there = await self._holder(row, column)
                now = self._clock.monotonic()
                free_at = self._seen.at((row, there)) + timeout_s if there else now
                deadline = deadline or max(free_at, now + timeout_s)
                if free_at <= now and await self._swap(row, column, there, value):
                    return Permit(Guard(column, value), began + timeout_s)
            except TableError as error:
                raise RowLocked(f"The lock on a row can't be had: {error}.") from error
            if now >= deadline:
                raise RowLocked("Another has the lock on this row.")
            await self._clock.sleep(PAUSE_S)

    async def _holder(self, row: bytes, column: bytes) -> bytes:
        found = await self._table.get(self._rows.table, [row], [column])
        return found.get(row, {}).get(column, b"")

    async def _swap(self, row: bytes, column: bytes, expected: bytes, value: bytes) -> bool:
        try:
            done = await self._table.check_and_put(self._rows.table, row, column, expected, value)
        except NotWritten:
            raise
        except TableError:
            done = False
        return done or await self._holder(row, column) == value

    async def _release(self, row: bytes, permit: Permit) -> None:
        column, value = permit.guard
        try:
            await self._table.check_and_put(self._rows.table, row, column, value, b"")
        except TableError:
            return  # The lock ends with its time-out.

    def check(self, permit: Permit) -> None:
        """Raise RowLocked if a put that can't compare the lock might arrive after its end."""
        if self._clock.monotonic() + LATE_MS / 1000 > permit.good_until:
            raise RowLocked("The lock on this row is near its end; nothing was written.")

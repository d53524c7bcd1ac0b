"""Put messages: draw a number, add the index entries, then change the row in one atomic step.

::

    1  sequence number    atomic increment in the row
    2  index entries      one for each subscription, in one call
    3  the row            the user's cells, payload, data and state: one atomic put
    4  wake-up

A crash after 2 leaves entries without a message: a processor removes them later. After 3 the message is complete. The
puts of one process into one row run one after the other, so messages appear in the order of their numbers. With row
locks this also holds for the puts of several processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from broker.clock import Clock
from broker.errors import BadRequest, BodyTooLarge, OutcomeUnknown, Unavailable
from broker.rowlog.batcher import Gathering
from broker.rowlog.cell_keys import DATA, PAYLOAD, STATE, MessageId
from broker.rowlog.cells import encode_state
from broker.rowlog.counters import Figures
from broker.rowlog.execution_state import fresh
from broker.rowlog.index import Index, entries_for
from broker.rowlog.meta import Meta
from broker.rowlog.refusals import RowLocked
from broker.rowlog.ring import Ring
from broker.rowlog.row_locks import Permit, RowLocks
from broker.rowlog.row_table import NotWritten, RowTable, TableError
from broker.rowlog.rows import Message, Rows
from broker.rowlog.setup import Setup
from broker.rowlog.wakeups import Wakeups

DATA_BYTES_MAX: Final = 64 * 1024
_working_off: ContextVar[frozenset[tuple[int, bytes]]] = ContextVar(
    "working_off", default=frozenset()
)


class Put(NamedTuple):
    """One message to put, and the row's change: values by ``family:qualifier``; None deletes the column."""

    row: bytes
    cells: Mapping[bytes, bytes | None] = {}
    payload: bytes = b""
    data: bytes = b""
    subscriptions: Collection[str] | None = None
    """For these subscriptions alone; None: for all whose filter takes the message."""


@dataclass
class Parts:
    """The parts of a rowlog that puts use."""

    rowlog: str
    table: RowTable
    rows: Rows
    index: Index
    meta: Meta
    locks: RowLocks
    wakeups: Wakeups
    figures: Figures
    clock: Clock


WorkOff = Callable[[bytes], Awaitable[None]]
"""Works off the open messages of a row. Raises MessagesOpen."""


class Putting:
    """Puts messages of one rowlog."""

    def __init__(self, parts: Parts, work_off: WorkOff) -> None:
        """Use the parts. ``work_off`` is called before a change if the setup says ``work_off_first``."""
        self._parts = parts
        self._work_off = work_off
        self._gathering = Gathering(parts.table, parts.rows.table)
        self._turns: dict[bytes, asyncio.Lock] = {}
        self._users: Counter[bytes] = Counter()
        self._ring: tuple[list[int], Ring] = ([0], Ring([0]))

    async def put(self, put: Put) -> Message | None:
        """Put one message.

        Raises:
            NotFound: a named subscription is unknown.
            BadRequest, BodyTooLarge: the message can't be put.
            MessagesOpen, RowLocked, Unavailable: nothing was written.
            OutcomeUnknown: the row may have been changed, or may be changed later.
        """
        parts = self._parts
        if (id(self), put.row) in _working_off.get():
            raise BadRequest("A listener can't change the row whose messages are being worked off.")
        async with self._turn(put.row):
            setup = await parts.meta.young()
            names = put.subscriptions
            if names and not set(names) <= {each.id for each in setup.current}:
                setup = await parts.meta.fresh()
            names = [each.id for each in setup.wanted(put.row, put.data, names)]
            self._check(put, setup)
            message = await self._put(put, names, setup)
        if message is not None:
            parts.figures.add("puts")
            if setup.settings.enable_notify:
                for name in names:
                    parts.wakeups.wake(name, setup.settings.notify_delay_ms)
        return message

    async def _put(self, put: Put, names: list[str], setup: Setup) -> Message | None:
        async with self._lock(put.row, setup) as permit:
            if setup.settings.work_off_first:
                working = _working_off.set(_working_off.get() | {(id(self), put.row)})
                try:
                    await self._work_off(put.row)
                finally:
                    _working_off.reset(working)
            return await self._write(put, names, permit, setup)

    def _check(self, put: Put, setup: Setup) -> None:
        if not put.row:
            raise BadRequest("A row's key has one byte at least.")
        if len(put.payload) > setup.settings.payload_bytes_max or len(put.data) > DATA_BYTES_MAX:
            raise BodyTooLarge(
                f"A payload has at most {setup.settings.payload_bytes_max} bytes "
                f"(payload_bytes_max), data at most {DATA_BYTES_MAX}."
            )
        reserved = self._parts.rows.columns
        own = reserved.family + b":" + bytes([reserved.log_byte])
        for column in put.cells:
            if b":" not in column or column.startswith(own):
                raise BadRequest(f"{column!r} is no column of yours: family:qualifier.")
        if None in put.cells.values() and not self._parts.table.changes_together:
            raise BadRequest(
                "Thrift-1 can't delete columns in the step that puts others: "
                "mark the row as deleted by a cell, or use synced=True (Thrift-2)."
            )

    @asynccontextmanager
    async def _turn(self, row: bytes) -> AsyncIterator[None]:
        self._users[row] += 1
        try:
            async with self._turns.setdefault(row, asyncio.Lock()):
                yield
        finally:
            self._users[row] -= 1
            if not self._users[row]:
                del self._users[row], self._turns[row]

    @asynccontextmanager
    async def _lock(self, row: bytes, setup: Setup) -> AsyncIterator[Permit | None]:
        if not setup.settings.row_locks:
            yield None
            return
        async with self._parts.locks.locked(row, setup.settings) as permit:
            yield permit

    async def _write(
        self, put: Put, names: list[str], permit: Permit | None, setup: Setup
    ) -> Message | None:
        parts = self._parts
        cells = {column: value for column, value in put.cells.items() if value is not None}
        gone = [column for column, value in put.cells.items() if value is None]
        if not names:
            if put.cells:
                await self._change(put.row, cells, gone, permit, None)
            return None
        columns = parts.rows.columns
        try:
            seq = await parts.table.increment(parts.rows.table, put.row, columns.sequence)
            message = MessageId(seq, parts.clock.now_ms())
            entries = entries_for(self._ring_of(setup), names, put.row, message, put.data)
            await parts.index.add(entries)
        except TableError as error:
            raise Unavailable(f"Nothing was put: {error}.") from error
        cells[columns.of(PAYLOAD, message)] = put.payload
        if put.data:
            cells[columns.of(DATA, message)] = put.data
        cells[columns.of(STATE, message)] = encode_state(fresh(message.timestamp, names))
        await self._change(put.row, cells, gone, permit, message)
        return Message(parts.rowlog, put.row, *message, put.data, put.payload)

    def _ring_of(self, setup: Setup) -> Ring:
        if self._ring[0] != setup.writable:
            self._ring = (setup.writable, Ring(setup.writable))
        return self._ring[1]

    async def _change(
        self,
        row: bytes,
        cells: Mapping[bytes, bytes],
        gone: list[bytes],
        permit: Permit | None,
        message: MessageId | None,
    ) -> None:
        """Change the row in one step.

        Raises RowLocked, Unavailable: nothing was written. OutcomeUnknown.
        """
        parts = self._parts
        together = bool(gone) or (permit is not None and parts.table.changes_together)
        change = partial(self._gathering.put, [(row, cells)])
        try:
            if together:
                guard = None if permit is None else permit.guard
                made = await parts.table.change(parts.rows.table, row, cells, gone, guard)
                if not made:
                    # The gateway may have repeated a call that was made, and its message may be processed already.
                    await self._resolve(row, message, RowLocked("the lock on the row was lost"))
                return
            if permit is not None:
                parts.locks.check(permit)
                permit.is_used = True
            await change()
        except NotWritten as error:
            raise Unavailable(f"The row was not changed: {error}.") from error
        except TableError as error:
            await self._resolve(row, message, error)

    async def _resolve(self, row: bytes, message: MessageId | None, error: Exception) -> None:
        """Return if the message is in the row: then the row was changed. Else raise OutcomeUnknown."""
        try:
            if message is not None and await self._parts.rows.one(row, message) is not None:
                return
        except TableError:
            pass
        raise OutcomeUnknown(f"Whether the row was changed is not known: {error}.") from error

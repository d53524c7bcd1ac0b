"""Removing rows from tables, in slices.

Only what no reader can be shown any more goes: rows strictly below a *confirmed* floor, rows below the
pointer whose own life is over, what belongs to payload logs that were declared dropped, and to older
generations. A slice that was answered from an old state finds less to remove, never something else.

A deleted row stays in HBase's way until a compaction: a scan from the first key would pass all rows that
went before, and a round over many rows would take time in the square of their number. So each slice
begins where the one before ended. Above the floor only what is new is looked at, and what is due (lives.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.model import ROW_ID_BYTES, RowId, TopicId, timestamp_of
from broker.storage.cells import Cells, Scanned, Table
from broker.storage.control import State
from broker.storage.holds import TableHold
from broker.storage.keys import (
    IDEMPOTENCY,
    OLDER_RANGES,
    PRODUCER,
    LogId,
    control_key,
    generation_prefix,
    log_prefix,
    payload_controls_prefix,
    prefix_end,
    row_key,
    side_prefix,
)
from broker.storage.old_reading import SCAN_BYTES_MAX, LogReader
from broker.storage.ports import Swept
from broker.storage.retrying import Retrying
from broker.storage.visibility import EPOCH, LIFETIME, judged

SIDE_KEYS_MAX = 10_000
"""Side rows that one slice looks at."""


class LogSweeper:
    """Removes what is over."""

    def __init__(self, cells: Cells, retrying: Retrying, reader: LogReader) -> None:
        """Remove from ``cells``."""
        self._cells = cells
        self._retrying = retrying
        self._reader = reader

    async def log(
        self, hold: TableHold, expired_before_ms: int, rows_max: int, side_before: RowId
    ) -> Swept:
        """Remove a slice of a message log, as LogStore.sweep_log does."""
        hold.check()
        if not hold.lives.is_under_way:
            floor = row_key(hold.log, hold.control.floor)
            below = await self._range(Table.MESSAGES, log_prefix(hold.log), floor, rows_max)
            if below.more or below.rows:
                return below._replace(more=True)
            hold.lives.begin()
        swept, finished = await self._short_lived(hold, expired_before_ms, rows_max)
        if not finished:
            return Swept(swept, more=True)
        sides = await self._side_rows(hold, rows_max - swept, side_before)
        if not sides.more:
            hold.lives.end()
        return Swept(swept + sides.rows, sides.more)

    async def _short_lived(
        self, hold: TableHold, expired_before_ms: int, rows_max: int
    ) -> tuple[int, bool]:
        """Look at one stretch of the log; return how many went, and whether the end was reached."""
        log, lives = hold.log, hold.lives
        held = row_key(log, hold.control.floor), row_key(log, hold.control.pointer)
        asked = lives.next(expired_before_ms, *held)
        if asked is None:
            return 0, True
        control = await self._reader.whole(log, hold.control)
        looked = await self._lives(*asked, max(rows_max, 1))
        over: list[bytes] = []
        ends_ms: list[int] = []
        for key, columns in looked.rows:
            row = judged(control, key[-ROW_ID_BYTES:], columns)
            if row is None or row.lifetime_ms is None:
                continue
            end_ms = timestamp_of(row.id) + row.lifetime_ms
            if end_ms < expired_before_ms:
                over.append(key)
            else:
                ends_ms.append(end_ms)
        await self._delete(Table.MESSAGES, over)
        due_ms = min(ends_ms, default=None)
        lives.looked(asked, [row.key for row in looked.rows], more=looked.more, due_ms=due_ms)
        return len(over), lives.next(expired_before_ms, *held) is None

    async def _lives(self, start: bytes, stop: bytes, rows_max: int) -> Scanned:
        """Scan what tells of rows whether they count and how long they live: no payloads."""
        return await self._retrying.read(
            lambda: self._cells.scan(
                Table.MESSAGES,
                start,
                stop,
                rows_max=rows_max,
                bytes_max=SCAN_BYTES_MAX,
                columns=(EPOCH, LIFETIME),
            )
        )

    async def _side_rows(self, hold: TableHold, rows_max: int, before: RowId) -> Swept:
        """Look at one stretch of the side rows, which lie in the order of their keys' hashes."""
        before = min(before, hold.control.pointer)
        prefix = side_prefix(hold.log, IDEMPOTENCY)
        start, stop = max(hold.sides_swept_to, prefix), prefix_end(prefix)
        keys = await self._keys(Table.MESSAGES, start, stop, SIDE_KEYS_MAX)
        old = [key for key in keys if key[-ROW_ID_BYTES:] < before]
        await self._delete(Table.MESSAGES, old[:rows_max])
        if len(old) > rows_max:
            hold.sides_swept_to = old[rows_max]
        else:
            hold.sides_swept_to = keys[-1] + b"\0" if len(keys) == SIDE_KEYS_MAX else b""
        return Swept(len(old[:rows_max]), more=bool(hold.sides_swept_to))

    async def payloads(self, topic_hold: TableHold, log: LogId, rows_max: int) -> Swept:
        """Remove a slice of a dropped payload log, its side rows at the end."""
        topic_hold.check()
        control = await self._reader.head(log)
        if control is None or control.state is not State.DROPPED:
            return Swept(0, more=False)
        prefixes = [log_prefix(log), side_prefix(log, IDEMPOTENCY)]
        return await self._prefixes(Table.PAYLOADS, prefixes, rows_max)

    async def forget(self, topic_hold: TableHold, log: LogId) -> None:
        """Remove the control row of a dropped payload log without rows."""
        topic_hold.check()
        control = await self._reader.head(log)
        if control is None or control.state is not State.DROPPED:
            return
        prefix = log_prefix(log)
        if not await self._keys(Table.PAYLOADS, prefix, prefix_end(prefix), 1):
            await self._delete(Table.PAYLOADS, [control_key(log)])

    async def generations(self, topic: TopicId, below: int, rows_max: int) -> Swept:
        """Remove a slice of the generations 1 to ``below`` - 1, as LogStore.sweep_generations."""
        ranges = [(Table.MESSAGES, generation_prefix(topic, 1), generation_prefix(topic, below))]
        ranges.append((Table.PAYLOADS, *ranges[0][1:]))
        for table in Table:
            for kind in (IDEMPOTENCY, OLDER_RANGES, PRODUCER):
                oldest = side_prefix(LogId(topic, 1), kind)
                newest = side_prefix(LogId(topic, below), kind)
                ranges.append((table, oldest, newest))
        controls = payload_controls_prefix(topic, 1), payload_controls_prefix(topic, below)
        ranges.append((Table.PAYLOADS, *controls))
        swept = 0
        for table, start, stop in ranges:
            if start >= stop:
                continue
            piece = await self._range_from_end(table, start, stop, rows_max - swept)
            swept += piece.rows
            if piece.more or swept >= rows_max:
                return Swept(swept, more=True)
        return Swept(swept, more=False)

    async def _prefixes(self, table: Table, prefixes: Sequence[bytes], rows_max: int) -> Swept:
        swept = 0
        for prefix in prefixes:
            piece = await self._range_from_end(table, prefix, prefix_end(prefix), rows_max - swept)
            swept += piece.rows
            if piece.more or swept >= rows_max:
                return Swept(swept, more=True)
        return Swept(swept, more=False)

    async def _range(self, table: Table, start: bytes, stop: bytes, rows_max: int) -> Swept:
        """Remove the first rows of a range."""
        found = await self._keys(table, start, stop, rows_max + 1)
        keys = found[:rows_max]
        await self._delete(table, keys)
        return Swept(len(keys), more=len(found) > rows_max)

    async def _range_from_end(
        self, table: Table, start: bytes, stop: bytes, rows_max: int
    ) -> Swept:
        """Remove the last rows of a range, the very last one before the others."""
        found = await self._keys(table, start, stop, rows_max + 1, reverse=True)
        keys = found[:rows_max]
        await self._delete(table, keys[:1])
        await self._delete(table, keys[1:])
        return Swept(len(keys), more=len(found) > rows_max)

    async def _keys(
        self, table: Table, start: bytes, stop: bytes, rows_max: int, *, reverse: bool = False
    ) -> list[bytes]:
        return await self._retrying.read(
            lambda: self._cells.keys(table, start, stop, rows_max=rows_max, reverse=reverse)
        )

    async def _delete(self, table: Table, keys: Sequence[bytes]) -> None:
        # A delete that failed half-way is found again by the next slice, so repeating it is enough.
        if keys:
            await self._retrying.read(lambda: self._cells.delete(table, keys))

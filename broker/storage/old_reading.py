"""Reading a log from tables: the control row first, then rows, judged by it.

What answers may be old: a server that lost the region and does not know it yet. Old rows under a newer
control row would be a hole, so an answer must prove itself. Batches are confirmed in order (holds.py), so a
state of the table that holds a counting row holds all that count below it. Hence the rule:

    **an answer is complete up to the last counting row in it, and no further.**

A scan therefore reads on until it meets a counting row at or above the end of what it was asked for, at
the latest the row at the pointer, which is never removed. If it does not meet that, what answered is old:
the control row is read again, and the rows. Backwards a scan begins at such a row.

Two things an old answer hides without a trace, because no row above them need follow: the mark of a
rollback (the row is there, as it was before) and a side row. Only a server that lost its region and still
answers, after a rollback or a keyed request was acknowledged elsewhere, can show that; where it matters,
operators keep the time that a region server may live without its session shorter than the failover.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from broker import guards
from broker.errors import OutcomeUnknown, Unavailable
from broker.model import ROW_ID_BYTES, RowId, row_after
from broker.storage.cells import Cells, CellsError, RowCells, Scanned, Table
from broker.storage.chain import read_control
from broker.storage.control import Control, EpochRange, State, is_older
from broker.storage.controlvalue import decode_ranges
from broker.storage.keys import (
    OLDER_RANGES,
    LogId,
    control_key,
    prefix_end,
    row_key,
    side_prefix,
)
from broker.storage.ports import Row, Rows, SideRow
from broker.storage.retrying import Retrying
from broker.storage.visibility import EPOCH, VALUE, judged, judged_side

SCAN_ROWS_MAX = 1024
SCAN_BYTES_MAX = 8 << 20
"""What is asked for at once."""
ROW_OVERHEAD_BYTES = 128
"""About what a row weighs beside its payload."""
SKIPPED_ROWS_MAX = (1 << 13, 1 << 18)
"""How far a scan looks, first and at most, for the end of a stretch of rows that do not count."""
NEWEST_MAX = 10_000


def table_of(log: LogId) -> Table:
    """Return the table of a log's rows, side rows and control row."""
    return Table.MESSAGES if log.number is None else Table.PAYLOADS


class Stale(CellsError):
    """What answered shows an earlier state than the control row: read again."""


class Newest:
    """The newest control rows that this process has seen: what it reads never goes back.

    An older one would only show a shorter log; but who leads a log, or has read it further, must not
    take that for the whole. Only the logs used last are remembered.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._controls: OrderedDict[tuple[Table, bytes], Control] = OrderedDict()

    def note(self, table: Table, key: bytes, control: Control) -> None:
        """Remember a control row, unless a newer one is known."""
        place = (table, key)
        known = self._controls.get(place)
        if known is None or not is_older(control, known):
            self._controls[place] = control
        self._controls.move_to_end(place)
        if len(self._controls) > NEWEST_MAX:
            self._controls.popitem(last=False)

    def is_old(self, table: Table, key: bytes, seen: Control | None) -> bool:
        """Whether an answer is older than what was seen before.

        The control row of a payload log may go, a message log's never.
        """
        known = self._controls.get((table, key))
        if known is None:
            return False
        return table is Table.MESSAGES if seen is None else is_older(seen, known)


class Limits(NamedTuple):
    """The bounds of one page."""

    rows_max: int
    bytes_max: int


class LogReader:
    """Reads logs; needs no hold."""

    def __init__(self, cells: Cells, retrying: Retrying) -> None:
        """Read from ``cells``."""
        self._cells = cells
        self._retrying = retrying
        self.newest = Newest()
        self.stale_answers = 0
        """How many answers were refused as old."""

    async def head(self, log: LogId) -> Control | None:
        """Return the log's control row. Raises Unavailable, StorageCorrupt."""
        return await self._retrying.read(lambda: self._head(log))

    async def _head(self, log: LogId) -> Control | None:
        table, key = table_of(log), control_key(log)
        seen = await read_control(self._cells, table, key)
        if self.newest.is_old(table, key, seen):
            self.stale_answers += 1
            raise Stale("storage answers with an earlier control row than before")
        if seen is not None:
            self.newest.note(table, key, seen)
        return seen

    async def whole(self, log: LogId, control: Control) -> Control:
        """Return ``control`` with the entries of its side rows in front of its own."""
        if not control.older:
            return control
        return await self._retrying.read(lambda: self._whole(log, control))

    async def _whole(self, log: LogId, control: Control) -> Control:
        entries: list[EpochRange] = []
        for token in control.older:
            key = side_prefix(log, OLDER_RANGES) + token
            columns = await self._cells.get(table_of(log), key)
            if columns is None:
                self.stale_answers += 1
                raise Stale("a side row that the control row names is not there")
            entries.extend(decode_ranges(columns[VALUE].value))
        return control._replace(ranges=(*entries, *control.ranges))

    async def page(
        self, log: LogId, after: RowId, through: RowId, limits: Limits, *, reverse: bool
    ) -> Rows:
        """Return a page, as LogStore.scan does."""
        pauses = self._retrying.pauses(self._retrying.deadline())
        while True:
            try:
                control = await self._head(log)
                return await self.page_by(control, log, after, through, limits, reverse=reverse)
            except CellsError as error:
                try:
                    await pauses.next(str(error))
                except OutcomeUnknown as unknown:
                    raise Unavailable(unknown.message) from error

    async def page_by(
        self,
        control: Control | None,
        log: LogId,
        after: RowId,
        through: RowId,
        limits: Limits,
        *,
        reverse: bool = False,
    ) -> Rows:
        """Return a page as ``control`` tells it. Raises Stale, CellsError."""
        if (
            control is None
            or control.generation != log.generation
            or control.state in {State.DELETED, State.DROPPED}
            or not control.has_committed()
        ):
            # Of what is dropped some rows may be gone already, so none is shown.
            return Rows([], control, more=False, seen=after)
        last = min(through, control.pointer) if guards.holds("commit-pointer") else through
        first = max(row_after(after), control.floor)
        if first > last or after >= last:
            return Rows([], control, more=False, seen=max(after, min(through, control.pointer)))
        scan = _Scan(self._cells, log, await self.whole(log, control), first, last)
        try:
            if reverse:
                rows, seen = await scan.backward(limits)
                return Rows(rows, control, more=seen > first, seen=seen)
            rows, seen = await scan.forward(limits)
            return Rows(rows, control, more=seen < last, seen=seen)
        except Stale:
            self.stale_answers += 1
            raise

    async def side(self, log: LogId, kind: bytes, key: bytes) -> list[SideRow]:
        """Return the counting side rows of one kind and key."""
        control = await self.head(log)
        if control is None or control.generation != log.generation:
            return []
        whole = await self.whole(log, control)
        prefix = side_prefix(log, kind) + key
        found = await self._retrying.read(lambda: self._all(table_of(log), prefix))
        judgements = (
            judged_side(whole, log, kind, row)
            for row in found
            if len(row.key) == len(prefix) + ROW_ID_BYTES
        )
        return [side for side in judgements if side is not None]

    async def _all(self, table: Table, prefix: bytes) -> list[RowCells]:
        found: list[RowCells] = []
        start, stop = prefix, prefix_end(prefix)
        while True:
            rows, more = await self._cells.scan(
                table, start, stop, rows_max=SCAN_ROWS_MAX, bytes_max=SCAN_BYTES_MAX
            )
            found += rows
            if not more:
                return found
            start = rows[-1].key + b"\0"

    async def prefixed(self, table: Table, prefix: bytes) -> list[RowCells]:
        """Return all rows whose key begins with ``prefix``. Raises Unavailable."""
        return await self._retrying.read(lambda: self._all(table, prefix))


class _Scan:
    """One page of ids in ``first..last``, by a control row with all its ranges."""

    def __init__(
        self, cells: Cells, log: LogId, control: Control, first: RowId, last: RowId
    ) -> None:
        self._cells = cells
        self._log = log
        self._control = control
        self._first = first
        self._last = last
        self._pointer_key = row_key(log, control.pointer)
        self._start = row_key(log, first)
        self._stop = row_key(log, max(last, control.pointer)) + b"\0"

    async def forward(self, limits: Limits) -> tuple[list[Row], RowId]:
        """Return rows in order, and the last id that was looked at."""
        page = _Page(limits)
        start = self._start
        while True:
            answer = await self._scan(start, self._stop, page)
            counting = list(self._counting(answer.rows))
            if not answer.more and start <= self._pointer_key:
                self._demand(counting, self._control.pointer)
            for row in counting:
                if row.id > self._last:
                    return page.rows, self._last
                if not page.takes(row):
                    return page.rows, page.rows[-1].id
                page.add(row)
            if not answer.more or (counting and counting[-1].id == self._last):
                return page.rows, self._last
            if page.is_full:
                return page.rows, page.rows[-1].id
            if counting:
                start = row_key(self._log, counting[-1].id) + b"\0"
            else:
                start = await self._first_counting(start)

    async def _first_counting(self, start: bytes) -> bytes:
        """Return the key of the first counting row from ``start`` on, where many do not count."""
        answer = await self._skip(start, self._stop)
        for row in self._counting(answer.rows):
            return row_key(self._log, row.id)
        if start <= self._pointer_key:
            self._demand([], self._control.pointer)
        return self._stop

    async def backward(self, limits: Limits) -> tuple[list[Row], RowId]:
        """Return rows in reverse order, and the least id that was looked at."""
        page = _Page(limits)
        witness = await self._witness()
        while True:
            stop = row_key(self._log, witness) + b"\0"
            answer = await self._scan(self._start, stop, page, reverse=True)
            counting = list(self._counting(answer.rows))
            self._demand(counting[:1], witness)
            for row in counting:
                if row.id > self._last or (page.rows and row.id >= page.rows[-1].id):
                    continue
                if not page.takes(row):
                    return page.rows, page.rows[-1].id
                page.add(row)
            if not answer.more:
                return page.rows, self._first
            if page.is_full:
                return page.rows, page.rows[-1].id
            below = counting[-1].id if len(counting) > 1 else await self._next_below(witness)
            if below is None:
                return page.rows, self._first
            witness = below

    async def _next_below(self, witness: RowId) -> RowId | None:
        """Return the last counting row below ``witness``, None if there is none."""
        stop = row_key(self._log, witness) + b"\0"
        answer = await self._skip(self._start, stop, reverse=True)
        counting = self._counting(answer.rows)
        self._demand([row for row in (next(counting, None),) if row], witness)
        found = next(counting, None)
        return None if found is None else found.id

    async def _witness(self) -> RowId:
        """Return the first counting row at or above the end: with it an answer is complete."""
        if self._last >= self._control.pointer:
            return self._control.pointer
        above = _Scan(self._cells, self._log, self._control, self._last, self._control.pointer)
        rows, _ = await above.forward(Limits(1, 1))
        return rows[0].id

    async def _scan(
        self, start: bytes, stop: bytes, page: _Page, *, reverse: bool = False
    ) -> Scanned:
        rows_max = min(page.rows_left + 2, SCAN_ROWS_MAX)
        bytes_max = min(page.bytes_left + ROW_OVERHEAD_BYTES * rows_max, SCAN_BYTES_MAX)
        return await self._cells.scan(
            table_of(self._log),
            start,
            stop,
            rows_max=rows_max,
            bytes_max=bytes_max,
            reverse=reverse,
        )

    async def _skip(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Scanned:
        """Scan what tells whether rows count, and no payloads, until another than the first does.

        An answer is worth nothing without a counting row, so it must reach one, however far that is.
        """
        wanted = 2 if reverse else 1
        for rows_max in SKIPPED_ROWS_MAX:
            answer = await self._cells.scan(
                table_of(self._log),
                start,
                stop,
                rows_max=rows_max,
                bytes_max=ROW_OVERHEAD_BYTES * rows_max,
                reverse=reverse,
                columns=(EPOCH,),
            )
            if not answer.more or len(list(islice(self._counting(answer.rows), wanted))) == wanted:
                return answer
        raise Unavailable(
            f"More than {SKIPPED_ROWS_MAX[-1]} rows of {self._log.topic} in a row do not count."
        )

    def _counting(self, answer: list[RowCells]) -> Iterator[Row]:
        for key, columns in answer:
            row = judged(self._control, key[-ROW_ID_BYTES:], columns)
            if row is not None:
                yield row

    def _demand(self, rows: list[Row], wanted: RowId) -> None:
        if not any(row.id == wanted for row in rows):
            raise Stale("storage answers from an earlier state: a committed row is not there")


class _Page:
    """Rows up to the limits, one at least."""

    def __init__(self, limits: Limits) -> None:
        self.rows: list[Row] = []
        self._limits = limits
        self._bytes = 0

    @property
    def rows_left(self) -> int:
        return self._limits.rows_max - len(self.rows)

    @property
    def bytes_left(self) -> int:
        return max(self._limits.bytes_max - self._bytes, 0)

    @property
    def is_full(self) -> bool:
        return bool(self.rows) and not (self.rows_left > 0 and self.bytes_left)

    def takes(self, row: Row) -> bool:
        if not self.rows:
            return True
        size = len(row.payload or b"")
        return size <= self._limits.bytes_max - self._bytes and self.rows_left > 0

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._bytes += len(row.payload or b"")

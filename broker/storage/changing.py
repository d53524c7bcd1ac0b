"""Changing a log that is held: appends, rollbacks, and single changes of its control row."""

from __future__ import annotations

from collections.abc import Sequence

from broker import guards
from broker.errors import Fenced, OutcomeUnknown, PayloadsSealed, Unavailable
from broker.model import RowId, row_before, timestamp_of
from broker.storage import control
from broker.storage.cells import CellsError, CellsRefused, RowCells
from broker.storage.chain import Build, Lost, NotSent
from broker.storage.control import Control, Resolution, State
from broker.storage.holds import TableHold
from broker.storage.keys import LogId, row_key
from broker.storage.old_reading import Limits, LogReader, table_of
from broker.storage.ports import Batch, Row
from broker.storage.putting import Meanwhile, RowWriter
from broker.storage.retrying import Retrying
from broker.storage.visibility import negation_of, rows_of, side_rows_of

NEGATE_LIMITS = Limits(1000, 1 << 24)


class RowsRefused(Unavailable):
    """The batch was not stored, and the hold goes on.

    Right where nothing of it was sent; after anything else it is what the guard retry-or-give-up
    prevents.
    """


class LogChanger:
    """Changes logs through their holds."""

    def __init__(self, retrying: Retrying, reader: LogReader, writer: RowWriter) -> None:
        """Write rows through ``writer``; rollbacks look for their rows through ``reader``."""
        self._retrying = retrying
        self._reader = reader
        self._writer = writer

    async def append(self, held: TableHold, batch: Batch) -> None:
        """Write rows, side rows and the new pointer; on disk and counting on return."""
        held.check()
        current = held.control
        check_open(current)
        epoch = current.epoch
        rows = [*side_rows_of(held.log, batch, epoch), *rows_of(held.log, batch, epoch)]
        sizes = self._writer.check_sizes(rows)
        build = self._build_of(held, batch)
        committed = False
        try:
            async with held.rows_lock:
                held.check()
                await self._put_batch(held, rows, sizes, lambda: _meanwhile(held, batch, build))
            # No await between letting the rows' lock go and queueing for the chain: order holds.
            await self._commit(held, batch, build)
            committed = True
        except (PayloadsSealed, RowsRefused):
            # Nothing more is ever committed above these rows, or there are none.
            committed = True
            raise
        finally:
            if not committed:
                held.end()

    async def _put_batch(
        self, held: TableHold, rows: Sequence[RowCells], sizes: Sequence[int], meanwhile: Meanwhile
    ) -> None:
        try:
            await self._writer.put(table_of(held.log), rows, sizes, meanwhile=meanwhile)
        except CellsRefused as error:
            raise RowsRefused(f"Storage can't be reached: {error}.") from error
        except CellsError as error:
            if not guards.holds("retry-or-give-up"):
                raise RowsRefused(f"Rows were not stored: {error}") from error
            # The rows may land yet. No pointer of this epoch will pass them: the hold ends here.
            raise Unavailable(f"Rows could not be stored: {error}") from error

    @staticmethod
    def _build_of(held: TableHold, batch: Batch) -> Build:
        last = batch.last

        def build(current: Control | None, token: bytes) -> Control:
            base = held.adopted(current)
            check_open(base)
            if batch.segments[0].ids[0] <= base.pointer and guards.holds("ids-rise"):
                # A payload log that was opened by an old answer: its ids were taken too low.
                raise Fenced("The log was written further than was known when it was opened.")
            if batch.side and current is not held.chain.confirmed:
                # Of a payload log: a lower epoch still wrote to it, perhaps under the very key of which
                # this batch's sender has found no answer. It must be looked up again.
                raise Fenced("The log was written to after keys were looked up.")
            return control.committed(base, last, token)

        return build

    async def _commit(self, held: TableHold, batch: Batch, build: Build) -> None:
        epoch, generation, last = held.epoch, held.log.generation, batch.last
        try:
            await held.chain.change(build)
        except Lost as lost:
            held.end()
            if await self._was_committed(held.log, lost, epoch, generation, last):
                return
            raise Fenced(f"Not committed; {lost}.") from lost

    async def _was_committed(
        self, log: LogId, lost: Lost, epoch: int, generation: int, last: RowId
    ) -> bool:
        if lost.resolution is Resolution.FENCED:
            try:
                whole = await self._reader.whole(log, lost.seen)
            except Unavailable as error:
                raise OutcomeUnknown(f"Whether the batch counts can't be read: {error}") from error
            verdict = control.batch_committed(
                lost.seen, whole.ranges, epoch=epoch, generation=generation, last=last
            )
            if verdict is not None:
                return verdict
        raise OutcomeUnknown(f"The batch may count: {lost}.")

    async def negate(self, held: TableHold, first: RowId, last: RowId, pointer: int) -> int:
        """Negate the counting rows in ``[first, last]`` whose ``t`` is ``pointer``; return how many.

        Answered by a conditional write also if there are none: who reads nothing may lead no more.
        """
        held.check()
        marked = 0
        try:
            async with held.rows_lock:
                held.check()
                rows = await self._rows_of_pointer(held, first, last, abs(pointer))
                marked = len(rows)
                marks = [negation_of(held.log, row.id, pointer, held.epoch) for row in rows]
                await self._put_marks(held, marks)
            if guards.holds("rollback-commit"):
                await held.chain.change(_edit(held, marked))
        except (CellsError, Lost, Fenced) as error:
            held.end()
            if not marked:
                raise Fenced(f"Nothing was rolled back: {error}") from error
            raise OutcomeUnknown(f"The rollback may count: {error}") from error
        except RowsRefused:
            raise
        except NotSent as error:
            if not marked:
                raise
            held.end()
            raise OutcomeUnknown(f"The rollback may count: {error}") from error
        except BaseException:
            if marked:
                # Marks may have landed that no edit tells of: the next holder begins anew.
                held.end()
            raise
        return marked

    async def _put_marks(self, held: TableHold, marks: Sequence[RowCells]) -> None:
        try:
            await self._writer.put(table_of(held.log), marks)
        except CellsRefused as error:
            raise RowsRefused(f"Storage can't be reached: {error}.") from error

    async def _rows_of_pointer(
        self, held: TableHold, first: RowId, last: RowId, pointer: int
    ) -> list[Row]:
        found: list[Row] = []
        after, more = row_before(first), True
        while more:
            page = await self._retrying.read(
                lambda after=after: self._reader.page_by(  # type: ignore[misc]
                    held.control, held.log, after, last, NEGATE_LIMITS
                )
            )
            found += [row for row in page.rows if row.pointer and abs(row.pointer) == pointer]
            after, more = page.seen, page.more
        return [row for row in found if row.id >= first]

    async def change(self, held: TableHold, build: Build) -> None:
        """Apply a change of the control row alone; what can't be told afterwards is unknown.

        Raises:
            Unavailable: nothing was sent, and the hold goes on.
            Fenced, OutcomeUnknown: see LogStore.
        """
        try:
            await held.chain.change(build)
        except Lost as lost:
            held.end()
            # It may have been applied before the log was lost: nothing in the row tells.
            raise OutcomeUnknown(f"The change may have been made: {lost}.") from lost
        except BaseException:
            if held.chain.ended:
                held.end()
            raise


def _edit(held: TableHold, marked: int) -> Build:
    change = control.edited if marked else control.confirmed
    return lambda current, token: change(held.adopted(current), token)


def _meanwhile(held: TableHold, batch: Batch, build: Build) -> None:
    """Do, while a batch's rows are under way, what else would be done before it is acknowledged."""
    held.chain.build_ahead(build)
    if held.topic_hold is None:
        _note_lives(held, batch)


def _note_lives(held: TableHold, batch: Batch) -> None:
    """Tell the sweeper what the batch holds, so that it need not look.

    It looks at nothing above the pointer, and if the rows are not stored after all, there is nothing to find.
    """
    ends_ms = [
        timestamp_of(segment.ids[0]) + segment.lifetime_ms
        for segment in batch.segments
        if segment.lifetime_ms is not None
    ]
    first, last = row_key(held.log, batch.segments[0].ids[0]), row_key(held.log, batch.last)
    rows = sum([len(segment.ids) for segment in batch.segments])
    held.lives.wrote(first, last, rows, min(ends_ms, default=None))


def check_open(current: Control) -> None:
    """Raise PayloadsSealed unless the log takes rows."""
    if current.state is not State.OPEN:
        raise PayloadsSealed("The transaction's payloads were published: nothing can be added.")

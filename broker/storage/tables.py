"""The log store over tables of cells: memory now, HBase's gateways in a cluster.

An append is three steps, and only the last one makes anything count::

    rows (in the order of batches, each repeated until it is confirmed)
      └─▶ compare-and-set of the control row to the new pointer (chain.py, one at a time)
            └─▶ acknowledge

Whoever is fenced fails at the second step, whatever it left by the first. What can't be confirmed ends
the hold: the rows may land at any time, and only a new epoch makes sure that they never count. The parts:

    tables.py       the port                    holds.py     a hold, and the order of rows
    chain.py        compare-and-set, resolved   reading.py   pages that prove that they are whole
    visibility.py   which cells count (pure)    sweeping.py  removing what is over
    control.py      the control row (pure)      retrying.py  how long calls are repeated
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence

from broker import guards
from broker.clock import Clock
from broker.errors import (
    BodyTooLarge,
    BrokerError,
    Fenced,
    OutcomeUnknown,
    PayloadsSealed,
    Unavailable,
)
from broker.model import ROW_ID_MIN, RowId, TopicId, row_before
from broker.storage import control
from broker.storage.cells import Cell, Cells, CellsError, RowCells
from broker.storage.chain import Build, Chain, Lost, Tokens
from broker.storage.control import HOLD_NONCE_BYTES, Control, Resolution, State
from broker.storage.holds import TableHold
from broker.storage.keys import (
    OLDER_RANGES,
    LogId,
    control_key,
    log_prefix,
    payload_controls_prefix,
    payload_log_of,
    prefix_end,
    side_prefix,
)
from broker.storage.ports import Batch, Estimate, Hold, Row, Rows, SideRow, Swept
from broker.storage.reading import Limits, LogReader, table_of
from broker.storage.retrying import Retrying
from broker.storage.sweeping import LogSweeper
from broker.storage.visibility import (
    VALUE,
    negation_of,
    row_tag,
    rows_of,
    side_rows_of,
)

CALL_S = 10.0
NEGATE_ROWS_MAX = 1000


def random_nonce() -> bytes:
    """Return the random part of a hold's tokens."""
    return secrets.token_bytes(HOLD_NONCE_BYTES)


class TableLogStore:
    """LogStore over Cells. One per process; any number of processes may share the tables."""

    pipeline_depth = 2
    """One batch's rows may be under way while the compare-and-set of the one before is."""

    def __init__(
        self,
        cells: Cells,
        clock: Clock,
        *,
        call_s: float = CALL_S,
        nonce: Callable[[], bytes] = random_nonce,
        chance: random.Random | None = None,
    ) -> None:
        """Keep logs in ``cells``; each call ends within about ``call_s`` seconds."""
        self._cells = cells
        self._nonce = nonce
        self._retrying = Retrying(clock, call_s, chance or random.Random())  # noqa: S311  Spread only.
        self._reader = LogReader(cells, self._retrying)
        self._sweeper = LogSweeper(cells, self._retrying, self._reader)

    @property
    def stale_answers(self) -> int:
        """How many answers of the tables were refused because they showed an earlier state."""
        return self._reader.stale_answers

    async def head(self, log: LogId) -> Control | None:
        """Return the log's control row."""
        return await self._reader.head(log)

    # Holding a log.

    async def claim(self, log: LogId, owner: str, *, keep_after: RowId = ROW_ID_MIN) -> TableHold:
        """Take a message log: epoch + 1, durable on return."""
        assert log.number is None, "a payload log is opened under its topic's hold"
        chain, tokens = self._chain(log, Tokens(self._nonce()))
        chain.guard = "claim-cas"
        await chain.learn()

        def pruned(current: Control | None) -> Control | None:
            return None if current is None else control.pruned(current, keep_after)

        async def spill(current: Control | None, token: bytes) -> None:
            kept = pruned(current)
            moved = control.overflowing(kept) if kept is not None else ()
            if moved and kept is not None and kept.generation == log.generation:
                await self._write_older_ranges(log, kept.epoch + 1, token, moved)

        def build(current: Control | None, token: bytes) -> Control:
            kept = pruned(current)
            if kept is not None and kept.generation == log.generation:
                kept = control.spilled(kept, token)
            return control.claimed(kept, owner=owner, generation=log.generation, token=token)

        try:
            await chain.change(build, spill)
        except Lost as lost:
            raise Fenced(f"Another claim of {log.topic} came first: {lost}.") from lost
        chain.guard = "confirm-cas"
        return TableHold(log, chain, tokens)

    def _chain(self, log: LogId, tokens: Tokens) -> tuple[Chain, Tokens]:
        place = (table_of(log), control_key(log))
        noted = self._reader.newest.note
        return Chain(self._cells, place, tokens, self._retrying, noted), tokens

    async def _write_older_ranges(
        self, log: LogId, epoch: int, token: bytes, moved: tuple[control.EpochRange, ...]
    ) -> None:
        cell = Cell(row_tag(epoch), control.encode_ranges(moved))
        row = RowCells(side_prefix(log, OLDER_RANGES) + token, {VALUE: cell})
        try:
            await self._put(log, [row])
        except CellsError as error:
            # Without its claim the row says nothing.
            raise Unavailable(f"Older ranges of {log.topic} can't be written: {error}") from error

    async def open_payloads(self, topic_hold: Hold, number: int) -> TableHold:
        """Return a hold on a payload log under the topic's epoch. Writes nothing yet."""
        topic = _mine(topic_hold)
        topic.check()
        known = topic.payloads(number)
        if known is not None and not known.done:
            return known
        log = LogId(topic.log.topic, topic.log.generation, number)
        chain, tokens = self._chain(log, topic.tokens)
        seen = await chain.learn()
        if seen is not None and (
            seen.epoch > topic.epoch
            or (seen.epoch == topic.epoch and not tokens.are_mine(seen.token))
        ):
            topic.end()
            raise Fenced(f"The payload log {number} of {log.topic} has epoch {seen.epoch}.")
        topic.check()
        return topic.remember(TableHold(log, chain, tokens, topic))

    async def release(self, hold: Hold) -> bool:
        """Hand a message log off if everything sent is confirmed; else just let go (False)."""
        held = _mine(hold)
        if held.done:
            return False
        async with held.rows_lock:
            # Rows that are sent are confirmed now, and their commits come first in the chain.
            held.released = True
        try:
            await held.chain.change(lambda current, token: control.released(_known(current), token))
        except (Lost, BrokerError):
            return False
        finally:
            held.end()
        return True

    # Writing.

    async def append(self, hold: Hold, batch: Batch) -> None:
        """Write rows, side rows and the new pointer; on disk and counting on return."""
        held = _mine(hold)
        held.check()
        _check_open(held.control)
        epoch = held.epoch
        rows = [*side_rows_of(held.log, batch, epoch), *rows_of(held.log, batch, epoch)]
        self._check_sizes(rows)
        committed = False
        try:
            async with held.rows_lock:
                held.check()
                await self._put_batch(held, rows)
            # No await between letting the rows' lock go and queueing for the chain: order holds.
            await self._commit(held, batch)
            committed = True
        except (PayloadsSealed, _RowsRefused):
            committed = True  # Nothing more is ever committed above these rows, or nobody cares.
            raise
        finally:
            if not committed:
                held.end()

    async def _put_batch(self, held: TableHold, rows: Sequence[RowCells]) -> None:
        try:
            await self._put(held.log, rows)
        except CellsError as error:
            if not guards.holds("retry-or-give-up"):
                raise _RowsRefused(f"Rows were not stored: {error}") from error
            # The rows may land yet. No pointer of this epoch will pass them: the hold ends here.
            raise Unavailable(f"Rows could not be stored: {error}") from error

    async def _commit(self, held: TableHold, batch: Batch) -> None:
        epoch, generation, last = held.epoch, held.log.generation, batch.last

        def build(current: Control | None, token: bytes) -> Control:
            base = _adopted(held, current)
            _check_open(base)
            if batch.segments[0].ids[0] <= base.pointer and guards.holds("ids-rise"):
                # A payload log that was opened by an old answer: its ids were taken too low.
                raise Fenced("The log was written further than was known when it was opened.")
            return control.committed(base, last, token)

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

    async def negate(self, hold: Hold, first: RowId, last: RowId, pointer: int) -> int:
        """Negate the counting rows in ``[first, last]`` whose ``t`` is ``pointer``; return how many.

        Answered by a conditional write also if there are none: who reads nothing may lead no more.
        """
        held = _mine(hold)
        held.check()
        marked = 0
        try:
            async with held.rows_lock:
                held.check()
                rows = await self._rows_of_pointer(held, first, last, abs(pointer))
                marked = len(rows)
                marks = [negation_of(held.log, row.id, pointer, held.epoch) for row in rows]
                await self._put(held.log, marks)
            if guards.holds("rollback-commit"):
                change = control.edited if rows else control.confirmed
                await held.chain.change(lambda current, token: change(_known(current), token))
        except (CellsError, Lost) as error:
            held.end()
            if not marked:
                raise Fenced(f"Nothing was rolled back: {error}.") from error
            raise OutcomeUnknown(f"The rollback may count: {error}.") from error
        except Fenced as error:
            if marked:
                raise OutcomeUnknown(f"The rollback may count: {error}") from error
            raise
        return marked

    async def _rows_of_pointer(
        self, held: TableHold, first: RowId, last: RowId, pointer: int
    ) -> list[Row]:
        found: list[Row] = []
        after, more = row_before(first), True
        limits = Limits(NEGATE_ROWS_MAX, 1 << 24)
        while more:
            page = await self._retrying.read(
                lambda after=after: self._reader.page_by(  # type: ignore[misc]
                    held.control, held.log, after, last, limits
                )
            )
            found += [row for row in page.rows if row.pointer and abs(row.pointer) == pointer]
            after, more = page.seen, page.more
        return [row for row in found if row.id >= first]

    async def raise_floor(self, hold: Hold, floor: RowId) -> None:
        """Raise the floor of a message log; lower values change nothing."""
        held = _mine(hold)
        held.check()
        if min(floor, held.control.pointer) <= held.control.floor:
            return
        if not guards.holds("floor-cas"):
            held.chain.confirmed = control.floor_raised(held.control, floor, held.control.token)
            return
        await self._change(
            held, lambda current, token: control.floor_raised(_known(current), floor, token)
        )

    async def seal(self, hold: Hold, at: RowId) -> None:
        """Seal an open payload log, also an empty one without a control row."""
        held = _mine(hold)
        held.check()
        if held.control.state is State.OPEN:
            await self._change(
                held, lambda current, token: _sealed(_adopted(held, current), at, token)
            )

    async def mark_published(self, hold: Hold, reference: RowId) -> None:
        """Record the row id of the committed reference on a sealed payload log."""
        held = _mine(hold)
        held.check()
        if held.control.state is State.SEALED:
            await self._change(
                held,
                lambda current, token: control.published(_adopted(held, current), reference, token),
            )

    async def drop(self, hold: Hold) -> None:
        """Declare that a payload log's rows may go."""
        held = _mine(hold)
        held.check()
        if held.control.state is not State.DROPPED:
            await self._change(
                held, lambda current, token: control.dropped(_adopted(held, current), token)
            )

    async def _change(self, held: TableHold, build: Build) -> None:
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

    async def tombstone(self, log: LogId, owner: str) -> None:
        """Mark the topic's generation deleted; fences every holder. Idempotent."""
        chain, _ = self._chain(log, Tokens(self._nonce()))
        chain.guard = "claim-cas"
        while True:
            seen = await chain.learn()
            if (
                seen is not None
                and seen.generation == log.generation
                and seen.state is State.DELETED
            ):
                return

            def build(current: Control | None, token: bytes) -> Control:
                return control.tombstoned(
                    current, owner=owner, generation=log.generation, token=token
                )

            try:
                await chain.change(build)
            except Lost:
                # A claim came between, so the topic is not deleted yet: once more, with a new chain.
                chain, _ = self._chain(log, Tokens(self._nonce()))
                continue
            return

    async def _put(self, log: LogId, rows: Sequence[RowCells]) -> None:
        """Write rows until they are confirmed. Raises CellsError when time is up."""
        deadline = self._retrying.deadline()
        for chunk in self._chunks(rows):
            pauses = self._retrying.pauses(deadline)
            while True:
                try:
                    await self._cells.put(table_of(log), chunk, synced=guards.holds("row-sync"))
                    break
                except CellsError as error:
                    if not guards.holds("retry-or-give-up"):
                        raise
                    try:
                        await pauses.next("rows can't be written")
                    except OutcomeUnknown:
                        raise error from None

    def _chunks(self, rows: Sequence[RowCells]) -> Sequence[Sequence[RowCells]]:
        chunks: list[list[RowCells]] = []
        room = 0
        for row in rows:
            size = _bytes_of(row)
            if not chunks or size > room:
                chunks.append([])
                room = self._cells.put_bytes_max
            chunks[-1].append(row)
            room -= size
        return chunks

    def _check_sizes(self, rows: Sequence[RowCells]) -> None:
        for row in rows:
            if _bytes_of(row) > self._cells.row_bytes_max:
                raise BodyTooLarge(
                    f"A message of more than {self._cells.row_bytes_max} bytes can't be stored."
                )

    # Reading.

    async def scan(
        self,
        log: LogId,
        after: RowId,
        through: RowId,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool = False,
    ) -> Rows:
        """Return counting rows with ids in ``(after, through]``, in order, at least the floor."""
        limits = Limits(rows_max, bytes_max)
        return await self._reader.page(log, after, through, limits, reverse=reverse)

    async def side(self, log: LogId, kind: bytes, key: bytes) -> list[SideRow]:
        """Return the counting side rows of one kind and key, the oldest first."""
        return await self._reader.side(log, kind, key)

    async def payload_logs(
        self, topic: TopicId, generation: int | None = None
    ) -> list[tuple[LogId, Control]]:
        """Return the payload logs that a topic has control rows for (of one generation, or all)."""
        prefix = payload_controls_prefix(topic, generation)
        table = table_of(LogId(topic, 1, 0))
        return [
            (payload_log_of(topic, row.key), control.decode(cell.value))
            for row in await self._reader.prefixed(table, prefix)
            for cell in row.columns.values()
        ]

    # Sweeping.

    async def sweep_log(
        self,
        hold: Hold,
        expired_before_ms: int,
        rows_max: int,
        *,
        side_before: RowId = ROW_ID_MIN,
    ) -> Swept:
        """Remove one slice of a held message log."""
        return await self._sweeper.log(_mine(hold), expired_before_ms, rows_max, side_before)

    async def sweep_payloads(self, topic_hold: Hold, number: int, rows_max: int) -> Swept:
        """Remove one slice of a *dropped* payload log's rows; does nothing in any other state."""
        held = _mine(topic_hold)
        return await self._sweeper.payloads(held, _payload_log(held, number), rows_max)

    async def forget_payloads(self, topic_hold: Hold, number: int) -> None:
        """Remove the control row of a dropped payload log whose rows are gone."""
        held = _mine(topic_hold)
        await self._sweeper.forget(held, _payload_log(held, number))

    async def sweep_generations(self, topic: TopicId, below: int, rows_max: int) -> Swept:
        """Remove one slice of rows, side rows and payload controls of generations < ``below``."""
        return await self._sweeper.generations(topic, below, rows_max)

    async def estimate(self, log: LogId) -> Estimate:
        """Return roughly how many rows and bytes the log has on disk."""
        prefix = log_prefix(log)
        rows, size = await self._retrying.read(
            lambda: self._cells.weigh(table_of(log), prefix, prefix_end(prefix))
        )
        return Estimate(rows, size)

    async def compact(self, log: LogId) -> None:
        """Give space that sweeping freed back to the disk."""
        prefix = log_prefix(log)
        await self._retrying.read(
            lambda: self._cells.compact(table_of(log), prefix, prefix_end(prefix))
        )

    async def close(self) -> None:
        """Close the tables."""
        await self._cells.close()


class _RowsRefused(Unavailable):
    """The batch was not stored, and the hold goes on: what the guard retry-or-give-up prevents."""


def _mine(hold: Hold) -> TableHold:
    assert isinstance(hold, TableHold), "a hold belongs to the store that gave it"
    return hold


def _known(current: Control | None) -> Control:
    assert current is not None, "a message log that is held has a control row"
    return current


def _adopted(held: TableHold, current: Control | None) -> Control:
    """Return ``current`` under the hold's epoch: a payload log is claimed by its first write."""
    if held.topic_hold is None:
        return _known(current)
    topic = held.topic_hold.control
    return control.adopted(
        current, epoch=topic.epoch, owner=topic.owner, generation=held.log.generation
    )


def _sealed(current: Control, at: RowId, token: bytes) -> Control:
    if current.state is not State.OPEN:
        return control.confirmed(current, token)
    return control.sealed(current, at, token)


def _check_open(current: Control) -> None:
    if current.state is not State.OPEN:
        raise PayloadsSealed("The transaction's payloads were published: nothing can be added.")


def _payload_log(topic_hold: TableHold, number: int) -> LogId:
    return LogId(topic_hold.log.topic, topic_hold.log.generation, number)


def _bytes_of(row: RowCells) -> int:
    return len(row.key) + sum(len(cell.value) for cell in row.columns.values())

"""The contract of a rowlog's rows: in memory, over Thrift-1 (happybase), and over Thrift-2 with FSYNC_WAL.

Give a fixture ``opened``: the table port and the name of a table with the families ``d`` and ``rowlog``. Every test
uses its own rows.

``RowLocksContract`` says what a row lock guarantees over each table. A holder sleeps until its lock expires. Another
process takes the lock over and puts. Then the first holder goes on::

    where it slept                   Thrift-2, memory                    Thrift-1
    before it sends its put          refused: the put compares the       refused: it reads its own clock, and sends
                                     lock's cell                         no put in the last LATE_MS of the lock
    after it sent its put (the put   refused                             **written**, after the other's put: Thrift-1
    is in flight for so long)                                            can't compare a cell in a put
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.errors import OutcomeUnknown, Unavailable
from broker.rowlog import RowLocked, RowLog, Subscription
from broker.rowlog.cell_keys import Columns
from broker.rowlog.memory import MemoryRows
from broker.rowlog.row_locks import LATE_MS, RowLocks
from broker.rowlog.row_table import Guard, RowTable, TableError
from broker.rowlog.rows import Rows
from broker.rowlog.setup import Settings

A, B, STATE = b"d:a", b"d:b", b"rowlog:\x04\x02\x00'\xff(x"


class Opened(NamedTuple):
    """A table to test."""

    rows: RowTable
    table: bytes


class RowTableContract:
    """The contract of every implementation."""

    @pytest.fixture
    def row(self) -> bytes:
        """A row of its own."""
        return b"\x00'\xff" + secrets.token_bytes(6)

    async def test_a_put_is_read_by_cells_and_by_families(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        await rows.put(table, [(row, {A: b"1", STATE: b"\x00s"}), (row + b"2", {B: b"2"})])
        assert await rows.get(table, [row], [A]) == {row: {A: b"1"}}
        assert await rows.get(table, [row], [b"rowlog:"]) == {row: {STATE: b"\x00s"}}
        assert await rows.get(table, [row, row + b"2", row + b"3"], [b"d:"]) == {
            row: {A: b"1"},
            row + b"2": {B: b"2"},
        }
        assert await rows.get(table, [row + b"3"], [b"d:"]) == {}

    async def test_only_a_cell_with_the_expected_value_is_changed(
        self, opened: Opened, row: bytes
    ) -> None:
        rows, table = opened
        assert not await rows.check_and_put(table, row, STATE, b"0", b"1")
        assert await rows.check_and_put(table, row, STATE, b"", b"1")
        assert not await rows.check_and_put(table, row, STATE, b"", b"2")
        assert not await rows.check_and_put(table, row, STATE, b"2", b"3")
        assert await rows.check_and_put(table, row, STATE, b"1", b"2\x00\xff")
        assert await rows.get(table, [row], [STATE]) == {row: {STATE: b"2\x00\xff"}}

    async def test_an_empty_cell_counts_as_absent(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        assert await rows.check_and_put(table, row, STATE, b"", b"1")
        assert await rows.check_and_put(table, row, STATE, b"1", b"")
        assert await rows.check_and_put(table, row, STATE, b"", b"2")

    async def test_a_qualifier_that_ends_as_a_family_does_is_a_column(
        self, opened: Opened, row: bytes
    ) -> None:
        """One timestamp of 256 ends with the byte of a colon."""
        rows, table = opened
        column = STATE + b":"
        await rows.put(table, [(row, {column: b"1", STATE: b"2", column + b"3": b"3"})])
        assert await rows.get(table, [row], [column]) == {row: {column: b"1"}}
        assert await rows.get(table, [row, row + b"x"], [column]) == {row: {column: b"1"}}
        assert await rows.scan(table, row, row + b"\0", [column], limit=1) == [
            (row, {column: b"1"})
        ]
        assert await rows.check_and_put(table, row, column, b"1", b"4")
        await rows.delete(table, [(row, [column])])
        left = {STATE: b"2", column + b"3": b"3"}
        assert await rows.get(table, [row], [b"rowlog:"]) == {row: left}

    async def test_of_many_that_compare_one_wins(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        won = await asyncio.gather(
            *(rows.check_and_put(table, row, STATE, b"", b"%d" % each) for each in range(8))
        )
        found = await rows.get(table, [row], [STATE])
        winner = int(found[row][STATE])
        # False is not certain: the gateway may have repeated a request whose answer it lost.
        assert [each for each in range(8) if won[each]] in ([winner], [])

    async def test_a_counter_returns_each_number_once(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        drawn = await asyncio.gather(*(rows.increment(table, row, A) for _ in range(8)))
        assert sorted(drawn) == [*range(1, 9)]
        assert await rows.increment(table, row, A, 5) == 13

    async def test_a_scan_returns_exactly_its_range_in_order(
        self, opened: Opened, row: bytes
    ) -> None:
        rows, table = opened
        keys = [row + bytes([each]) for each in (0, 1, 2, 255)]
        await rows.put(table, [(key, {A: key, STATE: b"s"}) for key in reversed(keys)])
        found = await rows.scan(table, row, row + b"\xff", [A], limit=10)
        assert found == [(key, {A: key}) for key in keys[:3]]
        assert [key for key, _ in await rows.scan(table, keys[1], b"", [A], limit=2)] == keys[1:3]

    async def test_a_scan_by_a_prefix_returns_no_other_cells_and_rows(
        self, opened: Opened, row: bytes
    ) -> None:
        rows, table = opened
        await rows.put(table, [(row + b"1", {STATE: b"s", b"rowlog:\x03\x02": b"no", A: b"a"})])
        await rows.put(table, [(row + b"2", {b"rowlog:\x04\x01": b"no"})])
        found = await rows.scan(
            table, row, row + b"\xff", [b"rowlog:"], limit=9, qualifier_prefix=b"\x04\x02"
        )
        assert found == [(row + b"1", {STATE: b"s"})]

    async def test_a_deleted_column_is_gone_and_its_neighbours_stay(
        self, opened: Opened, row: bytes
    ) -> None:
        rows, table = opened
        await rows.put(table, [(row, {A: b"1", B: b"2", STATE: b"s"})])
        await rows.delete(table, [(row, [A, STATE]), (row + b"2", [A])])
        assert await rows.get(table, [row], [b"d:", b"rowlog:"]) == {row: {B: b"2"}}
        assert not await rows.check_and_put(table, row, STATE, b"s", b"t")

    async def test_a_table_that_is_not_there_is_an_error(self, opened: Opened, row: bytes) -> None:
        rows, _ = opened
        with pytest.raises(TableError):
            await rows.put(b"not-there", [(row, {A: b"1"})])
        with pytest.raises(TableError):
            await rows.get(b"not-there", [row], [A])

    async def test_tables_are_listed_and_made_once(self, opened: Opened) -> None:
        rows, table = opened
        assert table in await rows.tables()
        assert not await rows.make_table(table, b"d", [])

    async def test_a_change_in_one_step_obeys_its_guard(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        if not rows.changes_together:
            with pytest.raises(Unavailable, match="one step"):
                await rows.change(table, row, {A: b"x"}, [B], None)
            return
        await rows.put(table, [(row, {A: b"1", B: b"2"})])
        assert not await rows.change(table, row, {A: b"x"}, [B], Guard(A, b"2"))
        assert await rows.get(table, [row], [b"d:"]) == {row: {A: b"1", B: b"2"}}
        assert await rows.change(table, row, {A: b"3"}, [B], Guard(A, b"1"))
        assert await rows.change(table, row, {b"d:c": b"4"}, [A], None)
        assert await rows.get(table, [row], [b"d:"]) == {row: {b"d:c": b"4"}}

    async def test_the_regions_of_a_table_begin_with_the_empty_key(self, opened: Opened) -> None:
        starts = await opened.rows.region_starts(opened.table)
        assert starts[0] == b""
        assert starts == sorted({*starts})


LOCK_MS = 5_000
SETTINGS = Settings(row_locks=True, lock_timeout_ms=LOCK_MS)


class MemoryRowsOfOneCell(MemoryRows):
    """Rows in memory that can only compare and change one cell, like Thrift-1."""

    changes_together = False

    @override
    async def change(self, *_: Any) -> bool:
        """Refuse the change."""
        raise Unavailable("These rows can't put, delete and compare in one step.")


class LaterClock(SystemClock):
    """A clock that a test sets forward together with its boot clock, as after a sleep of the machine."""

    later_s = 0.0

    @override
    def now_ms(self) -> int:
        """Return the wall clock."""
        return super().now_ms() + int(self.later_s * 1000)

    @override
    def monotonic(self) -> float:
        """Return the boot clock."""
        return super().monotonic() + self.later_s


class Sleeper:
    """Rows that delay one of the caller's calls: from ``reached`` until ``go``. Closing them is a no-op."""

    def __init__(self, rows: RowTable, table: bytes, call: str) -> None:
        """Delay ``call`` of ``table``."""
        self._rows = rows
        self._table = table
        self._call = call
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Return a method of the rows."""
        method = getattr(self._rows, name)
        if name != self._call:
            return method

        async def call(table: bytes, *args: Any) -> Any:
            if table == self._table:
                self.reached.set()
                await self.go.wait()
            return await method(table, *args)

        return call

    async def close(self) -> None:
        """Leave the rows open."""


class Two(NamedTuple):
    """A holder that sleeps, another process, and the clock of both."""

    holder: RowLog
    sleeper: Sleeper
    other: RowLog
    clock: LaterClock


@asynccontextmanager
async def two(opened: Opened, call: str) -> AsyncIterator[Two]:
    """Give two processes; the first is delayed before ``call``."""
    rows, table = opened
    clock = LaterClock()
    sleeper = Sleeper(rows, table, call)
    settings = {"row_locks": True, "lock_timeout_ms": LOCK_MS}

    def log(given: Any) -> RowLog:
        name = f"locks{table.decode()}"
        return RowLog(None, table.decode(), id=name, rows=given, clock=clock, settings=settings)

    async with log(sleeper) as holder, log(Sleeper(rows, table, "")) as other:
        for each in (other, holder):
            await each.subscribe(Subscription("a"))
        yield Two(holder, sleeper, other, clock)


class RowLocksContract:
    """The guarantees of a row lock over every implementation."""

    @pytest.fixture
    def row(self) -> bytes:
        """A row of its own."""
        return b"lock" + secrets.token_bytes(6)

    async def test_a_put_is_refused_if_its_lock_was_taken_over_before_it_was_sent(
        self, opened: Opened, row: bytes
    ) -> None:
        """The holder sleeps after it took the lock, before it draws its number."""
        rows, table = opened
        async with two(opened, "increment") as (holder, sleeper, other, clock):
            putting = asyncio.create_task(holder.put(row, {A: b"holder"}, b"p"))
            await sleeper.reached.wait()
            clock.later_s += LOCK_MS / 1000 + 1
            put = await other.put(row, {A: b"other"}, b"p")
            sleeper.go.set()
            if rows.changes_together:
                with pytest.raises(OutcomeUnknown, match="was lost"):
                    await putting
            else:
                with pytest.raises(RowLocked, match=r"near its end.* nothing was written"):
                    await putting
            assert await rows.get(table, [row], [A]) == {row: {A: b"other"}}
            assert await other.open_messages(row) == [put]

    async def test_a_put_in_flight_during_a_takeover_is_refused_except_by_thrift_1(
        self, opened: Opened, row: bytes
    ) -> None:
        """The holder's put is in flight for longer than the lock lasts."""
        rows, table = opened
        call = "change" if rows.changes_together else "put"
        async with two(opened, call) as (holder, sleeper, other, clock):
            putting = asyncio.create_task(holder.put(row, {A: b"holder"}, b"p"))
            await sleeper.reached.wait()
            clock.later_s += LOCK_MS / 1000 + 1
            await other.put(row, {A: b"other"}, b"p")
            sleeper.go.set()
            if rows.changes_together:
                with pytest.raises(OutcomeUnknown, match="was lost"):
                    await putting
                assert await rows.get(table, [row], [A]) == {row: {A: b"other"}}
            else:
                assert await putting is not None, "the guide says that this may happen"
                assert await rows.get(table, [row], [A]) == {row: {A: b"holder"}}

    async def test_near_the_end_of_a_lock_only_a_put_that_compares_the_lock_is_made(
        self, opened: Opened, row: bytes
    ) -> None:
        rows, table = opened
        async with two(opened, "increment") as (holder, sleeper, _, clock):
            putting = asyncio.create_task(holder.put(row, {A: b"holder"}))
            await sleeper.reached.wait()
            clock.later_s += (LOCK_MS - LATE_MS / 2) / 1000
            sleeper.go.set()
            if rows.changes_together:
                assert await putting is not None
            else:
                with pytest.raises(RowLocked, match="near its end; nothing was written"):
                    await putting
                assert await rows.get(table, [row], [A]) == {}

    async def test_a_holder_releases_its_own_lock_alone(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        clock = LaterClock()
        columns = Columns(b"rowlog", 4)
        locks = RowLocks(rows, Rows(rows, table, columns), clock)
        first = locks.locked(row, SETTINGS)
        await first.__aenter__()
        clock.later_s += LOCK_MS / 1000 + 1
        async with locks.locked(row, SETTINGS) as permit:
            await first.__aexit__(None, None, None)
            found = await rows.get(table, [row], [columns.lock])
            assert found == {row: {columns.lock: permit.guard.expected}}
        assert (await rows.get(table, [row], [columns.lock]))[row] == {columns.lock: b""}

    async def test_one_holder_at_a_time_has_the_lock(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        locks = RowLocks(rows, Rows(rows, table, Columns(b"rowlog", 4)), SystemClock())
        holding: list[int] = []
        most = []

        async def hold(number: int) -> None:
            async with locks.locked(row, SETTINGS):
                holding.append(number)
                await rows.get(table, [row], [A])
                most.append(len(holding))
                holding.remove(number)

        await asyncio.gather(*map(hold, range(6)))
        assert most == [1] * 6

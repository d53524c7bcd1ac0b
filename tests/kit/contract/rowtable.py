"""The contract of the rows that a rowlog lies in: memory, Thrift-1 through happybase, Thrift-2 with FSYNC_WAL.

Give a fixture ``opened``: the table port and the name of a table with the families ``d`` and ``rowlog``. Every test
takes rows of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import NamedTuple

import pytest

from broker.errors import Unavailable
from broker.rowlog.row_table import Guard, RowTable, TableError

A, B, STATE = b"d:a", b"d:b", b"rowlog:\x04\x02\x00'\xff(x"


class Opened(NamedTuple):
    """A table to test."""

    rows: RowTable
    table: bytes


class RowTableContract:
    """What every implementation does."""

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

    async def test_only_the_cell_that_is_as_expected_is_changed(
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

    async def test_of_many_that_compare_one_wins(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        won = await asyncio.gather(
            *(rows.check_and_put(table, row, STATE, b"", b"%d" % each) for each in range(8))
        )
        found = await rows.get(table, [row], [STATE])
        winner = int(found[row][STATE])
        # A False is not certain: the gateway may have repeated what it thought lost.
        assert [each for each in range(8) if won[each]] in ([winner], [])

    async def test_a_counter_gives_each_number_once(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        drawn = await asyncio.gather(*(rows.increment(table, row, A) for _ in range(8)))
        assert sorted(drawn) == [*range(1, 9)]
        assert await rows.increment(table, row, A, 5) == 13

    async def test_a_scan_has_exactly_its_range_in_order(self, opened: Opened, row: bytes) -> None:
        rows, table = opened
        keys = [row + bytes([each]) for each in (0, 1, 2, 255)]
        await rows.put(table, [(key, {A: key, STATE: b"s"}) for key in reversed(keys)])
        found = await rows.scan(table, row, row + b"\xff", [A], limit=10)
        assert found == [(key, {A: key}) for key in keys[:3]]
        assert [key for key, _ in await rows.scan(table, keys[1], b"", [A], limit=2)] == keys[1:3]

    async def test_a_scan_by_a_prefix_leaves_other_cells_and_rows_out(
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

    async def test_it_lists_tables_and_makes_one_once(self, opened: Opened) -> None:
        rows, table = opened
        assert table in await rows.tables()
        assert not await rows.make_table(table, b"d", [])

    async def test_a_change_in_one_step_goes_by_its_guard(self, opened: Opened, row: bytes) -> None:
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

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.cells import Cell, CellsError, CellsRefused, RowCells, Scanned
from broker.storage.hbase_requests import FRAME_BYTES_MAX
from broker.storage.hbase_table import DELETES_MAX, HBaseTable
from tests.unit.storage.fake_hbase import FakeGateways

KEYS = st.binary(max_size=4) | st.lists(st.sampled_from(b"\0\1\xfe\xff"), max_size=4).map(bytes)


def row(key: bytes, value: bytes = b"v", tag: int = 2) -> RowCells:
    return RowCells(key, {b"p": Cell(tag, value)})


@given(st.sets(KEYS.filter(len), max_size=20), KEYS, KEYS, st.integers(0, 25), st.booleans())
async def test_a_scan_gives_what_lies_between(
    keys: set[bytes], start: bytes, stop: bytes, rows_max: int, reverse: bool
) -> None:
    table = HBaseTable(FakeGateways(), "t")
    await table.put([row(key) for key in sorted(keys)])
    found, more = await table.scan(
        start, stop, rows_max=rows_max, bytes_max=1 << 20, reverse=reverse
    )
    wanted = sorted((k for k in keys if start <= k and (k < stop or not stop)), reverse=reverse)
    if stop or not reverse:
        assert [r.key for r in found] == wanted[:rows_max]
        assert more or len(wanted) <= rows_max
        assert (
            await table.keys(start, stop, rows_max=rows_max, reverse=reverse) == wanted[:rows_max]
        )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows_max", [10, 100])
async def test_a_scan_is_bounded_in_bytes(rows_max: int, reverse: bool) -> None:
    gateway = FakeGateways()
    table = HBaseTable(gateway, "t")
    await table.put([row(b"%02d" % number, b"x" * 1000) for number in range(50)])
    found, more = await table.scan(b"0", b"9", rows_max=rows_max, bytes_max=3500, reverse=reverse)
    wanted = range(49, 46, -1) if reverse else range(3)
    assert [r.key for r in found] == [b"%02d" % number for number in wanted]
    assert more
    assert gateway.client.sent <= 1002 * min(rows_max + 1, 16)
    found, more = await table.scan(b"0", b"9", rows_max=rows_max, bytes_max=1, reverse=reverse)
    assert (len(found), more) == (1, True)


async def test_of_chosen_columns_only_they_are_shown() -> None:
    table = HBaseTable(FakeGateways(), "t")
    await table.put([RowCells(b"a", {b"p": Cell(2, b"p"), b"e": Cell(2, b"e")}), row(b"b")])
    found = await table.scan(b"a", b"c", rows_max=9, bytes_max=99, columns=(b"e", b"x"))
    assert found == Scanned([RowCells(b"a", {b"e": Cell(2, b"e")})], more=False)


async def test_cells_come_back_with_their_tags() -> None:
    gateway = FakeGateways()
    table = HBaseTable(gateway, "t")
    cells = {b"p": Cell(4, b""), b"e": Cell(4, b"\xff\0"), b"t": Cell(5, b"8")}
    await table.put([RowCells(b"a", cells), row(b"b")])
    await table.put([row(b"c")])
    assert await table.get(b"a") == cells
    assert await table.get(b"nothing") is None
    found = await table.scan(b"a", b"b", rows_max=9, bytes_max=99)
    assert found == Scanned([RowCells(b"a", cells)], more=False)
    assert gateway.client.calls[:2] == ["putMultiple", "put"]


async def test_a_range_is_weighed_by_lengths() -> None:
    table = HBaseTable(FakeGateways(), "t")
    await table.put([row(b"%05d" % number, b"x" * 10) for number in range(2500)])
    assert await table.weigh(b"", b"", 10_000) == (2500, 2500 * 15)
    assert await table.weigh(b"00010", b"00020", 10_000) == (10, 150)
    rows, _ = await table.weigh(b"", b"", 1500)
    assert 1500 <= rows < 2500


class Refusing(FakeGateways):
    """Gateways that take so many calls, and refuse what follows."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.left = taken

    async def call(self, name: str, work: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise CellsRefused("nobody there")
        return await super().call(name, work)


async def test_a_write_of_which_a_part_was_sent_is_not_refused() -> None:
    large = [row(b"%d" % number, b"x" * FRAME_BYTES_MAX) for number in range(3)]
    keys = [b"%04d" % number for number in range(2 * DELETES_MAX)]
    for taken, whole in ((0, True), (1, False)):
        for write in (lambda t: t.put(large), lambda t: t.delete(keys)):
            with pytest.raises(CellsError) as caught:
                await write(HBaseTable(Refusing(taken), "t"))
            assert isinstance(caught.value, CellsRefused) is whole

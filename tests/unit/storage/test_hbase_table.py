from hypothesis import given
from hypothesis import strategies as st

from broker.storage.cells import Cell, RowCells
from broker.storage.hbase_table import FRAME_BYTES_MAX, HBaseTable, _frames
from tests.unit.storage.fake_hbase import FakeGateway

KEYS = st.binary(max_size=4) | st.lists(st.sampled_from(b"\0\1\xfe\xff"), max_size=4).map(bytes)


def row(key: bytes, value: bytes = b"v", tag: int = 2) -> RowCells:
    return RowCells(key, {b"p": Cell(tag, value)})


@given(st.sets(KEYS.filter(len), max_size=20), KEYS, KEYS, st.integers(0, 25), st.booleans())
async def test_a_scan_gives_what_lies_between(
    keys: set[bytes], start: bytes, stop: bytes, rows_max: int, reverse: bool
) -> None:
    table = HBaseTable(FakeGateway(), "t")
    await table.put([row(key) for key in sorted(keys)])
    found = await table.scan(start, stop, rows_max=rows_max, reverse=reverse)
    wanted = sorted((k for k in keys if start <= k and (k < stop or not stop)), reverse=reverse)
    if stop or not reverse:
        assert [r.key for r in found] == wanted[:rows_max]


async def test_cells_come_back_with_their_tags() -> None:
    gateway = FakeGateway()
    table = HBaseTable(gateway, "t")
    cells = {b"p": Cell(4, b""), b"e": Cell(4, b"\xff\0"), b"t": Cell(5, b"8")}
    await table.put([RowCells(b"a", cells), row(b"b")])
    await table.put([row(b"c")])
    assert await table.get(b"a") == cells
    assert await table.get(b"nothing") is None
    assert await table.scan(b"a", b"b", rows_max=9) == [RowCells(b"a", cells)]
    assert gateway.client.calls[:2] == ["putMultiple", "put"]


def test_frames_keep_rows_in_order_and_within_bounds() -> None:
    rows = [row(b"%03d" % number, b"x" * 100_000) for number in range(50)]
    frames = list(_frames(rows))
    assert [r for frame in frames for r in frame] == rows
    assert len(frames) > 3
    for frame in frames:
        assert sum(len(r.columns[b"p"].value) for r in frame) <= FRAME_BYTES_MAX


def test_many_small_rows_are_weighed_with_what_thrift_adds() -> None:
    rows = [RowCells(b"%09d" % n, {b"e": Cell(2, b"12345678")}) for n in range(30_000)]
    assert max(len(frame) for frame in _frames(rows)) * 90 < FRAME_BYTES_MAX * 1.1


def test_a_row_over_the_bound_has_a_frame_of_its_own() -> None:
    rows = [row(b"a"), row(b"b", b"x" * 2 * FRAME_BYTES_MAX), row(b"c")]
    assert [len(frame) for frame in _frames(rows)] == [1, 1, 1]
    assert list(_frames([])) == []


async def test_a_range_is_weighed_by_lengths() -> None:
    table = HBaseTable(FakeGateway(), "t")
    await table.put([row(b"%05d" % number, b"x" * 10) for number in range(2500)])
    assert await table.weigh(b"", b"", 10_000) == (2500, 2500 * 15)
    assert await table.weigh(b"00010", b"00020", 10_000) == (10, 150)
    rows, _ = await table.weigh(b"", b"", 1500)
    assert 1500 <= rows < 2500

"""What is put together here are thriftpy2's own bytes."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage import hbase_requests
from broker.storage.cells import Cell, RowCells
from broker.storage.hbase_exchange import IDL, encode
from broker.storage.hbase_requests import FAMILY, FRAME_BYTES_MAX, puts

SYNCED, FLUSHED = IDL.TDurability.FSYNC_WAL, IDL.TDurability.SYNC_WAL
CELLS = st.builds(Cell, st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=20))
COLUMNS = st.dictionaries(st.binary(min_size=1, max_size=2), CELLS, min_size=1, max_size=4)
ROWS = st.lists(st.builds(RowCells, st.binary(max_size=9), COLUMNS), min_size=1, max_size=5)


def row(key: bytes, value: bytes = b"v") -> RowCells:
    return RowCells(key, {b"p": Cell(2, value)})


def put(key: bytes, columns: dict[bytes, tuple[int | None, bytes]], durability: int) -> Any:
    cells = [
        IDL.TColumnValue(family=FAMILY, qualifier=column, value=value, timestamp=tag)
        for column, (tag, value) in columns.items()
    ]
    return IDL.TPut(row=key, columnValues=cells, durability=durability)


@given(st.binary(max_size=9), st.binary(max_size=1), ROWS, st.sampled_from((SYNCED, FLUSHED)))
def test_rows_are_written_as_thriftpy2_writes_them(
    table: bytes, prefix: bytes, rows: list[RowCells], durability: int
) -> None:
    made = [put(prefix + key, dict(columns), durability) for key, columns in rows]
    ((api, request),) = puts(table, prefix, rows, durability)
    assert api == ("put" if len(rows) == 1 else "putMultiple")
    assert request == encode(api, (table, made[0] if len(rows) == 1 else made))


def test_a_cell_that_rows_share_is_written_with_each() -> None:
    shared, other = Cell(2, b"e"), Cell(2, b"x")
    rows = [
        RowCells(b"1", {b"e": shared, b"p": Cell(2, b"1")}),
        RowCells(b"2", {b"e": shared, b"p": Cell(2, b"2")}),
        RowCells(b"3", {b"p": shared, b"e": other}),
        RowCells(b"4", {b"e": shared}),
    ]
    ((_, request),) = puts(b"t", b"", rows, SYNCED)
    made = [put(key, dict(columns), SYNCED) for key, columns in rows]
    assert request == encode("putMultiple", (b"t", made))


@given(st.binary(max_size=20), st.none() | st.binary(max_size=20), st.binary(max_size=20))
def test_a_compare_and_set_is_written_as_thriftpy2_writes_it(
    key: bytes, expected: bytes | None, value: bytes
) -> None:
    made = put(key, {b"c": (None, value)}, SYNCED)
    asked = (b"t", key, FAMILY, b"c", expected, made)
    request = hbase_requests.check_and_put(b"t", key, expected, value, SYNCED)
    assert request == encode("checkAndPut", asked)


def calls(rows: Sequence[RowCells]) -> list[list[bytes]]:
    """Return the keys that each call writes; in these tests no key is within another or a value."""
    requests = [request for _, request in puts(b"t", b"", rows, SYNCED)]
    return [[row.key for row in rows if row.key in request] for request in requests]


def test_calls_keep_rows_in_order_and_within_bounds() -> None:
    rows = [row(b"%03d" % number, b"x" * 100_000) for number in range(50)]
    requests = [request for _, request in puts(b"t", b"", rows, SYNCED)]
    assert [key for keys in calls(rows) for key in keys] == [row.key for row in rows]
    assert len(requests) > 3
    assert max(map(len, requests)) < FRAME_BYTES_MAX + 100


def test_many_small_rows_are_weighed_with_what_thrift_adds() -> None:
    rows = [RowCells(b"%09d" % n, {b"e": Cell(2, b"12345678")}) for n in range(30_000)]
    requests = [request for _, request in puts(b"t", b"", rows, SYNCED)]
    assert len(requests) == 2
    assert max(map(len, requests)) < FRAME_BYTES_MAX + 100


def test_a_row_over_the_bound_has_a_call_of_its_own() -> None:
    large = row(b"-b-", b"x" * 2 * FRAME_BYTES_MAX)
    assert calls([row(b"-a-"), large, row(b"-c-")]) == [[b"-a-"], [b"-b-"], [b"-c-"]]
    assert calls([large]) == [[b"-b-"]]
    assert calls([]) == []


@pytest.mark.parametrize("api", ["put", "putMultiple", "checkAndPut"])
def test_arguments_are_those_of_the_interface(api: str) -> None:
    """A new argument of the interface would be missing in what is put together here."""
    given = getattr(IDL.THBaseService, f"{api}_args").thrift_spec
    known = {"put": 2, "putMultiple": 2, "checkAndPut": 6}
    assert len(given) == known[api]
    assert (len(IDL.TPut.thrift_spec), len(IDL.TColumnValue.thrift_spec)) == (3, 4)

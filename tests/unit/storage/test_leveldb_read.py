from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageCorrupt
from broker.model import RowId
from broker.storage.control import EpochRange, owns
from broker.storage.leveldb_read import Page, Stretch, stretches
from broker.storage.ports import Row
from broker.storage.rowvalue import Head, encode_head

SMALL = st.integers(0, 30)


def row(number: int) -> RowId:
    return number.to_bytes(10, "big")


@st.composite
def ranges(draw: st.DrawFn) -> tuple[EpochRange, ...]:
    """Entries as control.py makes them: epochs rise, ``after`` never falls."""
    afters = sorted(draw(st.lists(SMALL, min_size=1, max_size=5)))
    epochs = sorted(draw(st.sets(st.integers(1, 40), min_size=2 * len(afters), max_size=12)))
    return tuple(
        EpochRange(epochs[2 * place], epochs[2 * place + 1], row(after))
        for place, after in enumerate(afters)
    )


@given(ranges(), SMALL, SMALL)
def test_stretches_cover_each_id_with_its_owner(
    entries: tuple[EpochRange, ...], first: int, through: int
) -> None:
    found = stretches(entries, row(first), row(through))
    for one, other in pairwise(found):
        assert one.through < other.first
    for number in range(31):
        inside = [part for part in found if part.first <= row(number) <= part.through]
        for epoch in range(1, 42):
            counts = any(part.entry.first <= epoch <= part.entry.last for part in inside)
            assert counts is (first <= number <= through and owns(entries, row(number), epoch))


ENTRY = EpochRange(2, 3, row(0))


def value(epoch: int, payload: bytes = b"xyz", pointer: int | None = None) -> bytes:
    return encode_head(Head(epoch, False, pointer, None, None)) + payload


def test_a_page_takes_what_counts_and_decodes_each_row() -> None:
    reference = encode_head(Head(2, True, 7, None, 50))
    pairs = [
        (row(1), value(2)),
        (row(2), value(4)),  # Of an epoch that does not own these ids.
        (row(3), value(3, b"")),
        (row(4), reference),
        (row(5), value(1)),
        (row(6), value(2, b"last", pointer=-9)),
    ]
    page = Page(100, 1000)
    page.collect(iter(pairs), ENTRY)
    assert page.rows == [
        Row(row(1), b"xyz"),
        Row(row(3), b""),
        Row(row(4), None, 7, None, 50),
        Row(row(6), b"last", -9),
    ]
    assert all(type(found) is Row for found in page.rows)
    assert (page.full, page.seen) == (False, row(6))


@pytest.mark.parametrize(
    ("rows_max", "bytes_max", "taken"), [(2, 1000, 2), (9, 24, 2), (9, 1, 1), (0, 9, 0), (9, 0, 1)]
)
def test_a_page_ends_at_either_bound(rows_max: int, bytes_max: int, taken: int) -> None:
    pairs = iter([(row(number), value(2)) for number in range(1, 9)])
    page = Page(rows_max, bytes_max)
    if not page.full:
        page.collect(pairs, ENTRY)
    assert len(page.rows) == taken
    assert page.full
    assert page.seen == (row(taken) if taken else None)


def test_a_value_without_a_head_is_corrupt() -> None:
    for damaged in (b"", b"\x00" * 20, value(2)[:4]):
        with pytest.raises(StorageCorrupt):
            Page(9, 99).collect(iter([(row(1), value(2)), (row(2), damaged)]), ENTRY)


def test_an_empty_window_has_no_stretches() -> None:
    assert stretches((ENTRY,), row(5), row(4)) == []
    assert stretches((ENTRY,), row(0), row(4)) == [Stretch(row(1), row(4), ENTRY)]


kinds = st.tuples(
    st.sampled_from([2, 2, 2, 3, 4]),  # The epoch; 4 does not count.
    st.binary(max_size=40),
    st.sampled_from([None, None, None, 7, -7]),
)


@given(st.lists(kinds, max_size=700), st.integers(1, 600), st.integers(0, 9000))
def test_a_page_is_what_looking_at_each_row_gives(
    rows: list[tuple[int, bytes, int | None]], rows_max: int, bytes_max: int
) -> None:
    pairs = [(row(n), value(*kind)) for n, kind in enumerate(rows, start=1)]
    page = Page(rows_max, bytes_max)
    page.collect(iter(pairs), ENTRY)
    taken = list(page.rows)
    assert taken == [
        Row(key, payload, pointer)
        for (key, _), (epoch, payload, pointer) in zip(pairs, rows, strict=True)
        if epoch != 4 and page.seen is not None and key <= page.seen
    ]
    assert len(taken) <= rows_max
    size = sum(len(stored) for (key, stored) in pairs if any(key == r.id for r in taken))
    if page.full:
        assert len(taken) == rows_max or size >= bytes_max
        # A chunk is cut by its largest row so far, so that little can go over.
        assert len(taken) == 1 or size <= bytes_max + 257 * 60
    else:
        assert page.seen == (pairs[-1][0] if pairs else None)

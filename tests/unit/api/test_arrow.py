"""Batches against what a poll gives out: the same ids and payloads, however they lie in entries."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.api.arrow import ArrowMaker, ArrowStream
from broker.errors import NotInstalled
from broker.model import row_id
from broker.storage import entry as entries
from broker.storage.entry import Entry, Shared, entries_of
from broker.storage.gathering import joined
from broker.topics.pages import Page, Run
from broker.wire.blocks import END, PollDecoder

MAKER = ArrowMaker()
SIZES = [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 100_000]


def page_of(runs: Sequence[Run]) -> Page:
    return Page(list(runs), sum(stop - first for _, first, stop, _ in runs), 0)


def polled(page: Page) -> list[tuple[bytes, bytes]]:
    return [message[:2] for message in PollDecoder().feed(page.block() + END)]


def made(stream: ArrowStream, *pages: Page) -> pa.Table:
    pieces = [piece for page in pages for piece in stream.batch(page)]
    table = pa.ipc.open_stream(b"".join([*pieces, stream.end()])).read_all()
    table.validate(full=True)
    return table


def rows_of(table: pa.Table) -> list[tuple[bytes, bytes]]:
    return list(zip(*table.to_pydict().values(), strict=True))


def entry_of(sizes: Sequence[int], form: str, *, is_stored: bool = False) -> list[Entry]:
    """Return entries with payloads of these sizes, as they were made, read, or joined."""
    ids = [row_id(1000 + place, place) for place in range(len(sizes))]
    payloads = [bytes([place % 256]) * size for place, size in enumerate(sizes)]
    found = entries_of(1, ids, payloads, Shared(is_stored=is_stored))
    if form == "stored":
        return [entries.decode(entries.encode(entry)) for entry in found]
    return [joined(found)] if form == "joined" else found


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    found: list[Run] = []
    for _ in range(draw(st.integers(1, 4))):
        size = st.sampled_from(SIZES[:-1]) | st.integers(0, 300)
        sizes = draw(st.lists(size, min_size=1, max_size=12) | st.lists(st.just(5), min_size=1))
        reference = draw(st.sampled_from([None, row_id(5000, 1), row_id(6000, 2)]))
        form = draw(st.sampled_from(["made", "stored", "joined"]))
        for entry in entry_of(sizes, form, is_stored=reference is not None):
            first = draw(st.integers(0, entry.count - 1))
            stop = draw(st.integers(first + 1, entry.count))
            found.append((entry, first, stop, reference))
    return found


@settings(deadline=None)
@given(st.lists(runs(), min_size=1, max_size=3))
def test_batches_have_what_polls_have(several: list[list[Run]]) -> None:
    pages = [page_of(each) for each in several]
    table = made(MAKER.stream(), *pages)
    assert rows_of(table) == [row for page in pages for row in polled(page)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reference", [None, row_id(5000, 1)])
def test_payloads_of_every_size(size: int, reference: bytes | None) -> None:
    for sizes in ([size] * 5, [size, 0, size, 300, size]):
        found = entry_of(sizes, "stored", is_stored=reference is not None)
        page = page_of([(entry, 0, entry.count, reference) for entry in found])
        assert rows_of(made(MAKER.stream(), page)) == polled(page)


def test_items_of_one_size_whose_payloads_differ() -> None:
    """63 bytes behind a length of one, in a payload log, are as long as 52 in the message log."""
    reference = row_id(5000, 1)
    (stored,) = entry_of([63], "stored", is_stored=True)
    (inline,) = entry_of([52], "stored")
    assert len(stored.items) == len(inline.items)
    page = page_of([(stored, 0, 1, reference), (inline, 0, 1, None)])
    assert rows_of(made(MAKER.stream(), page)) == polled(page)


def test_a_stream_without_batches_has_its_columns() -> None:
    table = made(MAKER.stream())
    assert table.num_rows == 0
    assert table.schema == pa.schema([("id", pa.binary()), ("value", pa.binary())])


def test_the_payloads_are_a_piece_of_their_own() -> None:
    page = page_of([(entry, 0, entry.count, None) for entry in entry_of([1000] * 30, "stored")])
    before, values = MAKER.stream().batch(page)
    assert isinstance(values, memoryview)
    assert (len(values), len(before) < 3000) == (30_000, True)


@pytest.mark.parametrize("missing", ["numpy", "pyarrow"])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    without: dict[str, Any] = {missing: None}
    for name, module in without.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(NotInstalled, match=r"tms-broker\[arrow\]"):
        ArrowMaker()

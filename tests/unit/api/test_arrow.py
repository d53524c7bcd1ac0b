"""Arrow batches have the ids and payloads of a poll, in whichever entries they are stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.api.messages.arrow import ArrowMaker, ArrowStream
from broker.errors import NotInstalled
from broker.model import log_key
from broker.storage import entry as entries
from broker.storage.entry import Entry, Shared, entries_of
from broker.storage.page_entries import joined
from broker.topics.pages import PollPage, Run
from broker.wire import attributes
from broker.wire.attributes import Attributes
from broker.wire.blocks import END, PollDecoder

MAKER = ArrowMaker()
SIZES = [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 100_000]


def page_of(runs: Sequence[Run]) -> PollPage:
    return PollPage(list(runs), sum(stop - first for _, first, stop, _ in runs), 0)


def polled(page: PollPage) -> list[tuple[bytes, bytes]]:
    return [message[:2] for message in PollDecoder().feed(b"".join(page.block()) + END)]


def made(stream: ArrowStream, *pages: PollPage) -> pa.Table:
    pieces = [piece for page in pages for piece in stream.batch(page)]
    table = pa.ipc.open_stream(b"".join([*pieces, stream.end()])).read_all()
    table.validate(full=True)
    return table


def rows_of(table: pa.Table) -> list[tuple[bytes, bytes]]:
    return list(zip(*table.select(["id", "value"]).to_pydict().values(), strict=True))


def attributed(table: pa.Table) -> dict[int, Attributes]:
    """Return the keys and headers of the rows that have any."""
    keys = table.column("key").to_pylist()
    headers = table.column("headers").to_pylist(maps_as_pydicts="strict")
    rows = enumerate(zip(keys, headers, strict=True))
    assert {} not in headers  # A row without headers has null.
    return {place: (key, some or {}) for place, (key, some) in rows if (key, some) != (None, None)}


def entry_of(
    sizes: Sequence[int], form: str, *, is_stored: bool = False, encoded: Sequence[bytes] = ()
) -> list[Entry]:
    """Return entries with payloads of these sizes: new, decoded from storage, or joined."""
    ids = [log_key(1000 + place, place) for place in range(len(sizes))]
    payloads = [bytes([place % 256]) * size for place, size in enumerate(sizes)]
    found = entries_of(1, ids, payloads, Shared(is_stored=is_stored), encoded)
    if form == "stored":
        return [entries.decode(entries.encode(entry)) for entry in found]
    return [joined(found)] if form == "joined" else found


SHORT = st.binary(max_size=5) | st.just(bytes(200))
ENCODED = st.builds(
    attributes.encode,
    st.none() | SHORT,
    st.dictionaries(st.text(min_size=1, max_size=5), SHORT, max_size=3),
)


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    found: list[Run] = []
    for _ in range(draw(st.integers(1, 4))):
        size = st.sampled_from(SIZES[:-1]) | st.integers(0, 300)
        sizes = draw(st.lists(size, min_size=1, max_size=12) | st.lists(st.just(5), min_size=1))
        reference = draw(st.sampled_from([None, log_key(5000, 1), log_key(6000, 2)]))
        form = draw(st.sampled_from(["made", "stored", "joined"]))
        encoded = draw(st.just([]) | st.lists(ENCODED, min_size=len(sizes), max_size=len(sizes)))
        for entry in entry_of(sizes, form, is_stored=reference is not None, encoded=encoded):
            first = draw(st.integers(0, entry.count - 1))
            stop = draw(st.integers(first + 1, entry.count))
            found.append((entry, first, stop, reference))
    return found


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(runs(), min_size=1, max_size=3))
def test_batches_have_the_rows_of_polls(several: list[list[Run]]) -> None:
    pages = [page_of(each) for each in several]
    table = made(MAKER.stream(), *pages)
    assert rows_of(table) == [row for page in pages for row in polled(page)]
    expected, base = {}, 0
    for page in pages:
        expected |= {base + at: attributes.decode(each) for at, each in page.attributes()}
        base += page.count
    assert attributed(table) == expected


def test_keys_and_headers_are_columns() -> None:
    kinds: list[Attributes] = [
        (None, {}),
        (b"k", {}),
        (b"", {"a": b"1", "\N{SNOWMAN}": b"\xff"}),
        (None, {}),
        (None, {"a": b""}),
    ]
    encoded = [attributes.encode(*kind) for kind in kinds]
    page = page_of([(each, 0, 5, None) for each in entry_of([3] * 5, "stored", encoded=encoded)])
    plain = page_of([(each, 0, 5, None) for each in entry_of([3] * 5, "stored")])
    table = made(MAKER.stream(), plain, page, plain)
    assert attributed(table) == {6: kinds[1], 7: kinds[2], 9: kinds[4]}


def test_columns_of_any_length_may_have_no_attributes() -> None:
    maker = ArrowMaker()
    for count in (3, 1, 1, 100, 9, 2000):
        page = page_of([(each, 0, each.count, None) for each in entry_of([1] * count, "stored")])
        table = made(maker.stream(), page)
        assert (table.num_rows, attributed(table)) == (count, {})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reference", [None, log_key(5000, 1)])
def test_payloads_of_every_size(size: int, reference: bytes | None) -> None:
    for sizes in ([size] * 5, [size, 0, size, 300, size]):
        found = entry_of(sizes, "stored", is_stored=reference is not None)
        page = page_of([(entry, 0, entry.count, reference) for entry in found])
        assert rows_of(made(MAKER.stream(), page)) == polled(page)


def test_items_of_one_size_whose_payloads_differ() -> None:
    """An item of 63 payload bytes in a payload log is as long as one of 52 bytes in the message log."""
    reference = log_key(5000, 1)
    (stored,) = entry_of([63], "stored", is_stored=True)
    (inline,) = entry_of([52], "stored")
    assert len(stored.items) == len(inline.items)
    page = page_of([(stored, 0, 1, reference), (inline, 0, 1, None)])
    assert rows_of(made(MAKER.stream(), page)) == polled(page)


def test_a_stream_without_batches_has_its_columns() -> None:
    table = made(MAKER.stream())
    assert table.num_rows == 0
    assert table.schema == pa.schema(
        [
            ("id", pa.binary()),
            ("value", pa.binary()),
            ("key", pa.binary()),
            ("headers", pa.map_(pa.string(), pa.binary())),
        ]
    )


def test_large_columns_are_separate_pieces() -> None:
    page = page_of([(entry, 0, entry.count, None) for entry in entry_of([1000] * 30, "stored")])
    stream = MAKER.stream()
    for _ in range(2):
        before, values, after = stream.batch(page)
        assert isinstance(values, memoryview)
        assert (len(values), len(before) + len(after) < 5000) == (30_000, True)
    assert len(stream.end()) == 8


def test_a_batch_is_whole_when_its_pieces_are_sent() -> None:
    """That holds for a small batch too, so a reader does not wait for the next one."""
    page = page_of([(entry, 0, entry.count, None) for entry in entry_of([1], "stored")])
    stream = MAKER.stream()
    received = pa.ipc.open_stream(b"".join(stream.batch(page)))
    assert received.read_next_batch().num_rows == 1
    assert len(stream.end()) == 8


@pytest.mark.parametrize("missing", ["numpy", "pyarrow"])
def test_a_missing_package_for_arrow_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    without: dict[str, Any] = {missing: None}
    for name, module in without.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(NotInstalled, match=r"tms-broker\[arrow\]"):
        ArrowMaker()

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.model import ROW_ID_MIN, Message, row_before, row_id
from broker.storage.ports import Batch, Row, Segment
from broker.topics.cache import CacheBudget, MixedEntry, PlainEntry, TopicCache, rows_of
from broker.wire.blocks import PollDecoder

START = row_id(1000, 0)


class Rows:
    """Batches with rising ids, and all their rows."""

    def __init__(self) -> None:
        self._ms = 1000
        self.all: list[Row] = []

    def batch(self, *kinds: tuple[str, int]) -> Batch:
        segments = []
        for kind, count in kinds:
            self._ms += 1
            ids = [row_id(self._ms, seq) for seq in range(count)]
            payloads = [b"%d" % (len(self.all) + place) for place in range(count)]
            match kind:
                case "plain":
                    segment = Segment(ids, payloads)
                case "tx":
                    segment = Segment(ids, payloads, pointer=7)
                case "life":
                    segment = Segment(ids, payloads, lifetime_ms=50)
                case _:
                    segment = Segment(ids[:1], None, pointer=9)
            segments.append(segment)
            self.all += rows_of(segment)
        return Batch(segments, segments[-1].ids[-1])


def read(cache: TopicCache, after: bytes, through: bytes) -> list[tuple[bytes, bytes | None]]:
    """What the runs give, of plain entries as a consumer decodes it."""
    found: list[tuple[bytes, bytes | None]] = []
    for entry, first, stop in cache.runs(after, through):
        if isinstance(entry, MixedEntry):
            found += [(row.id, row.payload) for row in entry.rows(first, stop)]
        else:
            messages: list[Message] = PollDecoder().feed(b"".join(entry.parts(first, stop)))
            found += [(message.id[:10], message.payload) for message in messages]
    return found


batches = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["plain", "plain", "tx", "life", "reference"]), st.integers(1, 90)
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=50)
@given(batches, st.integers(0, 60_000), st.data())
def test_what_the_cache_covers_is_what_was_committed(
    kinds: list[list[tuple[str, int]]], bytes_max: int, data: st.DataObject
) -> None:
    budget = CacheBudget(bytes_max)
    cache = TopicCache(budget, START)
    rows = Rows()
    for batch in kinds:
        cache.add(rows.batch(*batch))
        assert 0 <= budget.bytes <= bytes_max
        if data.draw(st.booleans()):
            read(cache, cache.after, cache.pointer)  # Encodes, and closes entries.
    ids = [row.id for row in rows.all]
    assert cache.pointer == ids[-1]
    covered = [row for row in rows.all if row.id > cache.after]
    assert read(cache, cache.after, cache.pointer) == [(r.id, r.payload) for r in covered]
    after = data.draw(st.sampled_from([*ids, cache.after]))
    through = data.draw(st.sampled_from(ids))
    assert cache.covers(after, through) is (after >= cache.after)
    if cache.covers(after, through):
        wanted = [(r.id, r.payload) for r in rows.all if after < r.id <= through]
        assert read(cache, after, through) == wanted


def test_it_covers_nothing_beyond_what_it_was_told() -> None:
    rows = Rows()
    cache = TopicCache(CacheBudget(1 << 20), START)
    first = rows.batch(("plain", 3))
    second = rows.batch(("plain", 3))
    cache.add(first)
    assert cache.covers(START, first.last)
    assert cache.covers(START, None)
    assert not cache.covers(START, second.last)
    assert not cache.covers(row_before(START), first.last)


def test_topics_share_one_budget_and_the_oldest_goes() -> None:
    budget = CacheBudget(20_000)
    quiet, busy = TopicCache(budget, START), TopicCache(budget, START)
    rows = Rows()
    quiet.add(rows.batch(("tx", 10)))
    while quiet.covers(START, None):
        busy.add(rows.batch(("tx", 10)))
    assert busy.covers(START, None)
    assert budget.bytes <= 20_000
    assert quiet.after == quiet.pointer


def test_a_closed_cache_gives_its_bytes_back_and_takes_nothing_more() -> None:
    budget = CacheBudget(1 << 20)
    cache = TopicCache(budget, START)
    rows = Rows()
    cache.add(rows.batch(("plain", 5), ("tx", 5)))
    cache.close()
    assert budget.bytes == 0
    assert not budget._entries
    cache.add(rows.batch(("plain", 5)))
    assert budget.bytes == 0
    assert not cache.covers(START, None)
    assert list(cache.runs(START, rows.all[-1].id)) == []


def test_many_topics_that_come_and_go_leave_nothing_behind() -> None:
    budget = CacheBudget(1 << 30)
    rows = Rows()
    for _ in range(100):
        cache = TopicCache(budget, START)
        cache.add(rows.batch(("tx", 10)))
        cache.close()
    assert (budget.bytes, len(budget._entries)) == (0, 0)


def test_a_rollback_marks_the_rows_of_its_range_and_pointer() -> None:
    cache = TopicCache(CacheBudget(1 << 20), START)
    rows = Rows()
    cache.add(rows.batch(("plain", 2), ("tx", 4), ("reference", 1)))
    tx = [row.id for row in rows.all if row.pointer == 7]
    cache.negate(tx[1], tx[2], 7)
    cache.negate(tx[0], tx[3], 8)
    seen = [
        row.pointer
        for entry, first, stop in cache.runs(START, cache.pointer)
        if isinstance(entry, MixedEntry)
        for row in entry.rows(first, stop)
    ]
    assert seen == [7, -7, -7, 7, 9]


def test_small_commits_are_gathered_until_somebody_reads_many() -> None:
    cache = TopicCache(CacheBudget(1 << 20), START)
    rows = Rows()
    for _ in range(100):
        cache.add(rows.batch(("plain", 1)))
    assert len(list(cache.runs(START, cache.pointer))) == 1
    read(cache, START, cache.pointer)
    cache.add(rows.batch(("plain", 1)))
    entries = [entry for entry, _, _ in cache.runs(START, cache.pointer)]
    assert len(entries) == 2
    assert all(isinstance(entry, PlainEntry) for entry in entries)
    assert cache.pointer > ROW_ID_MIN

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.model import LogKey, log_key, log_key_before
from broker.storage.entry import Entry, Shared, entries_of
from broker.topics.cache import CacheBudget, TopicCache
from tests.kit.serving import eventually

START = log_key(1000, 0)
SHARED = {
    "plain": Shared(),
    "tx": Shared(pointer=7),
    "life": Shared(lifetime_ms=50),
    "reference": Shared(pointer=9, number=9),
}


class Log:
    """Entries with rising ids, and all their messages."""

    def __init__(self) -> None:
        self._ms = 1000
        self.all: list[tuple[LogKey, bytes]] = []

    def batch(self, *kinds: tuple[str, int]) -> list[Entry]:
        added: list[Entry] = []
        for kind, count in kinds:
            self._ms += 1
            ids = [log_key(self._ms, seq) for seq in range(1 if kind == "reference" else count)]
            payloads = [b"%d" % (len(self.all) + place) for place in range(len(ids))]
            self.all += zip(ids, payloads, strict=True)
            added += entries_of(1, ids, payloads, SHARED[kind])
        return added


def read(cache: TopicCache, after: bytes, through: bytes) -> list[tuple[bytes, bytes]]:
    """Return the messages that a reader takes in (after, through]."""
    found: list[tuple[bytes, bytes]] = []
    for entry in cache.entries(after, through):
        places = range(entry.place_after(after), entry.place_after(through))
        found += [(entry.id(place), entry.payload(place)) for place in places]
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
def test_the_cache_returns_exactly_the_committed_messages_of_its_range(
    kinds: list[list[tuple[str, int]]], bytes_max: int, data: st.DataObject
) -> None:
    budget = CacheBudget(bytes_max)
    cache = TopicCache(budget, START)
    log = Log()
    for batch in kinds:
        cache.add(log.batch(*batch))
        assert 0 <= budget.bytes <= bytes_max
        if data.draw(st.booleans()):
            read(cache, cache.after, cache.pointer)  # Joins small entries.
    ids = [row for row, _ in log.all]
    assert cache.pointer == ids[-1]
    places = sorted({START, *ids, *map(log_key_before, ids)})
    after = data.draw(st.sampled_from([place for place in places if place >= cache.after]))
    through = data.draw(st.sampled_from(places))
    assert cache.covers(after, None)
    assert cache.covers(after, through)
    wanted = [message for message in log.all if after < message[0] <= through]
    assert read(cache, after, through) == wanted
    cache.close()
    assert budget.bytes == 0
    assert not cache.covers(START, None) or cache.pointer == START


def test_a_cache_without_room_keeps_no_entries() -> None:
    cache = TopicCache(CacheBudget(0), START)
    log = Log()
    cache.add(log.batch(("plain", 3)))
    assert cache.after == cache.pointer == log.all[-1][0]
    assert not cache.covers(START, None)


def test_the_oldest_slot_of_all_topics_goes_first() -> None:
    budget = CacheBudget(1 << 20)
    one, other = TopicCache(budget, START), TopicCache(budget, START)
    first, second = Log(), Log()
    one.add(first.batch(("tx", 5)))
    other.add(second.batch(("tx", 5)))
    budget.bytes_max = budget.bytes - 1
    budget.grow(0)
    assert (one.covers(START, None), other.covers(START, None)) == (False, True)


def test_small_plain_entries_are_joined_for_all_readers() -> None:
    cache = TopicCache(CacheBudget(1 << 20), START)
    log = Log()
    for _ in range(100):
        cache.add(log.batch(("plain", 1)))
    assert len(list(cache.entries(START, cache.pointer))) == 1
    (entry,) = cache.entries(log.all[97][0], cache.pointer)
    assert entry.count - entry.place_after(log.all[97][0]) == 2
    cache.add(log.batch(("plain", 1)))
    assert read(cache, START, cache.pointer) == log.all


def test_an_entry_shows_which_messages_are_rolled_back() -> None:
    cache = TopicCache(CacheBudget(1 << 20), START)
    log = Log()
    cache.add(log.batch(("tx", 5), ("plain", 2), ("reference", 1)))
    ids = [row for row, _ in log.all]
    for _ in cache.mark_rolled_back(ids[1], ids[3], 7):
        pass
    for _ in cache.mark_rolled_back(ids[0], ids[-1], 8):
        pass
    told = [
        entry.is_rolled_back(row) for entry in cache.entries(START, ids[-1]) for row in entry.ids()
    ]
    assert told == [False, True, True, True, False, False, False, False]


def test_the_cache_returns_no_entry_below_the_floor() -> None:
    cache = TopicCache(CacheBudget(1 << 20), START)
    log = Log()
    cache.add(log.batch(("plain", 5), ("tx", 5)))
    cache.floor = log.all[5][0]
    assert [entry.first for entry in cache.entries(START, cache.pointer)] == [log.all[5][0]]


async def test_a_closed_cache_is_dropped_in_bounded_steps() -> None:
    budget = CacheBudget(1 << 30)
    cache = TopicCache(budget, START)
    for number in range(2_000):
        cache.add(entries_of(1, [log_key(2_000 + number, 0)], [b"x"], SHARED["tx"]))
    held = budget.bytes
    cache.close()
    assert not cache.covers(START, None), "a closed cache answers no reader"
    assert held * 3 // 4 < budget.bytes < held, "some slots are dropped at once"
    other = TopicCache(budget, START)
    other.add(entries_of(1, [log_key(1, 0)], [b"x"], SHARED["tx"]))
    await settled(lambda: budget.bytes == held // 2_000)


async def test_a_large_entry_displaces_many_small_ones_in_bounded_steps() -> None:
    budget = CacheBudget(2_000_000)
    cache = TopicCache(budget, START)
    for number in range(2_000):
        cache.add(entries_of(1, [log_key(2_000 + number, 0)], [b"x"], SHARED["tx"]))
    cache.add(entries_of(1, [log_key(9_000, 0)], [bytes(1_900_000)], SHARED["tx"]))
    assert budget.bytes > budget.bytes_max
    await settled(lambda: budget.bytes <= budget.bytes_max)
    assert [payload for _, payload in read(cache, cache.after, cache.pointer)][-1:] == [
        bytes(1_900_000)
    ]


async def settled(condition: Callable[[], bool]) -> None:
    await eventually(condition, lambda: "not yet")

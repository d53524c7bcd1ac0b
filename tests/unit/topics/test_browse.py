from __future__ import annotations

from typing import Any

import pytest

from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, RollbackRange, Snapshot
from broker.storage.keys import LogId, page_key
from broker.storage.ownpage import PageBounds
from broker.storage.table import Space
from broker.topics.browse import BrowseEntry, BrowseQuery, PayloadKind, TransactionState
from broker.topics.settings import PublishOptions
from tests.kit.bench import TOPIC, Bench


@pytest.fixture
async def filled(bench: Bench) -> Bench:
    """Inline, transactional, rolled back, references with and without payloads."""
    bench.restart(page_messages_max=3)
    await bench.create(ttl_s=100)
    await bench.publish(b"a", b"b")
    await bench.publish(b"tx", pointer=40)
    done = await bench.publish(b"gone", pointer=41)
    await bench.topics.rollback(TOPIC, RollbackRange(41, done.first, done.last))
    await bench.stored(42, b"s1", b"s2", b"s3", b"s4")
    await bench.publish(pointer=42)
    await bench.publish(pointer=43)
    await bench.publish(b"open", pointer=50)
    await bench.publish(b"z")
    return bench


async def whole(bench: Bench, query: BrowseQuery) -> list[BrowseEntry]:
    """Follow ``next`` to the end."""
    entries: list[BrowseEntry] = []
    while True:
        page = await bench.topics.browse(TOPIC, query)
        assert len(page.entries) <= query.limit
        entries += page.entries
        if page.next is None:
            return entries
        if query.descending:
            query = query._replace(end=page.next)
        else:
            query = query._replace(start=page.next)


async def test_a_browse_shows_every_live_message_with_its_state(filled: Bench) -> None:
    entries = (await filled.topics.browse(TOPIC, BrowseQuery())).entries
    none, published = TransactionState.NONE, TransactionState.PUBLISHED
    assert [(e.payload, e.kind, e.tx_state, e.pointer) for e in entries] == [
        (b"a", PayloadKind.INLINE, none, None),
        (b"b", PayloadKind.INLINE, none, None),
        (b"tx", PayloadKind.INLINE, published, 40),
        (b"gone", PayloadKind.INLINE, TransactionState.ROLLED_BACK, 41),
        (None, PayloadKind.REFERENCE, published, 42),
        *[(p, PayloadKind.STORED, published, 42) for p in (b"s1", b"s2", b"s3", b"s4")],
        (None, PayloadKind.REFERENCE, published, 43),
        (b"open", PayloadKind.INLINE, published, 50),
        (b"z", PayloadKind.INLINE, none, None),
    ]
    assert [e.id for e in entries] == sorted({e.id for e in entries})
    assert all(e.consumable is None for e in entries)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 11, 12, 13, 10_000])
@pytest.mark.parametrize("descending", [False, True])
async def test_pages_of_every_size_add_up_to_the_whole(
    filled: Bench, limit: int, descending: bool
) -> None:
    everything = (await filled.topics.browse(TOPIC, BrowseQuery())).entries
    got = await whole(filled, BrowseQuery(limit=limit, descending=descending))
    assert got == (everything[::-1] if descending else everything)


@pytest.mark.parametrize("descending", [False, True])
async def test_every_range_is_half_open(filled: Bench, descending: bool) -> None:
    everything = (await filled.topics.browse(TOPIC, BrowseQuery())).entries
    ids = [entry.id for entry in everything]
    for low in range(len(ids)):
        for high in range(len(ids)):
            query = BrowseQuery(ids[low], ids[high], 100, descending)
            wanted = everything[low:high]
            page = await filled.topics.browse(TOPIC, query)
            assert page.entries == (wanted[::-1] if descending else wanted)


async def test_times_are_starts_of_milliseconds(filled: Bench) -> None:
    everything = (await filled.topics.browse(TOPIC, BrowseQuery())).entries
    await filled.pass_ms(5000)
    later = await filled.publish(b"later")
    at_ms = int.from_bytes(later.first[:8], "big")
    page = await filled.topics.browse(TOPIC, BrowseQuery(start=at_ms))
    assert [e.payload for e in page.entries] == [b"later"]
    page = await filled.topics.browse(TOPIC, BrowseQuery(end=at_ms))
    assert page.entries == everything
    assert (await filled.topics.browse(TOPIC, BrowseQuery(at_ms, at_ms))).entries == []


async def test_a_snapshot_marks_the_messages_that_its_consumer_may_see(filled: Bench) -> None:
    snapshot = Snapshot(transaction_id=100, read_pointer=60, in_progress=[50], invalids=[42])
    query = BrowseQuery(snapshot=snapshot)
    everything = await whole(filled, query)
    consumable = [(e.payload, e.consumable) for e in everything]
    assert consumable == [
        (b"a", True),
        (b"b", True),
        (b"tx", True),
        (b"gone", False),
        (None, False),
        *[(p, False) for p in (b"s1", b"s2", b"s3", b"s4")],
        (None, True),
        (b"open", False),
        (b"z", False),
    ]
    # The message that holds the consumer may lie before any page.
    for limit in (1, 3):
        assert await whole(filled, query._replace(limit=limit)) == everything
        reverse = await whole(filled, query._replace(limit=limit, descending=True))
        assert reverse == everything[::-1]
    (last,) = (await filled.topics.browse(TOPIC, query._replace(start=everything[-1].id))).entries
    assert last.consumable is False


async def test_the_search_for_an_open_transaction_skips_older_messages(bench: Bench) -> None:
    await bench.create(ttl_s=10**7)
    for _ in range(3):
        await bench.publish(*[b"old"] * 10)
        await bench.pass_ms(10 * 3_600_000)
    pointer = bench.clock.now_ms() * 1_000_000
    await bench.publish(b"open", pointer=pointer)
    await bench.publish(b"new")
    snapshot = Snapshot(transaction_id=pointer + 2, read_pointer=pointer + 1, in_progress=[pointer])
    query = BrowseQuery(limit=1, descending=True, snapshot=snapshot)
    scanned: list[int] = []

    async def cells(real: Any, *arguments: Any, **named: Any) -> Any:
        found = await real(*arguments, **named)
        scanned.append(len(found.cells))
        return found

    bench.table.on("cells", cells, cells, cells)
    (newest,) = (await bench.topics.browse(TOPIC, query)).entries
    assert newest.consumable is False
    # The search reads the transaction and later messages, not messages older than the snapshot.
    assert scanned[-1] == 2


async def test_expires_at_is_the_last_millisecond_of_a_life(filled: Bench) -> None:
    published = await filled.publish(b"short", options=PublishOptions(ttl_s=3))
    (entry,) = (
        await filled.topics.browse(TOPIC, BrowseQuery(start=published.first + bytes(10)))
    ).entries
    assert entry.expires_at_ms == int.from_bytes(published.first[:8], "big") + 3000


async def test_a_browse_consumes_no_message(filled: Bench) -> None:
    before = await filled.poll()
    await whole(filled, BrowseQuery(limit=2))
    assert await filled.poll() == before


async def test_messages_whose_own_lives_were_ended_are_not_shown(bench: Bench) -> None:
    """The sweep leaves a stub of them in a page with others. A browse passes the stub."""
    bench.restart(sweep_margin_ms=0)
    await bench.create(ttl_s=1000)
    gone = await bench.publish(b"one", b"two", options=PublishOptions(ttl_s=1))
    await bench.publish(b"kept")
    await bench.pass_ms(10_000)
    await bench.sweeper.sweep()
    for query in (
        BrowseQuery(),
        BrowseQuery(descending=True),
        BrowseQuery(start=gone.first + bytes(10)),
        BrowseQuery(end=gone.last + bytes(10)),
    ):
        assert {e.payload for e in await whole(bench, query)} <= {b"kept"}


async def test_a_stale_read_of_a_payload_log_does_not_mislead_a_reverse_browse(
    bench: Bench,
) -> None:
    bench.memory.is_alone = False
    bench.bounds = PageBounds(cells_max=1)
    bench.restart()
    await bench.create(ttl_s=1000)
    await bench.stored(42, b"s1")

    async def scan(real: Any, space: Space, *arguments: Any, **named: Any) -> Any:
        found = await real(space, *arguments, **named)
        if space is not Space.PAYLOADS:
            return found
        return [each for each in found if each[0] == first] or [(first, before[first])]

    log = LogId(TOPIC, 1, 42)
    ends = page_key(log, LOG_KEY_MIN), page_key(log, LOG_KEY_MAX)
    before = dict(await bench.table.scan(Space.PAYLOADS, *ends, limit=9))
    first = min(before)
    await bench.stored(42, b"s2")
    await bench.publish(pointer=42)
    bench.table.on("scan", *[scan] * 9)
    entries = await whole(bench, BrowseQuery(descending=True))
    assert [entry.payload for entry in entries] == [b"s2", b"s1", None]

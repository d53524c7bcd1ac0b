"""Packing of pages: which entries are joined, which stay, and how readers continue meanwhile."""

from collections.abc import Sequence

import pytest

from broker.clock import SystemClock
from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, TopicId, log_key
from broker.storage import entry as entries
from broker.storage.entry import PLAIN, Entry, Mark, Shared, entries_of
from broker.storage.head import PageState
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import PageBounds
from broker.storage.page_entries import entries_in, gathered
from broker.storage.page_packer import Packed, pack, packed_of
from tests.kit.contract.log_bench import (
    Bench,
    all_of,
    attributes_of,
    backwards,
    rows_of,
)

UNPACKED = PageBounds(cells_max=12, packed_from=1 << 30)
TIED = Shared(pointer=5)


def entry(
    at: int,
    *,
    count: int = 1,
    epoch: int = 1,
    size: int = 5,
    shared: Shared = PLAIN,
    attributes: Sequence[bytes] = (),
) -> Entry:
    ids = [log_key(at, place) for place in range(count)]
    (made,) = entries_of(epoch, ids, [b"%d" % at * size] * count, shared, attributes)
    return made


def packed(*added: Entry) -> list[Entry]:
    """Pack a page with these entries; return its entries after that."""
    changes = Packed()
    cells = {each.column: entries.encode(each) for each in added}
    for column, value in cells.items():
        changes.take(column, value)
    changes.end()
    for column in changes.deletes:
        del cells[column]
    found = list(entries_in(sorted((cells | changes.puts).items())))
    saved = sum(each.stored_bytes for each in added) - sum(each.stored_bytes for each in found)
    assert saved == changes.saved_bytes
    assert rows_of(found) == rows_of(added)
    assert attributes_of(found) == attributes_of(added)
    return found


def test_neighbouring_entries_are_joined_with_their_marks() -> None:
    key = Mark(1, b"k" * 16, log_key(1, 0), log_key(1, 0), b"h" * 32)
    one, two, three = entry(1), entry(2, count=3), entry(3)
    one.marks, three.marks = (key,), (key._replace(first=log_key(3, 0)),)
    (found,) = packed(one, two, three)
    assert (found.first, found.last, found.count) == (one.first, three.last, 5)
    assert found.marks == (*one.marks, *three.marks)


def test_transactional_entries_and_other_epochs_are_not_joined() -> None:
    found = packed(
        entry(1), entry(2), entry(3, shared=TIED), entry(4), entry(5, epoch=2), entry(6, epoch=2)
    )
    assert [(each.count, each.epoch, each.pointer) for each in found] == [
        (2, 1, None),
        (1, 1, 5),
        (1, 1, None),
        (2, 2, None),
    ]


def test_a_joined_entry_stays_within_its_limit() -> None:
    found = packed(*(entry(at, size=1000) for at in range(100)))
    assert len(found) > 5
    assert max(len(each.items) for each in found) <= entries.ENTRY_BYTES_MAX


def test_attributes_are_kept_and_count_towards_the_limit() -> None:
    (found,) = packed(entry(1), entry(2, count=3, attributes=[b"", b"a", b"bc"]), entry(3))
    assert found.attributes(0, 5) == [(2, b"a"), (3, b"bc")]
    several = packed(*(entry(at, attributes=[bytes([at]) * 1000]) for at in range(1, 100)))
    assert len(several) > 5
    assert max(each.content_bytes for each in several) <= entries.ENTRY_BYTES_MAX


@pytest.mark.parametrize("is_checked", [False, True])
def test_small_entries_are_gathered_with_their_attributes(*, is_checked: bool) -> None:
    key = Mark(1, b"k" * 16, log_key(1, 0), log_key(1, 0), b"h" * 32)
    added = [
        entry(at, count=1 + at % 2, attributes=[b"%d" % at, b""][: 1 + at % 2])
        for at in range(1, 9)
    ]
    added += [entry(at) for at in range(9, 20)]
    added[3].marks = (key,)
    (found,) = gathered(
        [(each.column, entries.encode(each)) for each in added], is_checked=is_checked
    )
    assert rows_of([found]) == rows_of(added)
    assert attributes_of([found]) == attributes_of(added)


def test_damage_is_reported() -> None:
    with pytest.raises(StorageCorrupt):
        Packed().take(entry(1).column, b"x" * 60)


def test_a_part_of_an_entry_has_the_messages_between_two_ids() -> None:
    whole = packed_of([entry(1), entry(2, count=4), entry(3)])
    ids = whole.ids()
    for after in (LOG_KEY_MIN, *ids[:-1]):
        for through in (*ids, LOG_KEY_MAX):
            wanted = [row for row in ids if after < row <= through]
            if wanted:
                part = whole.within(after, through)
                assert rows_of([part]) == [row for row in rows_of([whole]) if row[0] in wanted]
                assert (part.first, part.last, part.count) == (wanted[0], wanted[-1], len(wanted))


@pytest.fixture
def bench() -> Bench:
    table = MemoryTable(is_alone=True)
    one, other = (Logs(table, SystemClock(), bounds=UNPACKED) for _ in "12")
    return Bench(table, TopicId("ns", "t"), one, other)


async def filled(bench: Bench) -> list:
    """Fill a page and begin another one; return all rows."""
    hold = await bench.claim()
    for _ in range(5):
        await bench.publish(hold)
    await bench.publish(hold, 1, TIED)
    for _ in range(8):
        await bench.publish(hold)
    return await bench.rows()


async def pack_first(bench: Bench) -> bool:
    resolver = bench.one.resolver
    return await pack(resolver, resolver.tokens(), bench.log, LOG_KEY_MIN)


@pytest.mark.parametrize("before", range(14))
async def test_a_reader_continues_while_its_page_is_packed(bench, before) -> None:
    rows = await filled(bench)
    reader = bench.other.reader(bench.log, LOG_KEY_MIN)
    found: list[Entry] = []
    while len(rows_of(found)) < before:
        found += await reader.next(1, 1)
    assert await pack_first(bench)
    assert rows_of(found + await all_of(reader)) == rows
    assert await bench.rows() == rows
    assert not await pack_first(bench)


@pytest.mark.parametrize("before", range(14))
async def test_a_backward_reader_continues_while_its_page_is_packed(bench, before) -> None:
    ids = [row[0] for row in await filled(bench)]
    reader = bench.other.reader(bench.log, LOG_KEY_MIN)
    found = []
    while len(found) < before:
        found += [row[0] for row in rows_of(await reader.before(1, 1))[::-1]]
    assert await pack_first(bench)
    found += await backwards(reader, 3)
    assert found == ids[::-1]


async def test_a_full_page_of_small_entries_is_packed_once_it_is_sealed(bench) -> None:
    bench.one.bounds = PageBounds(cells_max=8, packed_from=8)
    hold = await bench.claim()
    for _ in range(9):
        await bench.publish(hold)
        await hold.settled()
    rows = await bench.rows()
    (page, head), tail = await hold.chain(LOG_KEY_MIN, LOG_KEY_MAX)
    assert (page, head.state, head.cells) == (LOG_KEY_MIN, PageState.PACKED, 1)
    assert tail[1].is_open
    found = await bench.one.reader(bench.log, LOG_KEY_MIN).page_entries(page, head)
    assert rows_of(found) == rows[:8]


@pytest.mark.parametrize(
    "bounds", [PageBounds(cells_max=8, packed_from=9), PageBounds(bytes_max=9000)]
)
async def test_a_page_of_few_or_large_entries_is_not_packed(bench, bounds) -> None:
    bench.one.bounds = bounds
    hold = await bench.claim()
    while hold.page == LOG_KEY_MIN:
        await bench.publish(hold, payloads=[bytes(1100)])
        await hold.settled()
    (_, head), _ = await hold.chain(LOG_KEY_MIN, LOG_KEY_MAX)
    assert head.state is PageState.SEALED


async def test_a_table_that_is_not_alone_is_not_packed() -> None:
    table = MemoryTable(is_alone=False)
    logs = Logs(table, SystemClock(), bounds=PageBounds(cells_max=4, packed_from=2))
    bench = Bench(table, TopicId("ns", "t"), logs, logs)
    hold = await bench.claim()
    for _ in range(5):
        await bench.publish(hold)
        await hold.settled()
    (_, head), _ = await hold.chain(LOG_KEY_MIN, LOG_KEY_MAX)
    assert head.state is PageState.SEALED

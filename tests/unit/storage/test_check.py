"""A check of a store finds no problem in a healthy store, and finds each kind of damage.

The healthy store has every kind of row and entry. Each damage is done to a copy of it.
"""

import asyncio
import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.model import LOG_KEY_MIN, LogKey, log_key, log_key_after
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.attributed import pack
from broker.storage.check import verify
from broker.storage.columns import is_rolled_column, rolled_column
from broker.storage.entry import Entry, Mark, Shared
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId, mark_prefix, page_key, page_of, root_key, topic_prefix
from broker.storage.log import Logs
from broker.storage.marks import encode_mark, mark_key
from broker.storage.memory.row_space import MemoryRow
from broker.storage.memory.table import MemoryTable
from broker.storage.page_entries import entries_in
from broker.storage.reference import encode_count
from broker.storage.report import PROBLEMS_MAX, CheckProgress
from broker.storage.root import RootState
from broker.storage.sweep import clear_below_floor, raise_floor
from broker.storage.table import HEAD, Cell, Cells, Space
from tests.kit.bench import settle
from tests.kit.full_store import (
    AGAIN,
    BOUNDS,
    FULL,
    NOW_MS,
    OPEN_LOG,
    PUBLISHED_LOG,
    SEALED_LOG,
    UNMARKED_LOG,
    Filler,
    StillClock,
)

LOG = LogId(FULL, 1)


@functools.cache
def healthy() -> MemoryTable:
    table = MemoryTable()
    asyncio.run(Filler(Logs(table, StillClock(), bounds=BOUNDS)).fill())
    return table


@pytest.fixture
def table() -> MemoryTable:
    table = MemoryTable()
    table.spaces = copy.deepcopy(healthy().spaces)
    return table


@pytest.fixture
def logs(table: MemoryTable) -> Logs:
    return Logs(table, StillClock(), bounds=BOUNDS)


async def test_a_check_finds_no_problem_in_a_healthy_store(logs: Logs) -> None:
    told: list[CheckProgress] = []
    report = await verify(logs, told.append)
    assert report.problems == []
    assert report.is_sound
    assert (report.topics, report.records, report.payload_logs) == (8, 8, 6)
    assert min(report.pages, report.entries, report.messages, report.marks, report.ignorable) > 0
    assert told[-1] == CheckProgress(8, 8, report.bytes)
    assert [each.bytes for each in told] == sorted(each.bytes for each in told)


async def test_the_healthy_store_has_every_kind_of_row_and_entry(
    table: MemoryTable, logs: Logs
) -> None:
    states = {heads.decode(row.head.value).state for _, row in pages(table, Space.MESSAGES)}
    assert states == set(PageState)
    found = {roots.decode(row.head.value).state for row in root_rows(table)}
    assert found == set(RootState)
    stored = [entry for _, row in pages(table, Space.MESSAGES) for entry in entries_in(cells(row))]
    assert any(entry.rolled for entry in stored)
    assert any(entry.is_stub for entry in stored)
    assert any(entry.is_reference for entry in stored)


# Reading the rows of a table in memory.


def cells(row: MemoryRow) -> list[tuple[bytes, bytes]]:
    return row.cells(b"", b"\xff" * 40, cells_max=9999, bytes_max=1 << 30, reverse=False).cells


def rows(table: MemoryTable, space: Space) -> list[tuple[bytes, MemoryRow]]:
    stored = table.spaces[space]
    found = stored.scan(b"", b"\xff" * 64, limit=9999, reverse=False)
    return [(key, stored.get(key)) for key, _ in found]


def pages(table: MemoryTable, space: Space, log: LogId | None = None) -> list[tuple[bytes, Any]]:
    out = []
    for key, row in rows(table, space):
        prefix, rest = key.split(b":", 2)[:2], key.split(b":", 2)[2]
        of_log = log is None or key.startswith(page_key(log, LOG_KEY_MIN)[:-10])
        if prefix and not rest.startswith(bytes(4)) and of_log:
            out.append((key, row))
    return out


def root_rows(table: MemoryTable) -> list[Any]:
    every = [*rows(table, Space.MESSAGES), *rows(table, Space.PAYLOADS)]
    return [row for key, row in every if key.split(b":", 2)[2].startswith(bytes(4) + b"r")]


class Store:
    """A store that a test damages."""

    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    def row(self, space: Space, key: bytes) -> MemoryRow:
        row = self.table.spaces[space].get(key)
        assert row.head is not None
        return row

    def page(self, place: int, number: int | None = None) -> tuple[LogKey, MemoryRow]:
        """Return a page that is not gone."""
        space = Space.MESSAGES if number is None else Space.PAYLOADS
        found = pages(self.table, space, LOG._replace(number=number))
        alive = [each for each in found if state_of(each[1]) is not PageState.GONE]
        return page_of(alive[place][0]), alive[place][1]

    def head(self, place: int, number: int | None = None, **fields: Any) -> None:
        _, row = self.page(place, number)
        set_head(row, heads.encode(head_of(row)._replace(**fields)))

    def remove(self, space: Space, key: bytes) -> None:
        assert self.row(space, key)
        self.table.spaces[space].delete(key)

    def root(self, number: int | None = None, log: LogId = LOG, **fields: Any) -> None:
        log = log._replace(number=number)
        row = self.row(Space.MESSAGES if number is None else Space.PAYLOADS, root_key(log))
        set_head(row, roots.encode(roots.decode(row.head.value)._replace(**fields)))

    def record(self, **fields: Any) -> None:
        row = self.row(Space.RECORDS, b"topic/" + topic_prefix(FULL))
        body = entries.unchecked(row.head.value, "")
        value = json.dumps({**json.loads(body[8:]), **fields}).encode()
        set_head(row, entries.checked(body[:8] + value))

    def entry(self, place: int, wanted: Callable[[Entry], bool]) -> tuple[MemoryRow, Entry]:
        """Return the first wanted entry from a page on, with the row of its page."""
        for at in range(place, 20):
            _, row = self.page(at)
            for entry in entries_in(cells(row)):
                if wanted(entry):
                    return row, entry
        raise AssertionError("there is none")

    def replace(self, row: MemoryRow, old: Entry, **fields: Any) -> None:
        """Replace an entry by a copy with some fields changed."""
        new = entries.decode(entries.encode(old))
        for name, value in fields.items():
            setattr(new, name, value)
        row.set(old.column, None)
        row.set(new.column, Cell(entries.encode(new)))

    def marks(self, first: int = 0) -> list[bytes]:
        prefix = mark_prefix(LOG)
        found = [key for key, _ in rows(self.table, Space.MESSAGES) if key.startswith(prefix)]
        return found[first:]


def head_of(row: MemoryRow) -> Head:
    assert row.head is not None
    return heads.decode(row.head.value)


def state_of(row: MemoryRow) -> PageState:
    return head_of(row).state


def set_head(row: MemoryRow, value: bytes) -> None:
    row.set(HEAD, Cell(value))


def flip(row: MemoryRow, column: bytes) -> None:
    value = row.get((column,))[column].value
    row.set(column, Cell(value[:-9] + bytes([value[-9] ^ 4]) + value[-8:]))


def flip_entry(store: Store) -> None:
    row, entry = store.entry(0, lambda _: True)
    flip(row, entry.column)


def flip_rollback(store: Store) -> None:
    row, entry = store.entry(0, lambda each: bool(each.rolled))
    flip(row, rolled_column(entry.column))


def rollback_of_nothing(store: Store) -> None:
    row, entry = store.entry(0, lambda each: bool(each.rolled))
    column = entry.column[:-1] + bytes([entry.column[-1] ^ 1])
    row.set(rolled_column(column), Cell(entries.encode_rolled(entry.rolled)))


def rollback_backwards(store: Store) -> None:
    row, entry = store.entry(0, lambda each: bool(each.rolled))
    ranges = entries.encode_rolled([(entry.last, entry.first)])
    row.set(rolled_column(entry.column), Cell(ranges))


def drop_entry(store: Store) -> None:
    _, row = store.page(0)
    row.set([column for column, _ in cells(row)][1], None)


def drop_last_entry(store: Store) -> None:
    _, row = store.page(0)
    last = [column for column, _ in cells(row) if not is_rolled_column(column)][-1]
    row.set(last, None)


def unknown_cell(store: Store) -> None:
    store.page(0)[1].set(b"z", Cell(b"?"))


def other_entry(store: Store) -> None:
    row, entry = store.entry(0, lambda each: each.pointer is not None)
    row.set(entry.column, Cell(entries.encode(entries.entries_of(1, entry.ids(), [b""] * 3)[0])))


def entry_of_another_log(store: Store) -> None:
    row, entry = store.entry(0, lambda each: each.is_plain)
    [new] = entries.entries_of(entry.epoch, entry.ids(), [b"payload 0"] * 3, Shared(is_stored=True))
    row.set(entry.column, Cell(entries.encode(new)))


def entry_that_overlaps(store: Store) -> None:
    _, row = store.page(0)
    begin_at(store, row, list(entries_in(cells(row)))[1], store.page(0)[0])


def entry_below_its_page(store: Store) -> None:
    _, row = store.page(1)
    begin_at(store, row, next(entries_in(cells(row))), log_key(1, 1))


def begin_at(store: Store, row: MemoryRow, entry: Entry, first: LogKey) -> None:
    """Give an entry's first message another id."""
    store.replace(row, entry, items=entry.items.replace(entry.first, first, 1))


def entry_of_a_later_epoch(store: Store) -> None:
    row, entry = store.entry(0, lambda _: True)
    store.replace(row, entry, epoch=99)


def entry_with_other_ids(store: Store) -> None:
    row, entry = store.entry(0, lambda each: each.is_plain)
    items = entry.items.replace(entry.last, entry.first)
    store.replace(row, entry, items=items)


def stub_without_lifetime(store: Store) -> None:
    row, entry = store.entry(0, lambda each: each.is_plain)
    row.set(entry.column, Cell(entries.encode(entries.stub_of(entry))))


def damaged_attributes(section: bytes) -> Callable[[Store], None]:
    def damage(store: Store) -> None:
        row, entry = store.entry(0, lambda each: each.is_plain)
        store.replace(row, entry, attributed=section)

    return damage


def stub_too_early(store: Store) -> None:
    row, entry = store.entry(0, lambda each: each.lifetime_ms is not None and not each.is_stub)
    row.set(entry.column, Cell(entries.encode(entries.stub_of(entry))))


def lifetime_not_told(store: Store) -> None:
    row, _ = store.entry(0, lambda each: each.lifetime_ms is not None and not each.is_stub)
    set_head(row, heads.encode(head_of(row)._replace(first_end_ms=heads.NO_END)))


def reference_of_fewer(store: Store) -> None:
    row, entry = store.entry(0, lambda each: each.number == UNMARKED_LOG)
    [new] = entries.entries_of(
        entry.epoch,
        [entry.first],
        [encode_count(7)],
        Shared(entry.pointer, number=UNMARKED_LOG),
    )
    row.set(entry.column, Cell(entries.encode(new)))


def lost_page(place: int) -> Callable[[Store], None]:
    return lambda store: store.remove(Space.MESSAGES, page_key(LOG, store.page(place)[0]))


def lost_first_page(store: Store) -> None:
    store.remove(Space.MESSAGES, page_key(LOG, LOG_KEY_MIN))


def page_in_no_chain(store: Store) -> None:
    page, row = store.page(1)
    assert row.head is not None
    key = page_key(LOG, log_key_after(log_key_after(page)))
    store.table.spaces[Space.MESSAGES].change(
        key, None, {HEAD: row.head.value}, (), None, clear=False
    )


def flip_head(store: Store) -> None:
    flip(store.page(1)[1], HEAD)


def lost_mark(store: Store) -> None:
    for key in store.marks():
        store.remove(Space.MESSAGES, key)


def flip_mark(store: Store) -> None:
    flip(store.row(Space.MESSAGES, store.marks()[0]), HEAD)


def mark_of_the_future(store: Store) -> None:
    mark = Mark(1, bytes(16), log_key(NOW_MS, 1), log_key(NOW_MS, 2), b"")
    put(store, Space.MESSAGES, mark_key(LOG, mark), encode_mark(mark))


def mark_of_no_ids(store: Store) -> None:
    mark = Mark(1, bytes(16), log_key(7, 2), log_key(7, 1), b"")
    put(store, Space.MESSAGES, mark_key(LOG, mark), encode_mark(mark))


def put(store: Store, space: Space, key: bytes, value: bytes) -> None:
    assert (
        store.table.spaces[space].change(key, None, {HEAD: value}, (), None, clear=False)
        is not None
    )


def unknown_row(space: Space, rest: bytes) -> Callable[[Store], None]:
    return lambda store: put(store, space, topic_prefix(FULL) + rest, b"?")


def page_of_the_future(store: Store) -> None:
    head = heads.encode(heads.first_page(log_key(7, 7), 1, "", bytes(12)))
    put(store, Space.MESSAGES, page_key(LogId(FULL, 2), log_key(7, 8)), head)


def flip_dead_page(store: Store) -> None:
    flip(pages(store.table, Space.MESSAGES, LogId(AGAIN, 1))[0][1], HEAD)


def rootless(store: Store) -> None:
    store.remove(Space.PAYLOADS, root_key(LOG._replace(number=SEALED_LOG)))


def flip_payload_root(store: Store) -> None:
    flip(store.row(Space.PAYLOADS, root_key(LOG._replace(number=SEALED_LOG))), HEAD)


def lost_payload_log(store: Store) -> None:
    log = LOG._replace(number=PUBLISHED_LOG)
    store.remove(Space.PAYLOADS, root_key(log))
    for key, _ in pages(store.table, Space.PAYLOADS, log):
        store.remove(Space.PAYLOADS, key)


def lost_payload_pages(store: Store) -> None:
    for key, _ in pages(store.table, Space.PAYLOADS, LOG._replace(number=OPEN_LOG)):
        store.remove(Space.PAYLOADS, key)


def reopened(store: Store) -> None:
    store.head(-1, SEALED_LOG, state=PageState.OPEN)


def half_deleted(store: Store) -> None:
    store.root(log=LogId(AGAIN, 3), state=RootState.DELETED)


def flip_record(store: Store) -> None:
    flip(store.row(Space.RECORDS, b"topic/" + topic_prefix(FULL)), HEAD)


def senseless_record(store: Store) -> None:
    row = store.row(Space.RECORDS, b"topic/" + topic_prefix(FULL))
    set_head(row, entries.checked(bytes(8) + b"{}"))


def record_of_no_topic(store: Store) -> None:
    put(store, Space.RECORDS, b"topic/?", entries.checked(bytes(8) + b"{}"))


def flip_root(store: Store) -> None:
    flip(store.row(Space.MESSAGES, root_key(LOG)), HEAD)


DAMAGES: Sequence[tuple[Callable[[Store], object], str]] = [
    (flip_entry, "an entry fails its checksum"),
    (flip_rollback, "an x cell fails its checksum"),
    (rollback_of_nothing, "a rollback cell without its entry"),
    (rollback_backwards, "a rollback from a higher to a lower id"),
    (drop_entry, "its head has another number of entries"),
    (drop_entry, "its head has another number of messages"),
    (drop_last_entry, "its last entry is not at the pointer"),
    (unknown_cell, "there is no column 7a"),
    (other_entry, "its column is that of another entry"),
    (entry_of_another_log, "it belongs to another kind of log"),
    (entry_that_overlaps, "it overlaps the entry before it"),
    (entry_below_its_page, "its ids do not belong to this page"),
    (entry_of_a_later_epoch, "its epoch is lower than before it, or higher than the head's"),
    (entry_with_other_ids, "the ids of its messages do not rise from its first to its last id"),
    (stub_without_lifetime, "it is a stub, but it has no lifetime"),
    (damaged_attributes(bytes(5)), "the attributes of an entry are cut off"),
    (
        damaged_attributes(pack([b""] * 9000 + [b"\0\0"])),
        "attributes of messages that are not in it",
    ),
    (damaged_attributes(pack([b"\x09"])), "the attributes of a message can't be read"),
    (stub_too_early, "it is a stub, but its lifetime has not ended"),
    (lifetime_not_told, "a lifetime ends earlier than its head says"),
    (reference_of_fewer, "its payload log has another number of messages (7, 24)"),
    (lambda store: store.head(1, total=999), "its head has another number of messages"),
    (lambda store: store.head(1, total=0), "its total is lower"),
    (lambda store: store.head(1, bytes=999), "its head has another number of bytes of payloads"),
    (lambda store: store.head(1, epoch=1), "its epoch is lower"),
    (lambda store: store.head(1, cells=9), "its head has another number of entries"),
    (lambda store: store.head(0, size=9), "its head has another number of bytes"),
    (lambda store: store.head(1, prev=log_key(7, 7)), "its prev is not the page before it"),
    (lambda store: store.head(1, pointer=log_key(NOW_MS, 7)), "no page leads to it"),
    (lambda store: store.head(1, state=PageState.OPEN), "it follows a page that is open"),
    (
        lambda store: store.head(1, state=PageState.GONE),
        "it is gone, but it is not below the floor",
    ),
    (lost_page(1), "it is missing"),
    (lost_page(0), "the floor that the root names is missing"),
    (lost_page(-1), "the page that the root names is missing"),
    (lost_first_page, "the pages before it are missing"),
    (page_in_no_chain, "no page leads to it"),
    (flip_head, "the head of a page fails its checksum"),
    (lost_mark, "a mark of an entry is not on disk"),
    (flip_mark, "a mark fails its checksum"),
    (mark_of_the_future, "its ids are above the log's pointer"),
    (mark_of_no_ids, "its first id is above its last id"),
    (unknown_row(Space.MESSAGES, bytes(4) + b"q"), "a row with an unknown key"),
    (unknown_row(Space.MESSAGES, bytes(4) + b"k12"), "a row with an unknown key"),
    (unknown_row(Space.PAYLOADS, bytes(4) + b"r"), "a row with an unknown key"),
    (unknown_row(Space.PAYLOADS, b"\0\0\0\1" + bytes(9)), "a row with an unknown key"),
    (page_of_the_future, "a page of a generation that was never created"),
    (flip_dead_page, "the head of a page fails its checksum"),
    (lambda store: store.root(epoch=99), "the tail has a lower epoch than the root"),
    (lambda store: store.root(gone=log_key(NOW_MS, 1)), "the root's page lies below its floor"),
    (lambda store: store.root(gone=log_key(NOW_MS, 1)), "but the root says that they are gone"),
    (lambda store: store.root(state=RootState.OPEN), "its root is not the root of a topic"),
    (lambda store: store.root(generation=2), "a later generation than its record"),
    (half_deleted, "it is deleted, but its tail is not closed"),
    (flip_root, "the root of a log fails its checksum"),
    (lambda store: store.remove(Space.MESSAGES, root_key(LOG)), "a topic without a root"),
    (lambda store: store.remove(Space.MESSAGES, root_key(LogId(AGAIN, 1))), "its root is missing"),
    (lambda store: store.record(deleted=True), "its record says that it is deleted"),
    (
        lambda store: store.record(generation=2),
        "its root has an earlier generation than its record",
    ),
    (flip_record, "it fails its checksum"),
    (senseless_record, "it does not decode"),
    (record_of_no_topic, "it does not decode"),
    (rootless, "it has messages but no root"),
    (flip_payload_root, "the root of a log fails its checksum"),
    (lost_payload_log, "its payload log is missing"),
    (lost_payload_pages, "it has a root but no page"),
    (reopened, "it is sealed, but its tail is not closed"),
    (lambda store: store.head(-1, OPEN_LOG, epoch=99), "a higher epoch than its topic"),
    (
        lambda store: store.root(OPEN_LOG, state=RootState.LIVE),
        "its root is not the root of a payload log",
    ),
    (lambda store: store.root(UNMARKED_LOG, state=RootState.OPEN), "its payload log is not closed"),
    (lambda store: store.root(PUBLISHED_LOG, reference=log_key(NOW_MS, 1)), "another reference"),
    (
        lambda store: store.root(PUBLISHED_LOG, reference=log_key(NOW_MS, 1)),
        "its reference is missing",
    ),
]


@pytest.mark.parametrize(
    ("damage", "wanted"),
    DAMAGES,
    ids=[f"{place} {text}" for place, (_, text) in enumerate(DAMAGES)],
)
@pytest.mark.parametrize("is_alone", [True, False])
async def test_each_damage_is_found(
    table: MemoryTable,
    logs: Logs,
    damage: Callable[[Store], object],
    wanted: str,
    *,
    is_alone: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.storage.chaincheck.READ_AGAIN_S", 0.001)
    table.is_alone = is_alone
    damage(Store(table))
    report = await verify(logs)
    assert any(wanted in line for line in report.problems), report.problems


async def test_a_missing_mark_is_no_problem_after_its_window(
    table: MemoryTable, logs: Logs
) -> None:
    lost_mark(Store(table))
    assert not (await verify(logs)).is_sound
    assert (await verify(logs, window_ms=10)).is_sound


async def test_all_problems_are_counted_and_the_first_are_kept(
    table: MemoryTable, logs: Logs
) -> None:
    for number in range(PROBLEMS_MAX + 5):
        unknown_row(Space.MESSAGES, bytes(4) + b"q%d" % number)(Store(table))
    report = await verify(logs)
    assert (report.wrong, len(report.problems)) == (PROBLEMS_MAX + 5, PROBLEMS_MAX)
    assert dataclasses.asdict(report)["wrong"] == PROBLEMS_MAX + 5


# Checks while other tasks write.


class Yielding(MemoryTable):
    """Lets other tasks run before every read."""

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        await settle(1)
        return await super().get(space, row, columns)

    async def cells(self, *given: Any, **named: Any) -> Cells:
        await settle(1)
        return await super().cells(*given, **named)

    async def scan(self, *given: Any, **named: Any) -> list[tuple[bytes, Cell]]:
        await settle(1)
        return await super().scan(*given, **named)


async def _keep_writing(filler: Filler, rounds: int) -> None:
    """Append, roll, roll back, sweep, delete and create, for some rounds."""
    hold = await filler.logs.claim(LOG, "writer")
    again = 3
    for number in range(rounds):
        ids = await filler.append(hold, shared=Shared(5))
        await filler.append(hold, key=f"busy {number}")
        await hold.rollback(5, ids[0], ids[1])
        await settle(1)
        if number % 5 == 4:
            await raise_floor(hold, ids[0])
            await clear_below_floor(filler.logs.resolver, hold, 99)
            await filler.delete(AGAIN, again)
            await filler.append(await filler.create(AGAIN))
            again += 1
        stored = await filler.payload_logs.open(hold, 100 + number)
        await filler.append(stored, shared=Shared(is_stored=True))
        await filler.payload_logs.drop(hold, 100 + number, NOW_MS)
        await filler.payload_logs.empty(stored.log)
        await filler.payload_logs.forget(stored.log)
        stored.end()
    hold.end()


async def test_changes_during_a_check_are_no_problems() -> None:
    table = Yielding(is_alone=False)
    filler = Filler(Logs(table, StillClock(), bounds=BOUNDS))
    await filler.fill()
    writing = asyncio.create_task(_keep_writing(filler, 60))
    checks = 0
    while not writing.done():
        report = await verify(filler.logs)
        assert report.problems == []
        checks += 1
    await writing
    assert checks > 2

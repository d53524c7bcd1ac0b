"""Mend the pages of a repaired copy: LevelDB dropped the blocks that it could not read, and with them entries.

A head counts its page's entries. If some are missing, a reader may wait for them, and the copy never verifies. So a stub
takes their place: readers pass it, as they pass a message whose own lifetime is over. LevelDB drops a whole block, and
the keys in a block follow each other. The original's keys, read without a check, mostly show which ones are gone. If they
don't, one stub stands for all of them, in the widest gap between the entries that are left. That happens too if the
repair brought back small entries that were packed into one: then the head counts those that are there.

The rows of marks are an index, so they are put again from the entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from broker.model import LOG_KEY_BYTES, LogKey, TopicId, log_key_after, log_key_before, timestamp_of
from broker.storage import entry as entries
from broker.storage import hashchain
from broker.storage import head as heads
from broker.storage.columns import (
    LIFE,
    POINTER,
    ROLLED,
    is_entry_column,
    is_record_column,
    is_rolled_column,
    last_of,
    pointer_of,
)
from broker.storage.entry import STORED, STUB, Entry
from broker.storage.gaps import LOST_MS, Gap, decode_gaps, encode_gaps, gaps_key
from broker.storage.head import Head, PageState
from broker.storage.keys import LogId, log_of_row
from broker.storage.leveldb.chain_mend import RawKeys, all_pairs, content_of, readable
from broker.storage.leveldb.database import Database
from broker.storage.leveldb.layout import cells_prefix, head_key, row_of_cell
from broker.storage.leveldb.row_mend import mend_rows
from broker.storage.marks import IDEMPOTENCY, PRODUCER, PRODUCER_LIFE_MS, encode_mark, mark_key
from broker.storage.pagecheck import CELLS_COUNTED
from broker.storage.resolve import NONCE_BYTES, random_nonce
from broker.storage.table import Space

_MEANS: Final = {
    "*:transactions": ". This is the journal of transactions: docs/guides/operating-transactions.md#a-damaged-journal"
}
"""The meaning of lost messages of a reserved topic (broker/topics/reserved.py)."""
_TAIL_BYTES: Final = {Space.MESSAGES: 4 + LOG_KEY_BYTES, Space.PAYLOADS: 12 + LOG_KEY_BYTES}
"""The bytes of a page's row behind its topic: the generation, a payload log's number, the page."""


class LostRange(NamedTuple):
    """Messages that are gone: their ids lie in ``[first, last]``. With ``some``, others in that range are there.

    ``entries`` is how many entries are gone: each had at least one message.
    """

    topic: str
    first: LogKey
    last: LogKey
    some: bool = False
    entries: int = 1

    def line(self) -> str:
        """Return the range as one line."""
        which = "some of the messages" if self.some else "the messages"
        return f"{self.topic}: {which} from {self.first.hex()} to {self.last.hex()}{_MEANS.get(self.topic, '')}"


class _Found(NamedTuple):
    """An entry of the copy, by its last id."""

    last: LogKey
    entry: Entry


def mend_pages(database: Database, damaged: Path, *, now_ms: int, window_ms: int) -> list[str]:
    """Put stubs for the entries that a repaired database lacks, and rows for marks that still count.

    Return a line for each range of ids that is gone, and for each record and root that was made again. ``damaged`` is a copy of the database before its repair. It is used up.

    Raises:
        StorageCorrupt, Unavailable: LevelDB can't read or write the copy.
    """
    raw = RawKeys(damaged)
    lost: list[LostRange] = []
    payloads: dict[LogId, int] = {}
    try:
        for space in (Space.MESSAGES, Space.PAYLOADS):
            _drop_unreadable(database, raw, space)
        made = mend_rows(database, raw, now_ms)
        for space in (Space.MESSAGES, Space.PAYLOADS):
            for row, head in _pages(database, space):
                found = _mend(database, raw, space, row, head)
                if found and space is Space.MESSAGES:
                    _put_gaps(database, row, found)
                elif found:
                    log = _log_of(row, space)
                    payloads[log] = payloads.get(log, 0) + sum(each.entries for each in found)
                lost += found
                _put_marks(database, space, row, now_ms - window_ms)
        if payloads:
            _put_gaps_of_references(database, payloads)
    finally:
        raw.close()
    return [*(each.line() for each in lost), *made]


def _drop_unreadable(database: Database, raw: RawKeys, space: Space) -> None:
    """Remove the cells that can't be decoded. Without a part of its rollbacks an entry goes, too: no reader may see it."""
    lead = cells_prefix(space, b"")[:1]
    for pairs in all_pairs(database, lead):
        gone = [each for key, value in pairs for each in _unreadable(key, value)]
        database.change({}, deletes=gone)
    for key in raw.of(lead):
        row = row_of_cell(key)
        is_rolled = row is not None and is_rolled_column(key[len(cells_prefix(space, row)) :])
        if is_rolled and (database.get(key) is None) != (database.get(key[:-1]) is None):
            database.change({}, deletes=[key, key[:-1]])


def _unreadable(key: bytes, value: bytes) -> list[bytes]:
    """Return the keys to remove because of a cell that does not decode, or is not in its place."""
    row = row_of_cell(key)
    if row is None:
        return [key]
    column = key[3 + len(row) :]
    if is_record_column(column):
        return [key] if readable(hashchain.decode, value) is None else []
    if is_rolled_column(column):
        return [key, key[:-1]] if readable(entries.decode_rolled, value) is None else []
    entry = readable(entries.decode, value)
    return [] if entry is not None and entry.column == column else [key, key + ROLLED]


def _pages(database: Database, space: Space) -> Iterator[tuple[bytes, Head]]:
    """Yield the pages that have entries, with their heads."""
    lead = head_key(space, b"")
    for key, value in chain.from_iterable(all_pairs(database, lead)):
        row = key[len(lead) :]
        *names, tail = row.split(b":", 2)
        if len(names) < 2 or len(tail) != _TAIL_BYTES[space] or tail.startswith(bytes(4)):
            continue
        head = readable(heads.decode, value)  # The check of the copy reports a damaged one.
        if head is not None and head.state is not PageState.GONE and head.cells:
            yield row, head


def _mend(
    database: Database, raw: RawKeys, space: Space, row: bytes, head: Head
) -> list[LostRange]:
    prefix = cells_prefix(space, row)
    columns = [key[len(prefix) :] for key in database.keys_of(prefix)]
    there = [column for column in columns if is_entry_column(column)]
    missing = head.cells - len(there)
    is_counted = head.cells < CELLS_COUNTED
    if not (missing and is_counted) and there and last_of(there[-1]) == head.pointer:
        return []
    found = [
        _Found(last_of(column), entry)
        for column in there
        if (entry := readable(entries.decode, database.get(prefix + column))) is not None
    ]
    page = row[-LOG_KEY_BYTES:]
    known = set(there)
    gone = [
        column
        for key in raw.of(prefix)
        if (column := key[len(prefix) :]) not in known and is_entry_column(column)
    ]
    is_stored = space is Space.PAYLOADS
    # A key that was read without a check may have any id.
    lasts = {last for column in gone if page <= (last := last_of(column)) <= head.pointer}
    lasts -= {each.last for each in found}
    ends = max(lasts | {each.last for each in found}, default=None) == head.pointer
    is_known = ends and len(gone) == len(lasts) == missing
    if is_known:
        stubs = _stubs_of(gone, found, page, is_stored=is_stored)
    else:
        stubs = _stub_of_gap(found, page, head, is_stored=is_stored)
    cells = len(there) + len(stubs)
    database.change(
        {prefix + stub.column: entries.encode(stub) for stub in stubs}
        | {head_key(space, row): heads.encode(head._replace(cells=cells))}
    )
    topic = b":".join(row.split(b":", 2)[:2]).decode(errors="backslashreplace")
    if not is_known:
        return [LostRange(topic, page, head.pointer, some=True, entries=max(missing, 1))]
    return _joined(topic, stubs, found)


def _stubs_of(
    gone: Sequence[bytes], found: Sequence[_Found], page: LogKey, *, is_stored: bool
) -> list[Entry]:
    """Return a stub for each column that is gone."""
    lasts = sorted([*(last_of(column) for column in gone), *(each.last for each in found)])
    before = dict(zip(lasts, [log_key_before(page), *lasts], strict=False))
    stubs = []
    for column in gone:
        last = last_of(column)
        epoch = max((each.entry.epoch for each in found if each.last < last), default=0)
        first = log_key_after(before[last])
        stubs.append(_stub(epoch, first, last, pointer_of(column), is_stored=is_stored))
    return stubs


def _stub_of_gap(
    found: Sequence[_Found], page: LogKey, head: Head, *, is_stored: bool
) -> list[Entry]:
    """Return one stub in the widest gap, or behind the last entry, if that is not at the pointer."""
    edges = [(log_key_before(page), 0), *((each.last, each.entry.epoch) for each in found)]
    if edges[-1][0] < head.pointer:
        last, epoch = edges[-1]
        return [_stub(epoch, log_key_after(last), head.pointer, None, is_stored=is_stored)]
    gaps = [
        (log_key_after(last), epoch, log_key_before(each.entry.first))
        for (last, epoch), each in zip(edges, found, strict=False)
        if last < log_key_before(each.entry.first)
    ]
    if not gaps:
        return []
    first, epoch, last = max(gaps, key=lambda gap: timestamp_of(gap[2]) - timestamp_of(gap[0]))
    return [_stub(epoch, first, last, None, is_stored=is_stored)]


def _put_marks(database: Database, space: Space, row: bytes, keys_since_ms: int) -> None:
    """Put the rows of a page's marks that still count, and have none."""
    log = _log_of(row, space)
    since_ms = {PRODUCER: keys_since_ms - PRODUCER_LIFE_MS, IDEMPOTENCY: keys_since_ms}
    prefix, rows = cells_prefix(space, row), {}
    for key in database.keys_of(prefix):
        if is_entry_column(key[len(prefix) :]):
            entry = readable(entries.decode, database.get(key))
            for mark in () if entry is None else entry.marks:
                if timestamp_of(mark.first) >= since_ms[mark.kind]:
                    rows[head_key(space, mark_key(log, mark))] = encode_mark(mark)
    database.change({key: value for key, value in rows.items() if database.get(key) != value})


def _put_gaps(database: Database, row: bytes, lost: Sequence[LostRange]) -> None:
    """Add the lost ranges of a page to the record of its topic's gaps (storage/gaps.py)."""
    topic, generation, _ = _log_of(row, Space.MESSAGES)
    key = head_key(Space.RECORDS, gaps_key(topic))
    value = database.get(key)
    known: Sequence[Gap] = ()
    if value is not None:
        known = decode_gaps(content_of(value)[NONCE_BYTES:], generation)
    gaps = [*known, *(Gap(each.first, each.last, each.entries) for each in lost)]
    database.change({key: entries.checked(random_nonce() + encode_gaps(generation, gaps))})


def _put_gaps_of_references(database: Database, payloads: Mapping[LogId, int]) -> None:
    """Put a gap in the place of each published reference whose payload log lost entries; ``payloads`` counts them."""
    for row, _ in _pages(database, Space.MESSAGES):
        log = _log_of(row, Space.MESSAGES)
        prefix = cells_prefix(Space.MESSAGES, row)
        for key in (
            database.keys_of(prefix) if any(log[:2] == each[:2] for each in payloads) else ()
        ):
            entry = readable(entries.decode, database.get(key))
            if entry is None or not entry.is_reference or database.get(key + ROLLED) is not None:
                continue
            count = payloads.get(log._replace(number=entry.number), 0)
            if count:
                place = LostRange(str(log.topic), entry.first, entry.last, entries=count)
                _put_gaps(database, row, [place])


def _log_of(row: bytes, space: Space) -> LogId:
    namespace, name, tail = row.split(b":", 2)
    topic = TopicId(namespace.decode(), name.decode())
    return log_of_row(topic, tail, has_number=space is Space.PAYLOADS)


def _stub(
    epoch: int, first: LogKey, last: LogKey, pointer: int | None, *, is_stored: bool
) -> Entry:
    """Return an entry without messages: their lifetime was over at once."""
    flags = LIFE | STUB | (STORED if is_stored else 0) | (0 if pointer is None else POINTER)
    return Entry(flags, epoch, first, last, 1, (), b"", pointer=pointer, lifetime_ms=LOST_MS)


def _joined(topic: str, stubs: Sequence[Entry], found: Sequence[_Found]) -> list[LostRange]:
    """Return the ranges of ids of stubs, joined if no entry lies between them."""
    ranges: list[LostRange] = []
    for stub in stubs:
        before = ranges[-1] if ranges else None
        if before is not None and not any(before.last < each.last < stub.last for each in found):
            ranges[-1] = before._replace(last=stub.last, entries=before.entries + 1)
        else:
            ranges.append(LostRange(topic, stub.first, stub.last))
    return ranges

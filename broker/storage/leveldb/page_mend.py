"""Mend the pages of a repaired copy: LevelDB dropped the blocks that it could not read, and with them entries.

A head counts its page's entries. If some are missing, a reader may wait for them, and the copy never verifies. So a stub
takes their place: readers pass it, as they pass a message whose own lifetime is over. LevelDB drops a whole block, and
the keys in a block follow each other. The original's keys, read without a check, mostly show which ones are gone. If they
don't, one stub stands for all of them, in the widest gap between the entries that are left. That happens too if the
repair brought back small entries that were packed into one: then the head counts those that are there.

The rows of marks are an index, so they are put again from the entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import ROW_ID_BYTES, RowId, TopicId, row_after, row_before, timestamp_of
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage.columns import LIFE, REFERENCE, ROLLED, is_rolled_column, last_of, pointer_of
from broker.storage.entry import STORED, STUB, Entry
from broker.storage.gaps import LOST_MS, Gap, decode_gaps, encode_gaps, gaps_key
from broker.storage.head import Head, PageState
from broker.storage.keys import log_of_row
from broker.storage.leveldb.database import Database, translated
from broker.storage.leveldb.layout import cells_prefix, head_key, row_of_cell
from broker.storage.leveldb.raw_keys import RawKeys
from broker.storage.leveldb.row_mend import mend_rows
from broker.storage.marks import IDEMPOTENCY, PRODUCER, PRODUCER_LIFE_MS, encode_mark, mark_key
from broker.storage.pagecheck import CELLS_COUNTED
from broker.storage.resolve import NONCE_BYTES, random_nonce
from broker.storage.table import Space

_HEADS_AT_ONCE: Final = 256
_PLAIN_KIND: Final = 0x30
_KIND_AT: Final = 1 + ROW_ID_BYTES
_TAIL_BYTES: Final = {Space.MESSAGES: 4 + ROW_ID_BYTES, Space.PAYLOADS: 12 + ROW_ID_BYTES}
"""The bytes of a page's row behind its topic: the generation, a payload log's number, the page."""


class LostRange(NamedTuple):
    """Messages that are gone: their ids lie in ``[first, last]``. With ``some``, others in that range are there.

    ``entries`` is how many entries are gone: each had at least one message.
    """

    topic: str
    first: RowId
    last: RowId
    some: bool = False
    entries: int = 1

    def line(self) -> str:
        """Return the range as one line."""
        which = "some of the messages" if self.some else "the messages"
        return f"{self.topic}: {which} from {self.first.hex()} to {self.last.hex()}"


class _Found(NamedTuple):
    """An entry of the copy, by its last id."""

    last: RowId
    entry: Entry


def mend_pages(database: Database, damaged: Path, *, now_ms: int, window_ms: int) -> list[str]:
    """Put stubs for the entries that a repaired database lacks, and rows for marks that still count.

    Return a line for each range of ids that is gone, and for each record and root that was made again. ``damaged`` is a copy of the database before its repair. It is used up.

    Raises:
        StorageCorrupt, Unavailable: LevelDB can't read or write the copy.
    """
    raw = RawKeys(damaged)
    lost: list[LostRange] = []
    try:
        for space in (Space.MESSAGES, Space.PAYLOADS):
            _drop_unreadable(database, raw, space)
        made = mend_rows(database, raw, now_ms)
        for space in (Space.MESSAGES, Space.PAYLOADS):
            for row, head in _pages(database, space):
                found = _mend(database, raw, space, row, head)
                if found and space is Space.MESSAGES:
                    _put_gaps(database, row, found)
                lost += found
                _put_marks(database, space, row, now_ms - window_ms)
    finally:
        raw.close()
    return [*(each.line() for each in lost), *made]


def _drop_unreadable(database: Database, raw: RawKeys, space: Space) -> None:
    """Remove the cells that can't be decoded. Without a part of its rollbacks an entry goes, too: no reader may see it."""
    lead = at = cells_prefix(space, b"")[:1]
    while pairs := database.pairs(at, lead + b"\xff" * 80, pairs_max=512, bytes_max=1 << 20)[0]:
        _remove(database, [each for key, value in pairs for each in _unreadable(key, value)])
        at = pairs[-1][0] + b"\0"
    for key in raw.of(lead):
        row = row_of_cell(key)
        is_rolled = row is not None and is_rolled_column(key[len(cells_prefix(space, row)) :])
        if is_rolled and (database.get(key) is None) != (database.get(key[:-1]) is None):
            _remove(database, [key, key[:-1]])


def _unreadable(key: bytes, value: bytes) -> list[bytes]:
    """Return the keys to remove because of a cell that does not decode, or is not in its place."""
    row = row_of_cell(key)
    if row is None:
        return [key]
    column = key[3 + len(row) :]
    try:
        if is_rolled_column(column):
            entries.decode_rolled(value)
            return []
        return [] if entries.decode(value).column == column else [key, key + ROLLED]
    except (StorageCorrupt, ValueError, IndexError, struct.error):
        return [key, key[:-1]] if is_rolled_column(column) else [key, key + ROLLED]


def _remove(database: Database, keys: Sequence[bytes]) -> None:
    if keys:
        with translated(database.path):
            batch = database.batch()
            for key in keys:
                batch.delete(key)
            batch.write()


def _pages(database: Database, space: Space) -> Iterator[tuple[bytes, Head]]:
    """Yield the pages that have entries, with their heads."""
    lead = head_key(space, b"")
    at = lead
    while found := database.pairs(at, lead + b"\xff" * 80, pairs_max=_HEADS_AT_ONCE)[0]:
        for key, value in found:
            row = key[len(lead) :]
            *names, tail = row.split(b":", 2)
            if len(names) < 2 or len(tail) != _TAIL_BYTES[space] or tail.startswith(bytes(4)):
                continue
            try:
                head = heads.decode(value)
            except (StorageCorrupt, ValueError):
                continue  # The check of the copy reports it.
            if head.state is not PageState.GONE and head.cells:
                yield row, head
        at = found[-1][0] + b"\0"


def _mend(
    database: Database, raw: RawKeys, space: Space, row: bytes, head: Head
) -> list[LostRange]:
    prefix = cells_prefix(space, row)
    columns = [key[len(prefix) :] for key in database.keys_of(prefix)]
    there = [column for column in columns if not is_rolled_column(column)]
    missing = head.cells - len(there)
    is_counted = head.cells < CELLS_COUNTED
    if not (missing and is_counted) and there and last_of(there[-1]) == head.pointer:
        return []
    found = [
        _Found(last_of(column), entry)
        for column in there
        if (entry := _entry(database, prefix + column)) is not None
    ]
    page = row[-ROW_ID_BYTES:]
    known = set(there)
    gone = [
        column
        for key in raw.of(prefix)
        if (column := key[len(prefix) :]) not in known and not is_rolled_column(column)
    ]
    is_stored = space is Space.PAYLOADS
    is_known = len(gone) == missing
    if is_known:
        stubs = _stubs_of(gone, found, page, is_stored=is_stored)
    else:
        stubs = _stub_of_gap(found, page, head, is_stored=is_stored)
    with translated(database.path):
        batch = database.batch()
        for stub in stubs:
            batch.put(prefix + stub.column, entries.encode(stub))
        cells = len(there) + len(stubs)
        batch.put(head_key(space, row), heads.encode(head._replace(cells=cells)))
        batch.write()
    topic = b":".join(row.split(b":", 2)[:2]).decode(errors="backslashreplace")
    if not is_known:
        return [LostRange(topic, page, head.pointer, some=True, entries=max(missing, 1))]
    return _joined(topic, stubs, found)


def _entry(database: Database, key: bytes) -> Entry | None:
    """Return an entry; None if it can't be decoded: the check of the copy reports it."""
    value = database.get(key)
    try:
        return None if value is None else entries.decode(value)
    except (StorageCorrupt, ValueError):
        return None


def _stubs_of(
    gone: Sequence[bytes], found: Sequence[_Found], page: RowId, *, is_stored: bool
) -> list[Entry]:
    """Return a stub for each column that is gone."""
    lasts = sorted([*(last_of(column) for column in gone), *(each.last for each in found)])
    before = dict(zip(lasts, [row_before(page), *lasts], strict=False))
    stubs = []
    for column in gone:
        last, flags = last_of(column), column[_KIND_AT] - _PLAIN_KIND
        epoch = max((each.entry.epoch for each in found if each.last < last), default=0)
        first = row_after(before[last])
        stubs.append(
            _stub(flags & ~REFERENCE, epoch, first, last, pointer_of(column), is_stored=is_stored)
        )
    return stubs


def _stub_of_gap(
    found: Sequence[_Found], page: RowId, head: Head, *, is_stored: bool
) -> list[Entry]:
    """Return one stub in the widest gap, or behind the last entry, if that is not at the pointer."""
    edges = [(row_before(page), 0), *((each.last, each.entry.epoch) for each in found)]
    if edges[-1][0] < head.pointer:
        last, epoch = edges[-1]
        return [_stub(0, epoch, row_after(last), head.pointer, None, is_stored=is_stored)]
    gaps = [
        (row_after(last), epoch, row_before(each.entry.first))
        for (last, epoch), each in zip(edges, found, strict=False)
        if last < row_before(each.entry.first)
    ]
    if not gaps:
        return []
    first, epoch, last = max(gaps, key=lambda gap: timestamp_of(gap[2]) - timestamp_of(gap[0]))
    return [_stub(0, epoch, first, last, None, is_stored=is_stored)]


def _put_marks(database: Database, space: Space, row: bytes, keys_since_ms: int) -> None:
    """Put the rows of a page's marks that still count, and have none."""
    topic, name, tail = row.split(b":", 2)
    log = log_of_row(
        TopicId(topic.decode(), name.decode()), tail, has_number=space is Space.PAYLOADS
    )
    since_ms = {PRODUCER: keys_since_ms - PRODUCER_LIFE_MS, IDEMPOTENCY: keys_since_ms}
    prefix, rows = cells_prefix(space, row), {}
    for key in database.keys_of(prefix):
        if not is_rolled_column(key[len(prefix) :]):
            entry = _entry(database, key)
            for mark in () if entry is None else entry.marks:
                if timestamp_of(mark.first) >= since_ms[mark.kind]:
                    rows[head_key(space, mark_key(log, mark))] = encode_mark(mark)
    absent = [key for key, value in rows.items() if database.get(key) != value]
    if absent:
        with translated(database.path):
            batch = database.batch()
            for key in absent:
                batch.put(key, rows[key])
            batch.write()


def _put_gaps(database: Database, row: bytes, lost: Sequence[LostRange]) -> None:
    """Add the lost ranges of a page to the record of its topic's gaps (storage/gaps.py)."""
    namespace, name, tail = row.split(b":", 2)
    topic = TopicId(namespace.decode(), name.decode())
    generation = log_of_row(topic, tail, has_number=False).generation
    key = head_key(Space.RECORDS, gaps_key(topic))
    value = database.get(key)
    known: Sequence[Gap] = ()
    if value is not None:
        known = decode_gaps(entries.unchecked(value, "a record")[NONCE_BYTES:], generation)
    gaps = [*known, *(Gap(each.first, each.last, each.entries) for each in lost)]
    with translated(database.path):
        batch = database.batch()
        batch.put(key, entries.checked(random_nonce() + encode_gaps(generation, gaps)))
        batch.write()


def _stub(
    flags: int, epoch: int, first: RowId, last: RowId, pointer: int | None, *, is_stored: bool
) -> Entry:
    """Return an entry without messages: their lifetime was over at once."""
    flags |= LIFE | STUB | (STORED if is_stored else 0)
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

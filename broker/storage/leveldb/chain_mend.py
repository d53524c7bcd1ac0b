"""Mend the chain of one log's pages in a repaired copy: heads that are gone, or that are an older version.

A head that does not fit its neighbours or its entries is made again from them. A page of which neither head nor entries are
left gets a head, too. page_mend.py then puts stubs for the entries that such a head counts and that are gone.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import plyvel

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_MIN, LogKey, log_key_before
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage.columns import is_entry_column, last_of
from broker.storage.entry import Entry
from broker.storage.head import NO_END, NO_TOKEN, Head, PageState
from broker.storage.leveldb.database import Database
from broker.storage.leveldb.layout import cells_prefix, head_key
from broker.storage.reference import messages_of
from broker.storage.root import Root
from broker.storage.table import Space

Decoded = TypeVar("Decoded")


class RawKeys:
    """The keys of a damaged database, read without a check of their blocks."""

    def __init__(self, path: Path) -> None:
        """Open the database at ``path``. If that fails, no key is known."""
        self._path = path
        try:
            self._db = plyvel.DB(str(path), paranoid_checks=False)
        except (plyvel.Error, OSError):
            self._db = None

    def of(self, prefix: bytes) -> list[bytes]:
        """Return the keys with a prefix, as far as they can be read."""
        if self._db is None:
            return []
        try:
            with self._db.iterator(prefix=prefix, include_value=False) as found:
                return list(found)
        except plyvel.Error:
            return []

    def close(self) -> None:
        """Close the database, and remove it."""
        if self._db is not None:
            self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)


class _Counted(NamedTuple):
    """The entries of a page, as its head counts them."""

    last: LogKey | None = None
    epoch: int = 0
    cells: int = 0
    gone: int = 0
    messages: int = 0
    bytes: int = 0
    size: int = 0
    first_end_ms: int = NO_END
    has_stub: bool = False


class MendedPage(NamedTuple):
    """A page, its head as it is now, and whether the head was made again."""

    key: LogKey
    head: Head
    counted: _Counted
    is_made: bool


def delete_row(database: Database, space: Space, row: bytes) -> None:
    """Remove a row."""
    cells = database.keys_of(cells_prefix(space, row))
    database.change({}, deletes=[head_key(space, row), *cells])


def readable(decode: Callable[[bytes], Decoded], value: bytes | None) -> Decoded | None:
    """Return what a value decodes to; None: there is no value, or it is damaged."""
    try:
        return None if value is None else decode(value)
    except (StorageCorrupt, ValueError, IndexError, struct.error):
        return None


def content_of(value: bytes) -> bytes:
    """Return the content of a record or of a mark. Raises StorageCorrupt if its checksum is wrong."""
    return entries.unchecked(value, "it")


def all_pairs(database: Database, lead: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the keys that begin with ``lead``, with their values, some at a time; they may change meanwhile."""
    at = lead
    while pairs := database.pairs(at, lead + b"\xff" * 80, pairs_max=256, bytes_max=1 << 20)[0]:
        yield pairs
        at = pairs[-1][0] + b"\0"


class ChainMend:
    """Mends one log. ``prefix`` begins the keys of its pages."""

    def __init__(
        self, database: Database, raw: RawKeys, space: Space, prefix: bytes, *, begins_at_min: bool
    ) -> None:
        """Keep the parts. ``begins_at_min``: the first page of the log has the least id as its key."""
        self._database = database
        self._raw = raw
        self._space = space
        self._prefix = prefix
        self._begins_at_min = begins_at_min

    def _row(self, page: LogKey) -> bytes:
        return self._prefix + page

    def mend(self, known: set[LogKey], root: Root | None, ends: PageState) -> list[MendedPage]:
        """Mend the heads of these pages, and those of pages that are missing among them. ``ends``: the tail's state."""
        keys, chain = sorted(known), list[MendedPage]()
        if keys and self._begins_at_min and keys[0] != LOG_KEY_MIN:
            keys.insert(0, LOG_KEY_MIN)
        place = 0
        while place < len(keys):
            before = chain[-1] if chain else None
            if before is not None and before.head.next < keys[place]:
                keys.insert(place, before.head.next)
            elif before is not None and keys[place] < before.head.next:
                delete_row(self._database, self._space, self._row(keys.pop(place)))
                continue
            following = keys[place + 1] if place + 1 < len(keys) else None
            chain.append(self._page(keys[place], before, following, root, ends))
            place += 1
            tail = chain[-1].head
            if place == len(keys) and tail.is_sealed and ends is PageState.CLOSED:
                keys.append(tail.next)
        self._count(chain)
        for page in chain:
            key = head_key(self._space, self._row(page.key))
            value = heads.encode(page.head)
            if self._database.get(key) != value:
                self._database.change({key: value})
        return chain

    def _page(
        self,
        key: LogKey,
        before: MendedPage | None,
        following: LogKey | None,
        root: Root | None,
        ends: PageState,
    ) -> MendedPage:
        row = self._row(key)
        counted = self._counted(row)
        head = readable(heads.decode, self._database.get(head_key(self._space, row)))
        epoch = root.epoch if root is not None and following is None else 0
        must_close = following is None and ends is PageState.CLOSED
        is_ended = head is not None and not (must_close and head.is_open)
        if head is not None and is_ended and _fits(head, before, following, counted, epoch):
            return MendedPage(key, head, counted, is_made=False)
        former = before.head if before is not None else Head(0, "", NO_TOKEN, log_key_before(key))
        last = max([former.pointer, log_key_before(key), counted.last or LOG_KEY_MIN])
        is_gone = root is not None and key < root.gone
        state = PageState.GONE if is_gone else PageState.SEALED if following else ends
        cells = counted.cells + counted.gone
        if following and not cells and not is_gone:
            cells = 1  # All of it is gone: one stub stands for it.
        made = former._replace(
            before=former.chain,
            epoch=max(former.epoch, counted.epoch, epoch),
            owner="",
            token=NO_TOKEN,
            pointer=log_key_before(following) if following else last,
            state=state,
            first_end_ms=counted.first_end_ms,
            prev=LOG_KEY_MIN if before is None else before.key,
            cells=cells,
            size=counted.size,
        )
        return MendedPage(key, made, counted, is_made=True)

    @staticmethod
    def _count(chain: list[MendedPage]) -> None:
        """Give the heads made again their sums: what the page behind says, else what is there."""
        for place, page in enumerate(chain):
            if not page.is_made:
                continue
            former = chain[place - 1].head if place else Head(0, "", NO_TOKEN, LOG_KEY_MIN)
            total = former.total + page.counted.messages
            size = former.bytes + page.counted.bytes
            behind = chain[place + 1] if place + 1 < len(chain) else None
            if behind is not None and not behind.is_made and not behind.counted.has_stub:
                total = max(total, behind.head.total - behind.counted.messages)
                size = max(size, behind.head.bytes - behind.counted.bytes)
            cells = page.head.cells
            if total > former.total + page.counted.messages and cells == page.counted.cells:
                cells += 1
            chain[place] = page._replace(
                head=page.head._replace(total=total, bytes=size, cells=cells)
            )

    def _counted(self, row: bytes) -> _Counted:
        prefix = cells_prefix(self._space, row)
        columns = [key[len(prefix) :] for key in self._database.keys_of(prefix)]
        there = {column for column in columns if is_entry_column(column)}
        was = [key[len(prefix) :] for key in self._raw.of(prefix)]
        gone = [column for column in was if column not in there and is_entry_column(column)]
        counted = _Counted(gone=len(gone))
        for column in sorted(there):
            entry = entries.decode(self._database.get(prefix + column) or b"")
            counted = _plus(counted, entry)
        lasts = [last_of(column) for column in gone]
        return counted._replace(
            last=max([*lasts, *([counted.last] if counted.last else [])], default=None)
        )


def _plus(counted: _Counted, entry: Entry) -> _Counted:
    counted = counted._replace(
        last=entry.last, epoch=max(counted.epoch, entry.epoch), cells=counted.cells + 1
    )
    if entry.is_stub:
        return counted._replace(has_stub=True)
    return counted._replace(
        messages=counted.messages + messages_of(entry),
        bytes=counted.bytes + (0 if entry.is_reference else entry.payload_bytes()),
        size=counted.size + entry.stored_bytes,
        first_end_ms=min(counted.first_end_ms, NO_END if entry.end_ms is None else entry.end_ms),
    )


def _fits(
    head: Head, before: MendedPage | None, following: LogKey | None, counted: _Counted, epoch: int
) -> bool:
    """Return whether a head fits its neighbours and its entries. An older version of it does not."""
    if before is not None:
        former = before.head
        has_risen = (
            head.epoch >= former.epoch
            and head.pointer >= former.pointer
            and head.total >= former.total
            and head.bytes >= former.bytes
        )
        if head.prev != before.key or not has_risen:
            return False
    elif head.prev != LOG_KEY_MIN:
        return False
    if head.state is PageState.GONE:
        return not counted.cells and (following is None or head.next <= following)
    if counted.last is not None and (counted.last > head.pointer or counted.epoch > head.epoch):
        return False
    if following is None:
        return head.epoch >= epoch
    return head.is_sealed and head.next <= following

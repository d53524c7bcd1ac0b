"""Mend the rows that lead to entries in a repaired copy: topics' records, roots, and the heads of pages.

A block that LevelDB dropped may have had any of them, or the newest version of one: then the copy shows an older one. The
rows that are left, and the original's keys, show which pages a log had. A head that is gone, or does not fit its
neighbours, is made again from them and from its entries; so is a root. page_mend.py then puts stubs for what is gone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Final

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, LogKey
from broker.storage import entry as entries
from broker.storage import root as roots
from broker.storage.entry import MARK_KEY_BYTES
from broker.storage.head import PageState
from broker.storage.keys import MARK, ROOT
from broker.storage.leveldb.chain_mend import (
    ChainMend,
    MendedPage,
    RawKeys,
    content_of,
    delete_row,
    readable,
)
from broker.storage.leveldb.database import Database
from broker.storage.leveldb.layout import cells_prefix, head_key, row_of_cell
from broker.storage.leveldb.payload_mend import PayloadsMend
from broker.storage.marks import decode_mark
from broker.storage.resolve import NONCE_BYTES, random_nonce
from broker.storage.root import Root, RootState
from broker.storage.table import Space
from broker.storage.walk import TOPIC_RECORDS

TTL_S_MAX: Final = (1 << 31) - 1
"""The lifetime of the messages of a topic whose properties are gone: none expires before a person sets it."""
_MARK_BYTES: Final = 4 + 1 + 4 + 1 + MARK_KEY_BYTES + LOG_KEY_BYTES
_GENERATION: Final = struct.Struct(">i")


def mend_rows(database: Database, raw: RawKeys, now_ms: int) -> list[str]:
    """Mend all message logs, and the records of their topics. Return a line for each record and root made again."""
    pages: dict[bytes, set[bytes]] = {}
    for row in _rows(database, raw):
        topic, rest = _parts(row)
        if topic is None or _is_stray(rest, database.get(head_key(Space.MESSAGES, row))):
            delete_row(database, Space.MESSAGES, row)
        else:
            pages.setdefault(topic, set()).add(rest)
    for key in {*database.keys_of(_record(b"")), *raw.of(_record(b""))}:
        topic, rest = _parts(key[len(_record(b"")) :] + bytes(4))
        if topic is not None:
            pages.setdefault(topic, set())
    return [
        line
        for topic in sorted(pages)
        for line in _Topic(database, raw, topic, pages[topic], now_ms).mend()
    ]


def _is_stray(rest: bytes, value: bytes | None) -> bool:
    """Return whether a row is no page, no root, and no mark that can be read."""
    if value is None or not rest.startswith(bytes(4)) or rest == bytes(4) + ROOT:
        return False
    is_mark = rest.startswith(bytes(4) + MARK) and len(rest) == _MARK_BYTES
    if not is_mark or readable(content_of, value) is None:
        return True
    mark = decode_mark(rest, value)
    return mark.first > mark.last


def _record(topic: bytes) -> bytes:
    return head_key(Space.RECORDS, TOPIC_RECORDS + topic)


def _rows(database: Database, raw: RawKeys) -> set[bytes]:
    """Return the rows of messages that have a head or entries, or had a head in the original."""
    lead = head_key(Space.MESSAGES, b"")
    found = {key[len(lead) :] for key in (*database.keys_of(lead), *raw.of(lead))}
    at = cells = cells_prefix(Space.MESSAGES, b"")[:1]
    while pairs := database.pairs(at, cells + b"\xff" * 80, pairs_max=1)[0]:
        row = row_of_cell(pairs[0][0])
        if row is None:
            database.change({}, deletes=[pairs[0][0]])
            continue
        found.add(row)
        at = cells_prefix(Space.MESSAGES, row) + b"\xff" * 40
    return found


def _parts(row: bytes) -> tuple[bytes | None, bytes]:
    """Return a row's topic, with a colon at its end, and the rest. None: it names no topic."""
    names = row.split(b":", 2)
    if len(names) < 3 or not all(
        name.isascii() and name.decode().isprintable() for name in names[:2]
    ):
        return None, b""
    return b":".join(names[:2]) + b":", names[2]


class _Topic:
    """Mends the rows of one topic."""

    def __init__(
        self, database: Database, raw: RawKeys, topic: bytes, rests: set[bytes], now_ms: int
    ) -> None:
        self._database = database
        self._raw = raw
        self._now_ms = now_ms
        self._topic = topic
        self._name = topic[:-1].decode()
        self._pages: dict[int, set[LogKey]] = {}
        for rest in rests:
            (generation,) = _GENERATION.unpack_from(rest.ljust(4, b"\0"))
            if generation > 0 and len(rest) == 4 + LOG_KEY_BYTES:
                self._pages.setdefault(generation, set()).add(rest[4:])
            elif generation:
                delete_row(database, Space.MESSAGES, topic + rest)
        self._root_key = head_key(Space.MESSAGES, topic + bytes(4) + ROOT)

    def mend(self) -> Iterator[str]:
        root = readable(roots.decode, self._database.get(self._root_key))
        generation, is_deleted, is_there = self._recorded()
        if not is_there:
            if root is None and not self._raw.of(_record(self._topic)):
                self._remove()
                return
            generation = root.generation if root else max(self._pages, default=1)
            is_deleted = root is not None and root.state is RootState.DELETED
            self._make_record(generation, is_deleted=is_deleted)
            yield (
                f"{self._name}: its record, made again with ttl={TTL_S_MAX}; set its properties with "
                f"`broker topics set {self._name}`"
            )
        for later in [each for each in self._pages if each > generation]:
            for page in self._pages.pop(later):
                delete_row(self._database, Space.MESSAGES, self._row(later, page))
        known = self._pages.get(root.generation if root else generation, set())
        if root is None and not known and generation == 1 and not is_deleted:
            return  # No node has claimed the log yet.
        live = root.generation if root else generation
        is_closed = root.state is RootState.DELETED if root else is_deleted
        ends = PageState.CLOSED if is_closed else PageState.OPEN
        prefix = self._topic + _GENERATION.pack(live)
        mend = ChainMend(self._database, self._raw, Space.MESSAGES, prefix, begins_at_min=live == 1)
        chain = mend.mend(known, root, ends)
        made = self._made_root(root, generation, chain, is_deleted=is_deleted)
        if made != root:
            self._database.change({self._root_key: roots.encode(made)})
        if root is None:
            yield f"{self._name}: its root, made again from its pages"
        payloads = PayloadsMend(self._database, self._raw, self._topic, live, self._now_ms)
        yield from payloads.mend(made.floor, chain)

    def _row(self, generation: int, page: LogKey) -> bytes:
        return self._topic + _GENERATION.pack(generation) + page

    def _remove(self) -> None:
        """Remove rows under a name that no record and no root has: a damaged key."""
        for generation, pages in self._pages.items():
            for page in pages:
                delete_row(self._database, Space.MESSAGES, self._row(generation, page))

    def _recorded(self) -> tuple[int, bool, bool]:
        """Return the generation in the record, whether it says deleted, and whether the record can be read."""
        value = self._database.get(_record(self._topic))
        try:
            record = json.loads(content_of(value or b"")[NONCE_BYTES:])
            return int(record["generation"]), bool(record["deleted"]), True
        except (StorageCorrupt, ValueError, KeyError, TypeError):
            return 1, False, False

    def _make_record(self, generation: int, *, is_deleted: bool) -> None:
        record = {
            "generation": generation,
            "deleted": is_deleted,
            "properties": {"ttl": str(TTL_S_MAX)},
            "token": "",
            "purged_ms": 0,
        }
        text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        self._database.change({_record(self._topic): entries.checked(random_nonce() + text)})

    def _made_root(
        self, root: Root | None, generation: int, chain: list[MendedPage], *, is_deleted: bool
    ) -> Root:
        if root is None:
            state = RootState.DELETED if is_deleted else RootState.LIVE
            root = Root(generation, state)
        if not chain:
            return root
        tail, keys = chain[-1], {page.key for page in chain}
        first = next((p.key for p in chain if p.head.state is not PageState.GONE), tail.key)
        if root.state is RootState.DELETED:
            return root._replace(page=tail.head.next, floor=tail.head.next, epoch=tail.head.epoch)
        floor = root.floor if root.floor in keys else first
        page = root.page if root.page in keys and root.page >= floor else tail.key
        epoch = min(root.epoch, tail.head.epoch) if root.epoch else tail.head.epoch
        return root._replace(floor=floor, page=page, gone=min(root.gone, floor), epoch=epoch)

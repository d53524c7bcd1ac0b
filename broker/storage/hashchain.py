"""The hash chain of a log: one running SHA-256 over its entries and over the records of its edits (rule 16).

::

    genesis ──BEGIN──▶ ──entry──▶ ──entry──▶ ──ROLL──▶ ──entry──▶ ──DONE──▶ ...
                         │                      └ a record: a cell of the own page, like an entry's cell
                         └ sha256(hash before | "e" | header, first id and sha256(content) of the entry)

A head has two hashes: ``before``, the hash at the end of the page before, and ``chain``, the hash at its own pointer.
The change that appends entries, or puts a record, writes both the cells and the new hash. So an append costs the hash of
its own entries, and a page is verified by itself: its cells lead from ``before`` to ``chain``.

Cells of sealed pages change later: a rollback puts x cells, and a stub replaces an entry whose lifetime has ended.

* A stub keeps the hash of the content that it replaces. Header and first id stay, so the chain stays the same.
* A rollback is recorded in the own page before its first x cell (ROLL), and after its last one (DONE). So each x cell has a
  record, and each rollback that was answered has its x cells.
* A higher floor is recorded before the root has it (FLOOR): then whole pages go. The chain is verified from there on.

Records lie in columns of their own, before all entries of the page::

    c | pointer of the log | number (the head's ``edits``)

A record with the pointer p follows the entry that ends at p.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, LogKey
from broker.storage.columns import JUDGED, record_column
from broker.storage.entry import (
    CRC_BYTES,
    DIGEST_BYTES,
    FIXED_BYTES,
    MARK_BYTES,
    STORED,
    STUB,
    Entry,
    checked,
    unchecked,
)
from broker.storage.keys import LogId, log_prefix

ALGORITHM: Final = "sha256"
"""The value of the topic property ``chain``. A later algorithm takes a name of its own."""
_GENESIS: Final = b"broker log chain 1\0"
_ENTRY, _RECORD = b"e", b"c"
_COUNT = struct.Struct(">H")
_FIXED = struct.Struct(f">BQ{LOG_KEY_BYTES}s{LOG_KEY_BYTES}sI")
_NUMBER_BYTES = 8


class Kind(enum.IntEnum):
    """The fields of a record."""

    BEGIN = 1
    """The chain begins here. ``first``: the floor."""
    ROLL = 2
    """Messages of ``pointers`` in ``[first, last]`` are about to be rolled back."""
    DONE = 3
    """The rollback with the number ``of`` has all its x cells."""
    FLOOR = 4
    """The floor is about to rise to ``first``."""


class ChainRecord(NamedTuple):
    """A note in the chain."""

    kind: Kind
    first: LogKey = LOG_KEY_MIN
    last: LogKey = LOG_KEY_MIN
    of: int = 0
    pointers: tuple[int, ...] = ()


def genesis(log: LogId) -> bytes:
    """Return the hash with which the chain of a log begins: no two logs share it."""
    return hashlib.sha256(_GENESIS + log_prefix(log)).digest()


def encode(record: ChainRecord) -> bytes:
    """Encode a record: the value of its cell."""
    kind, first, last, of, pointers = record
    body = _FIXED.pack(kind, of, first, last, len(pointers))
    return checked(body + struct.pack(f">{len(pointers)}q", *pointers))


def decode(value: bytes) -> ChainRecord:
    """Decode a record. Raises StorageCorrupt."""
    body = unchecked(value, "a record of the chain")
    try:
        kind, of, first, last, count = _FIXED.unpack_from(body)
        return ChainRecord(
            Kind(kind), first, last, of, struct.unpack(f">{count}q", body[_FIXED.size :])
        )
    except (struct.error, ValueError):
        raise StorageCorrupt("a record of the chain does not decode") from None


class RecordCell(NamedTuple):
    """The cell of a record."""

    column: bytes
    value: bytes

    @property
    def size(self) -> int:
        """How many bytes it adds to its page."""
        return len(self.column) + len(self.value)


def cell_of(pointer: LogKey, number: int, record: ChainRecord) -> RecordCell:
    """Return the cell of a record that follows the entry at ``pointer``."""
    return RecordCell(record_column(pointer, number), encode(record))


# Hashes.


def _header_bytes(value: bytes) -> int:
    """Return the size of an entry's header in its cell, with the marks."""
    at = FIXED_BYTES + _NUMBER_BYTES * (value[1] & JUDGED).bit_count()
    (marks,) = _COUNT.unpack_from(value, at)
    return at + _COUNT.size + int(marks) * MARK_BYTES


def content_hash(value: bytes) -> bytes:
    """Return the hash of an entry's messages, from its cell. A stub has it from the entry that it replaced.

    Raises:
        StorageCorrupt: it is a stub from before the chain.
    """
    at = _header_bytes(value)
    if value[1] & STUB:
        digest = value[at + LOG_KEY_BYTES : -CRC_BYTES]
        if len(digest) != DIGEST_BYTES:
            raise StorageCorrupt("a stub lacks the hash of the entry that it replaced")
        return digest
    return hashlib.sha256(memoryview(value)[at:-CRC_BYTES]).digest()


def link_of(entry: Entry, value: bytes) -> bytes:
    """Return what the chain takes of an entry: the same for the entry and for its stub.

    It hashes the messages, so the caller does it in a thread if they are large. Raises StorageCorrupt.
    """
    flags = bytes([value[1] & (JUDGED | STORED)])
    return flags + value[2 : _header_bytes(value)] + entry.first + content_hash(value)


def links_of(added: Sequence[Entry], values: Iterable[bytes]) -> list[bytes]:
    """Return the links of entries, with their cells' values."""
    return [link_of(entry, value) for entry, value in zip(added, values, strict=True)]


def extended(chain: bytes, links: Iterable[bytes]) -> bytes:
    """Return the running hash after the links of entries."""
    for link in links:
        chain = hashlib.sha256(chain + _ENTRY + link).digest()
    return chain


def recorded(chain: bytes, cell: RecordCell) -> bytes:
    """Return the running hash after a record."""
    return hashlib.sha256(chain + _RECORD + cell.column + cell.value).digest()

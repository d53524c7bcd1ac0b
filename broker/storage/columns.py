"""Columns of entries. A column holds the facts that a reader needs before it reads the value.

::

    e | last id | kind [| write pointer]                kind: the flags pointer, life, reference
    e | last id | kind | write pointer | x              the ranges of ids of that entry that were rolled back

    c | pointer | number                                a record of the hash chain (hashchain.py)

So the first column at or above ``e`` + X holds the first message at or above X. A rollback finds a
transaction's entries without reading their values. The ``x`` cell follows its entry directly, so one read
returns both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from broker.model import LOG_KEY_BYTES, LogKey

POINTER, LIFE, REFERENCE = 1, 2, 4
JUDGED: Final = POINTER | LIFE | REFERENCE
"""The flags of an entry that are part of its column."""

_NUMBER = struct.Struct(">q")
_ENTRIES = b"e"
ENTRIES_END: Final = _ENTRIES + b"\xff" * (LOG_KEY_BYTES + 10)
RECORDS: Final = b"c"
"""The first byte of the columns of records. They sort before all entries, so no reader of entries meets them."""
_RECORD_NUMBER = struct.Struct(">Q")
RECORD_COLUMN_BYTES: Final = 1 + LOG_KEY_BYTES + _RECORD_NUMBER.size
ROLLED: Final = b"x"
"""The last byte of the column of an ``x`` cell."""
_PLAIN = 0x30
_KINDS = {flags: bytes([_PLAIN + flags]) for flags in range(8)}
PLAIN_KIND: Final = _KINDS[0]
"""The last byte of the column of an entry without these flags."""
PLAIN_COLUMN_BYTES: Final = 1 + LOG_KEY_BYTES + 1
_POINTER_COLUMN_BYTES = PLAIN_COLUMN_BYTES + _NUMBER.size


def column_of(last: LogKey, flags: int, pointer: int | None) -> bytes:
    """Return the column of an entry."""
    kind = _ENTRIES + last + _KINDS[flags & JUDGED]
    return kind if pointer is None else kind + _NUMBER.pack(pointer)


def column_from(key: LogKey) -> bytes:
    """Return the first column that can hold a message at or above ``key``."""
    return _ENTRIES + key


def last_of(column: bytes) -> LogKey:
    """Return the last id of the entry with this column, or of the entry that an ``x`` belongs to."""
    return column[1 : 1 + LOG_KEY_BYTES]


def pointer_of(column: bytes) -> int | None:
    """Return the write pointer in an entry's column."""
    if len(column) < _POINTER_COLUMN_BYTES:
        return None
    (pointer,) = _NUMBER.unpack_from(column, PLAIN_COLUMN_BYTES)
    return int(pointer)


def flags_of(column: bytes) -> int:
    """Return the flags of an entry that its column has: those in JUDGED."""
    return column[1 + LOG_KEY_BYTES] - _PLAIN


def has_life(column: bytes) -> bool:
    """True if an entry has a lifetime of its own, by its column."""
    return not is_rolled_column(column) and bool(flags_of(column) & LIFE)


def record_column(pointer: LogKey, number: int) -> bytes:
    """Return the column of a record that follows the entry at ``pointer``."""
    return RECORDS + pointer + _RECORD_NUMBER.pack(number)


def is_record_column(column: bytes) -> bool:
    """True if a column is that of a record of the hash chain."""
    return column.startswith(RECORDS)


def record_place(column: bytes) -> tuple[LogKey, int]:
    """Return the pointer and the number in a record's column."""
    return last_of(column), int.from_bytes(column[1 + LOG_KEY_BYTES :], "big")


def is_entry_column(column: bytes) -> bool:
    """True if a column is that of an entry."""
    return column.startswith(_ENTRIES) and not is_rolled_column(column)


def rolled_column(column: bytes) -> bytes:
    """Return the column of the ``x`` cell of an entry: it holds the ranges of ids that were rolled back."""
    return column + ROLLED


def is_rolled_column(column: bytes) -> bool:
    """True if a column is that of an ``x`` cell."""
    return len(column) == _POINTER_COLUMN_BYTES + 1


def up_to(last: LogKey, columns: Sequence[bytes]) -> Iterator[bytes]:
    """Return the columns of entries up to the one that holds ``last``."""
    for column in columns:
        if not is_rolled_column(column):
            yield column
            if last_of(column) >= last:
                return

"""Keys of the database; the package's docstring draws them."""

from __future__ import annotations

import struct
from typing import Final

from broker.storage.table import Space

FORMAT_KEY: Final = b"f"
_HEADS: Final = {Space.MESSAGES: b"m", Space.PAYLOADS: b"p", Space.RECORDS: b"r"}
_CELLS: Final = {Space.MESSAGES: b"M", Space.PAYLOADS: b"P"}
_LENGTH: Final = struct.Struct(">H")
ROW_BYTES_MAX: Final = 0xFFFF


def head_key(space: Space, row: bytes) -> bytes:
    """Return the key of a row's head."""
    return _HEADS[space] + row


def cells_prefix(space: Space, row: bytes) -> bytes:
    """Return the prefix of a row's cells, without the head; the column follows it.

    Raises ValueError if the row is too long, or if rows of the space have only a head.
    """
    lead = _CELLS.get(space)
    if lead is None:
        raise ValueError(f"a row in {space} has no cell except its head")
    if len(row) > ROW_BYTES_MAX:
        raise ValueError(f"a row's key has {len(row)} bytes; the limit is {ROW_BYTES_MAX}")
    return lead + _LENGTH.pack(len(row)) + row


def row_of_cell(key: bytes) -> bytes | None:
    """Return the row of a cell that is not a head; None: it is not the key of a cell."""
    if len(key) <= 1 + _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(key, 1)
    row = key[1 + _LENGTH.size :][:length]
    return row if len(row) == length else None


def has_cells(space: Space) -> bool:
    """True if rows of the space may have cells beside the head."""
    return space in _CELLS

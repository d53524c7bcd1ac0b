"""Keys and columns of a rowlog: where its cells lie. Pure. The layout is that of Lily's RowLog 2.0.

In the user's row, in one family (columns as qualifiers)::

    log byte | 01 | seq int64 | timestamp int64      payload
    log byte | 02 | seq int64 | timestamp int64      execution state
    log byte | 03 | seq int64 | timestamp int64      data, if a message has any: an addition to Lily's
    log byte | "SEQNR"                               counter, int64
    log byte | "LOCK"                                row lock: an addition to Lily's

The log byte lets several rowlogs share a family. Integers are big-endian.

In the index table ``rowlog-<id>``, family ``messages``, one row for each message and subscription::

    shard 1 | subscription | 00 | timestamp int64 | seq int64 | row        open: "may have an open message"
    shard 1 | subscription | 01 | timestamp int64 | seq int64 | row        dead: an addition to Lily's

    ff | name                                                              setup, epochs (meta.py)

The value, in column ``messages:msg``, is the message's data. A scan for open messages stops at 01, so dead letters cost
it nothing.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from broker.errors import BadName, BadRequest

PAYLOAD: Final = 1
STATE: Final = 2
DATA: Final = 3
SEQUENCE: Final = b"SEQNR"
LOCK: Final = b"LOCK"
OPEN_END: Final = b"\x00"
DEAD_END: Final = b"\x01"
_AFTER: Final = {OPEN_END: DEAD_END, DEAD_END: b"\x02"}
META: Final = b"\xff"
"""The first byte of the reserved rows of an index table. Shards are 0 to 254."""
SHARDS_MAX: Final = 255
INDEX_FAMILY: Final = b"messages"
INDEX_COLUMN: Final = b"messages:msg"
ID_BYTES_MAX: Final = 128
TABLE_PREFIX: Final = "rowlog-"

_cell = struct.Struct(">BBqq")
_place = struct.Struct(">qq")
_LOWEST_PRINTED: Final = 0x20


class MessageId(NamedTuple):
    """The id of a message within its row. Ids sort in the order of the row's messages."""

    seq: int
    timestamp: int
    """The wall clock of the process that put the message, ms since 1970."""


class Entry(NamedTuple):
    """A row of the index: a hint that ``row`` may have an open (or a dead) message."""

    shard: int
    subscription: str
    timestamp: int
    seq: int
    row: bytes
    data: bytes = b""

    @property
    def message(self) -> MessageId:
        """The message that this entry is about."""
        return MessageId(self.seq, self.timestamp)


def check_id(name: str) -> str:
    """Return the id of a rowlog or subscription. Raises BadName."""
    raw = name.encode(errors="ignore")
    if raw.decode() != name or not 0 < len(raw) <= ID_BYTES_MAX or min(raw) < _LOWEST_PRINTED:
        raise BadName(
            f"'{name}' is no id of a rowlog or subscription: 1 to {ID_BYTES_MAX} bytes, none below 0x20."
        )
    return name


class Columns:
    """The columns of one rowlog in rows of the user's table."""

    def __init__(self, family: bytes, log_byte: int) -> None:
        """Use columns of ``family``; ``log_byte`` (0 to 255) tells rowlogs of one family apart."""
        if not 0 <= log_byte <= 255:
            raise BadRequest(f"log_byte is {log_byte}; it is one byte, 0 to 255.")
        self.family = family
        self.log_byte = log_byte
        self._prefix = family + b":"
        own = bytes([log_byte])
        self.sequence = self._prefix + own + SEQUENCE
        self.lock = self._prefix + own + LOCK
        self.state_prefix = own + bytes([STATE])
        """The prefix of the qualifiers of states, for a filter."""

    def of(self, kind: int, message: MessageId) -> bytes:
        """Return the column of a message's payload, state or data."""
        return self._prefix + _cell.pack(self.log_byte, kind, message.seq, message.timestamp)

    def message(self, column: bytes, kind: int = STATE) -> MessageId | None:
        """Return the message of a column; None: it is no column of that kind of this rowlog."""
        if not column.startswith(self._prefix) or len(column) - len(self._prefix) != _cell.size:
            return None
        log_byte, found, seq, timestamp = _cell.unpack_from(column, len(self._prefix))
        if (log_byte, found) != (self.log_byte, kind):
            return None
        return MessageId(seq, timestamp)


def index_key(entry: Entry, end: bytes = OPEN_END) -> bytes:
    """Return an entry's key."""
    return (
        range_start(entry.shard, entry.subscription, end)
        + _place.pack(entry.timestamp, entry.seq)
        + entry.row
    )


def range_start(
    shard: int, subscription: str, end: bytes = OPEN_END, timestamp: int | None = None
) -> bytes:
    """Return the first key of a subscription's entries in a shard, from a time on."""
    key = bytes([shard]) + subscription.encode() + end
    return key if timestamp is None else key + struct.pack(">q", max(timestamp, 0))


def range_stop(shard: int, subscription: str, end: bytes = OPEN_END) -> bytes:
    """Return the key behind the last of a subscription's entries in a shard."""
    return bytes([shard]) + subscription.encode() + _AFTER[end]


def entry_of(key: bytes, data: bytes = b"") -> tuple[Entry, bytes] | None:
    """Return an entry from its key, and its end: open or dead. None: the key is no entry's."""
    if not key or key[:1] == META:
        return None
    at = next((at for at in range(1, len(key)) if key[at] < _LOWEST_PRINTED), 0)
    end = key[at : at + 1]
    if at < 2 or end not in _AFTER or len(key) < at + 1 + _place.size:
        return None
    timestamp, seq = _place.unpack_from(key, at + 1)
    row = key[at + 1 + _place.size :]
    try:
        subscription = key[1:at].decode()
    except UnicodeDecodeError:
        return None
    return Entry(key[0], subscription, timestamp, seq, row, data), end


def meta_key(name: str) -> bytes:
    """Return the key of a reserved row."""
    return META + name.encode()

"""An entry: consecutive messages of one append, stored as one cell, encoded as on the wire.

::

    format  flags  epoch    last id  count      fixed, 18 bytes
    write pointer  lifetime  payload log        8 bytes each, if the flags say so
    number of marks | marks                     for later requests (keys)
    size, 4 bytes | attributes                  of messages that have any, if the flags say so (attributed.py)
    offsets                                     where each item but the first begins, 2 bytes each
    items                                       Avro items of a poll's reply; a stub has its first id here
    CRC-32 of all before, little-endian         so that the CRC-32 of any whole value is one number

The epoch counts the claims of a topic. Ten claims a second would fill its 4 bytes in 13 years.
An entry has at most 16 KiB of items and attributes, or one message. Its format is 1, or 2 with attributes. Messages with a write pointer, a lifetime or a reference have entries
of their own, so a reader decides once for all messages of an entry.
An entry does not change. When its lifetime ends, a **stub** replaces it: its header without messages. In a log with
a hash chain its format is 3, and it ends with the hash of what it replaced (hashchain.py). In a
page that takes no more appends, one larger entry replaces several small ones (page_packer.py).

Items of a payload log lack the reference's half of the id, because it is not known when they are written.
The reader adds it. Reading copies slices of ``items``, and decodes only the fields that decide visibility.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, MESSAGE_ID_BYTES, LogKey, timestamp_of
from broker.storage.attributed import ITEM_BYTES, Attributed, pack, unpack
from broker.storage.attributed import part as cut
from broker.storage.columns import JUDGED, LIFE, POINTER, REFERENCE, column_of
from broker.wire.varint import SHORT_LONGS, encode_long, read_long

FORMAT: Final = 1
"""The format of entries without attributes."""
FORMAT_ATTRIBUTED: Final = 2
"""The format of entries with attributes. A change of the encoding takes new numbers."""
FORMAT_STUB_HASHED: Final = 3
"""The format of stubs that have the hash of the entry that they replaced."""
ENTRY_BYTES_MAX: Final = 16 * 1024
"""The most bytes of items and attributes in an entry of more than one message."""
VIEWED_BYTES_MIN: Final = 64 * 1024
"""A message of at least this size is read as a view of its cell, without a copy."""

STORED, STUB = 8, 16
_ATTRIBUTED = 32
"""Only stored values have this flag. An entry in memory has ``attributed`` instead."""

_FIXED = struct.Struct(f">BBI{LOG_KEY_BYTES}sH")
FIXED_BYTES: Final = _FIXED.size
DIGEST_BYTES: Final = 32
_NUMBER = struct.Struct(">q")
_COUNT = struct.Struct(">H")
_SIZE = struct.Struct(">I")
_CHECK = struct.Struct(">I")
_CRC = struct.Struct("<I")
CRC_BYTES: Final = _CRC.size
WHOLE: Final = 0x2144DF1C
"""The CRC-32 of any bytes followed by their own CRC-32, little-endian."""
MARK_KEY_BYTES: Final = 16
_MARK = struct.Struct(f">B{MARK_KEY_BYTES}s{LOG_KEY_BYTES}s{LOG_KEY_BYTES}s32s")
MARK_BYTES: Final = _MARK.size
MARK_MEMORY_BYTES: Final = 320
"""The memory of a mark."""
_RANGE = struct.Struct(f">{LOG_KEY_BYTES}s{LOG_KEY_BYTES}s")

_MESSAGE_LEAD = encode_long(MESSAGE_ID_BYTES)
_SHORT = len(SHORT_LONGS)
_FIRST_START = b"\0\0"
_INLINE_TAILS = tuple(bytes(LOG_KEY_BYTES) + length for length in SHORT_LONGS)
_FLIPPED = sys.byteorder != "big"

Range = tuple[LogKey, LogKey]
"""Ids, both ends included."""


class Mark(NamedTuple):
    """A note in an entry for later requests: the request with ``key`` got the ids ``first`` to ``last``."""

    kind: int
    key: bytes
    first: LogKey
    last: LogKey
    body: bytes


class Entry:
    """Messages of one entry. ``rolled`` are the ranges of ids that were rolled back."""

    __slots__ = (
        "_id_at",
        "_starts",
        "attributed",
        "count",
        "digest",
        "epoch",
        "first",
        "flags",
        "items",
        "last",
        "lifetime_ms",
        "marks",
        "number",
        "pointer",
        "rolled",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - A value with these parts, made here alone.
        self,
        flags: int,
        epoch: int,
        first: LogKey,
        last: LogKey,
        count: int,
        starts: Sequence[int] | bytes,
        items: bytes | memoryview,
        *,
        pointer: int | None = None,
        lifetime_ms: int | None = None,
        number: int | None = None,
        marks: Sequence[Mark] = (),
        attributed: bytes = b"",
        digest: bytes = b"",
    ) -> None:
        """Keep the parts.

        ``starts``: the offset of each item in ``items``, as numbers or in the stored bytes.
        ``items`` may be a view if the entry has one message.
        ``attributed``: the attributes of messages that have any, in their stored form.
        ``digest``: of a stub in a hash chain, the hash of the content that it replaced.
        """
        self.flags = flags
        self.epoch = epoch
        self.first = first
        self.last = last
        self.count = count
        self.items = items
        self.pointer = pointer
        self.lifetime_ms = lifetime_ms
        self.number = number
        self.marks = marks
        self.attributed = attributed
        self.digest = digest
        self.rolled: tuple[Range, ...] = ()
        self._starts = starts
        self._id_at = 0 if flags & STORED else 1

    @property
    def starts(self) -> Sequence[int]:
        """The offset of each item in ``items``. It is decoded only on use: whole entries don't need it."""
        starts = self._starts
        if isinstance(starts, bytes):
            self._starts = starts = unpacked_starts(starts)
        return starts

    @property
    def stored_starts(self) -> Sequence[int] | bytes:
        """The same offsets, or their stored bytes (two each, big-endian) if they are not decoded yet."""
        return self._starts

    @property
    def is_plain(self) -> bool:
        """True if only their age can hide its messages from a consumer."""
        return not self.flags & JUDGED

    @property
    def end_ms(self) -> int | None:
        """When its own lifetime ends, ms since 1970; None: it has none."""
        return None if self.lifetime_ms is None else timestamp_of(self.last) + self.lifetime_ms

    @property
    def is_reference(self) -> bool:
        """True if it is a reference: its one message stands for all messages of payload log ``number``."""
        return bool(self.flags & REFERENCE)

    @property
    def is_stub(self) -> bool:
        """True if its messages were removed because their lifetime ended."""
        return bool(self.flags & STUB)

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return self.content_bytes + 2 * self.count + 400 + MARK_MEMORY_BYTES * len(self.marks)

    @property
    def stored_bytes(self) -> int:
        """About how many bytes its cell has."""
        return self.content_bytes + 2 * self.count + 64 + MARK_BYTES * len(self.marks)

    @property
    def content_bytes(self) -> int:
        """The size of its items and attributes: the number that ENTRY_BYTES_MAX limits."""
        return len(self.items) + len(self.attributed)

    def id(self, place: int) -> LogKey:
        """Return the id of one message."""
        if self.count == 1:
            return self.first
        start = self.starts[place] + self._id_at
        return bytes(self.items[start : start + LOG_KEY_BYTES])

    def ids(self) -> list[LogKey]:
        """Return the ids of all messages."""
        if self.count == 1:
            return [self.first]
        items, at = self.items, self._id_at
        return [bytes(items[start + at : start + at + LOG_KEY_BYTES]) for start in self.starts]

    def message_id(self, place: int) -> bytes:
        """Return one message's id as stored in its item; in a payload log that is the second half."""
        start = self.starts[place] + self._id_at
        size = LOG_KEY_BYTES if self._id_at == 0 else MESSAGE_ID_BYTES
        return bytes(self.items[start : start + size])

    def payload(self, place: int) -> bytes:
        """Return one message's payload."""
        return bytes(self.items[self._payload_at(place) : self._end(place)])

    def payload_view(self, place: int) -> memoryview:
        """Return one message's payload as a view of the entry, without a copy."""
        return memoryview(self.items)[self._payload_at(place) : self._end(place)]

    def payload_bytes(self, first: int = 0) -> int:
        """Return the total size of the payloads of the messages from ``first`` on, without a copy."""
        before = self._id_at + (LOG_KEY_BYTES if self.flags & STORED else MESSAGE_ID_BYTES)
        items, starts = self.items, self.starts
        begins = [read_long(items, starts[at] + before)[1] for at in range(first, self.count)]
        stops = sum(starts[first + 1 : self.count], len(items)) if begins else 0
        return stops - sum(begins)

    def attributes(self, first: int, stop: int) -> list[Attributed]:
        """Return attributes of the messages ``first`` to ``stop`` (exclusive), with their places.

        Messages without attributes are left out.

        Raises:
            StorageCorrupt: the attributes can't be decoded.
        """
        if not self.attributed:
            return []
        return [each for each in unpack(self.attributed) if first <= each[0] < stop]

    def place_at(self, key: LogKey) -> int:
        """Return the place of the first message with an id at or above ``key``; a stub has none."""
        if key > self.last or self.is_stub:
            return self.count
        if key <= self.first:
            return 0
        return bisect_left(self.starts, key, key=self._id_of)

    def place_after(self, key: LogKey) -> int:
        """Return the place of the first message with an id above ``key``; a stub has none."""
        if key >= self.last or self.is_stub:
            return self.count
        if key < self.first:
            return 0
        return bisect_right(self.starts, key, key=self._id_of)

    def stop_within(self, first: int, stop: int, bytes_max: int) -> int:
        """Return where the messages from ``first`` on exceed about ``bytes_max``; at least ``first + 1``."""
        if len(self.items) - self.starts[first] <= bytes_max:
            return stop
        fitting = bisect_right(self.starts, self.starts[first] + bytes_max) - 1
        return min(max(fitting, first + 1), stop)

    def run(self, first: int, stop: int) -> bytes | memoryview:
        """Return the items of the messages ``first`` to ``stop`` (exclusive), in their stored form."""
        if first == 0 and stop == self.count:
            return self.items
        return self.items[self.starts[first] : self._end(stop - 1)]

    def run_bytes(self, first: int, stop: int) -> int:
        """Return the size of ``run(first, stop)``."""
        if first == 0 and stop == self.count:
            return len(self.items)
        return self._end(stop - 1) - self.starts[first]

    def within(self, after: LogKey, through: LogKey) -> Entry:
        """Return an entry with only the messages in ``(after, through]``. Such an entry is never stored.

        A stub, and an entry without such messages, are returned whole.
        """
        if self.is_stub or (self.first > after and self.last <= through):
            return self
        first, stop = self.place_after(after), self.place_after(through)
        if first >= stop:
            return self
        at = self.starts[first]
        part = Entry(
            self.flags,
            self.epoch,
            self.id(first),
            self.id(stop - 1),
            stop - first,
            [start - at for start in self.starts[first:stop]],
            self.run(first, stop),
            pointer=self.pointer,
            lifetime_ms=self.lifetime_ms,
            number=self.number,
            marks=self.marks,
            attributed=cut(self.attributed, first, stop),
        )
        part.rolled = self.rolled
        return part

    def framed(self, reference: LogKey, first: int, stop: int) -> list[bytes | memoryview]:
        """Return items of a payload log as items of a reply, with the id of their reference, in parts."""
        items, lead = self.items, _MESSAGE_LEAD + reference
        if self.count == 1:
            return [lead, items]
        starts = self.starts[first:stop]
        ends = [*starts[1:], self._end(stop - 1)]
        return [lead + items[start:end] for start, end in zip(starts, ends, strict=True)]

    def is_rolled_back(self, key: LogKey) -> bool:
        """True if a message was rolled back."""
        return any(first <= key <= last for first, last in self.rolled)

    def _payload_at(self, place: int) -> int:
        start = self.starts[place] + self._id_at
        start += LOG_KEY_BYTES if self.flags & STORED else MESSAGE_ID_BYTES
        return read_long(self.items, start)[1]

    def _id_of(self, start: int) -> LogKey:
        start += self._id_at
        return bytes(self.items[start : start + LOG_KEY_BYTES])

    def _end(self, place: int) -> int:
        return self.starts[place + 1] if place + 1 < self.count else len(self.items)

    @property
    def column(self) -> bytes:
        """The column of its cell."""
        return column_of(self.last, self.flags, self.pointer)


def checked(body: bytes) -> bytes:
    """Return a value followed by its checksum."""
    return body + _CHECK.pack(zlib.crc32(body))


def unchecked(value: bytes, name: str) -> bytes:
    """Return the value without its checksum. Raises StorageCorrupt if the checksum is wrong."""
    body = value[: -_CHECK.size]
    if len(value) < _CHECK.size or value[-_CHECK.size :] != _CHECK.pack(zlib.crc32(body)):
        raise StorageCorrupt(f"{name} fails its checksum")
    return body


def encode_rolled(ranges: Sequence[Range]) -> bytes:
    """Encode the ranges of an ``x`` cell."""
    return checked(b"".join(_RANGE.pack(*each) for each in ranges))


def decode_rolled(value: bytes) -> tuple[Range, ...]:
    """Decode an ``x`` cell. Raises StorageCorrupt."""
    body = unchecked(value, "an x cell")
    if len(body) % _RANGE.size:
        raise StorageCorrupt("an x cell is cut off")
    return tuple(_RANGE.iter_unpack(body))


def merged(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Return the same ids with overlapping ranges joined."""
    out: list[Range] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return tuple(out)


class Shared(NamedTuple):
    """The values that all messages of an entry share, beside their epoch."""

    pointer: int | None = None
    lifetime_ms: int | None = None
    number: int | None = None
    is_stored: bool = False
    """True if the messages lie in a payload log."""

    @property
    def flags(self) -> int:
        """The flags of such an entry."""
        return (
            (POINTER if self.pointer is not None else 0)
            | (LIFE if self.lifetime_ms is not None else 0)
            | (REFERENCE if self.number is not None else 0)
            | (STORED if self.is_stored else 0)
        )


PLAIN = Shared()


def entries_of(
    epoch: int,
    ids: Sequence[LogKey],
    payloads: Sequence[bytes],
    shared: Shared = PLAIN,
    attributes: Sequence[bytes] = (),
) -> list[Entry]:
    """Return messages as entries, in order.

    Each entry has at most ENTRY_BYTES_MAX of items and attributes, or one message. ``attributes`` has one
    value for each message; it is empty if no message has any.
    """
    parts, ends = _framed(ids, payloads, is_stored=shared.is_stored)
    bounds = _with_attributes(ends, attributes) if attributes else ends
    count, out, first, at, flags = len(ids), [], 0, 0, shared.flags
    while first < count:
        stop = max(bisect_right(bounds, at + ENTRY_BYTES_MAX, first), first + 1)
        entry = Entry(
            flags,
            epoch,
            ids[first],
            ids[stop - 1],
            stop - first,
            _starts_between(ends, first, stop),
            b"".join(parts[4 * first : 4 * stop]),
            pointer=shared.pointer,
            lifetime_ms=shared.lifetime_ms,
            number=shared.number,
            attributed=pack(attributes[first:stop]),
        )
        out.append(entry)
        first, at = stop, bounds[stop - 1]
    return out


def _with_attributes(ends: Sequence[int], attributes: Sequence[bytes]) -> list[int]:
    """Return where each item would end if each message's attributes came before its item."""
    sizes = [ITEM_BYTES + len(each) if each else 0 for each in attributes]
    return [end + size for end, size in zip(ends, accumulate(sizes), strict=True)]


def _framed(
    ids: Sequence[LogKey], payloads: Sequence[bytes], *, is_stored: bool
) -> tuple[list[bytes], Sequence[int]]:
    """Return the parts of the items, four of each, and where each item ends.

    Payloads often have one size: the first branch is the fast path for them.
    """
    lead, short = (b"", SHORT_LONGS) if is_stored else (_MESSAGE_LEAD, _INLINE_TAILS)
    count, zero, fixed = len(ids), short[0][:-1], len(lead) + LOG_KEY_BYTES
    sizes = list(map(len, payloads))
    size = sizes[0]
    ends: Sequence[int]
    if sizes.count(size) == count:
        tail = short[size] if size < _SHORT else zero + encode_long(size)
        tails = [tail] * count
        item = fixed + len(tail) + size
        ends = range(item, item * count + 1, item)
    else:
        tails = [short[size] if size < _SHORT else zero + encode_long(size) for size in sizes]
        ends = list(
            accumulate([fixed + len(tail) + size for tail, size in zip(tails, sizes, strict=True)])
        )
    parts = [lead] * (4 * count)
    parts[1::4], parts[2::4], parts[3::4] = ids, tails, payloads
    return parts, ends


def _starts_between(ends: Sequence[int], first: int, stop: int) -> Sequence[int]:
    """Return where the items ``first`` to ``stop`` (exclusive) begin in an entry of their own."""
    if isinstance(ends, range):
        return range(0, ends.step * (stop - first), ends.step)
    at = ends[first - 1] if first else 0
    return [0, *(end - at for end in ends[first : stop - 1])]


def stub_of(entry: Entry, digest: bytes = b"") -> Entry:
    """Return the stub of an entry: it replaces the entry when the lifetime of its messages has ended.

    ``digest``: the hash of the entry's content, in a log with a hash chain.
    """
    return Entry(
        entry.flags | STUB,
        entry.epoch,
        entry.first,
        entry.last,
        entry.count,
        (),
        b"",
        pointer=entry.pointer,
        lifetime_ms=entry.lifetime_ms,
        number=entry.number,
        marks=entry.marks,
        digest=digest,
    )


def encode(entry: Entry) -> bytes:
    """Encode an entry: the value of its cell."""
    form, flags = FORMAT, entry.flags
    if entry.attributed:
        form, flags = FORMAT_ATTRIBUTED, flags | _ATTRIBUTED
    elif entry.digest:
        form = FORMAT_STUB_HASHED
    parts = [_FIXED.pack(form, flags, entry.epoch, entry.last, entry.count)]
    parts += [
        _NUMBER.pack(number)
        for number in (entry.pointer, entry.lifetime_ms, entry.number)
        if number is not None
    ]
    parts.append(_COUNT.pack(len(entry.marks)))
    parts += [_MARK.pack(*mark) for mark in entry.marks]
    if entry.attributed:
        parts += (_SIZE.pack(len(entry.attributed)), entry.attributed)
    parts.append(entry.first + entry.digest if entry.is_stub else _packed(entry.starts[1:]))
    lead = b"".join(parts)
    return b"".join((lead, entry.items, _CRC.pack(zlib.crc32(entry.items, zlib.crc32(lead)))))


def _packed(starts: Sequence[int]) -> bytes:
    offsets = array("H", starts)
    if _FLIPPED:
        offsets.byteswap()
    return offsets.tobytes()


def unpacked_starts(value: bytes) -> Sequence[int]:
    """Return the offsets of items, from their stored bytes."""
    starts = array("H")
    starts.frombytes(value)
    if _FLIPPED:
        starts.byteswap()
    return starts


def _part(value: bytes, at: int, stop: int) -> bytes | memoryview:
    """Return a part of a value. A large one is a view: copying it would block the loop for too long."""
    return value[at:stop] if stop - at < VIEWED_BYTES_MIN else memoryview(value)[at:stop]


def decode(value: bytes, *, is_checked: bool = False) -> Entry:
    """Decode an entry. ``is_checked``: the table has verified its checksum. Raises StorageCorrupt."""
    body_end = len(value) - _CRC.size
    if body_end < _FIXED.size + _COUNT.size:
        raise StorageCorrupt("an entry is cut off")
    if not is_checked and zlib.crc32(value) != WHOLE:
        raise StorageCorrupt("an entry fails its checksum")
    form, flags, epoch, last, count = _FIXED.unpack_from(value)
    is_hashed_stub = form == FORMAT_STUB_HASHED and flags & STUB and not flags & _ATTRIBUTED
    if form != (FORMAT_ATTRIBUTED if flags & _ATTRIBUTED else FORMAT) and not is_hashed_stub:
        raise StorageCorrupt(
            f"an entry has format {form} and flags {flags}; "
            f"this release reads {FORMAT}, {FORMAT_ATTRIBUTED} with attributes, and stubs of {FORMAT_STUB_HASHED}"
        )
    at = _FIXED.size
    numbers: list[int | None] = [None, None, None]
    if flags & JUDGED:
        for place, flag in enumerate((POINTER, LIFE, REFERENCE)):
            if flags & flag:
                numbers[place] = _NUMBER.unpack_from(value, at)[0]
                at += _NUMBER.size
    (mark_count,) = _COUNT.unpack_from(value, at)
    at += _COUNT.size
    marks: Sequence[Mark] = ()
    if mark_count:
        marks = tuple(
            Mark(*_MARK.unpack_from(value, at + i * _MARK.size)) for i in range(mark_count)
        )
        at += mark_count * _MARK.size
    attributed = b""
    if flags & _ATTRIBUTED:
        at += _SIZE.size
        (size,) = _SIZE.unpack_from(value, at - _SIZE.size)
        attributed, at = value[at : at + size], at + size
    starts, items_at = b"", at
    if not flags & STUB:
        items_at += 2 * (count - 1)
        starts = _FIRST_START + value[at:items_at]
        at = items_at if flags & STORED else items_at + 1
    return Entry(
        flags & ~_ATTRIBUTED,
        epoch,
        value[at : at + LOG_KEY_BYTES],
        last,
        count,
        starts,
        b"" if flags & STUB else _part(value, items_at, body_end),
        pointer=numbers[0],
        lifetime_ms=numbers[1],
        number=numbers[2],
        marks=marks,
        attributed=attributed,
        digest=value[at + LOG_KEY_BYTES : body_end] if is_hashed_stub else b"",
    )

"""Repairing the end of LevelDB's log and manifest after a power cut.

File systems write pages back in any order. So after a power cut the unsynced last bytes of a file may be anything:
zero pages, old data, or a hole before intact bytes. LevelDB treats that as damage and refuses to open, although
all synced data are intact.

One thread writes, and syncs each write before the next. So at most the *last* write of the newest log is unsynced,
and no caller has an answer for it. The same holds for the last edit of the manifest, which LevelDB syncs before it
relies on it. Both files have one format (log_format.md of LevelDB)::

    blocks of 32 KiB, of records   checksum (4) | length (2) | kind (1) | data
    a write is one FULL record, or FIRST, MIDDLE …, LAST; a block's end below 7 bytes is zeros
    the data of a write in a log   sequence number (8) | count (4) | …

``mend`` walks the headers, and verifies the checksums of only the last write (of all writes, if those are wrong).
If the file does not end with a complete and sound write, ``mend`` cuts it after the last sound write. If a write
begins behind the damage, the damaged write was synced, so ``mend`` raises ``Damaged`` instead. LevelDB finds damage
elsewhere, because it verifies all checksums while it opens.

After a cut, the manifest must name a log that still exists: LevelDB removes a log only after it has synced the
edit that no longer needs the log.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

_BLOCK = 32 << 10
_HEADER = struct.Struct("<IHB")
_MASK_DELTA = 0xA282EAD8
_BATCH = struct.Struct("<QI")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_NO_KIND, _NO_LENGTH = 9, 0xFFFF
"""LevelDB passes a record of no known kind, and the rest of a block after a length that does not fit."""
_LOG_NUMBER, _REMOVED_TABLE, _TABLE = 2, 6, 7
_BEGINNING = re.compile(rb"[\x01\x02]")
_BEGINNING_IN_LOG = re.compile(rb"[\x01\x02](?=[\s\S]{6}\x00\x00)")
"""The kind of a record that begins a write, followed by the high bytes of its sequence number."""

Bytes = bytes | bytearray | mmap.mmap


class Damaged(Exception):
    """A file has damage that LevelDB can't have left, even after a power cut."""


class TailWrite(NamedTuple):
    """One complete write: the offsets of its records' headers, and where it ends."""

    records: tuple[int, ...]
    end: int


def mend(database: Path, *, may_cut: bool) -> list[str]:
    """Cut unsynced ends off the files of a closed database; return the names of the files that were cut.

    ``may_cut`` is False after a clean close, when each file is complete.

    Raises:
        Damaged: there is damage that a power cut can't cause. Nothing was changed.
    """
    cuts: list[tuple[Path, int]] = []
    manifest, log = _manifest(database), _newest_log(database)
    for path, is_log in ((manifest, False), (log, True)):
        if path is not None and (end := _end_to_cut(path, is_log=is_log)) is not None:
            if not may_cut:
                raise Damaged(
                    f"{path.name} is damaged at byte {end}, although it was closed cleanly"
                )
            cuts.append((path, end))
    for path, end in cuts:
        with path.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())
    return [path.name for path, _ in cuts]


def damage_of(log: Path) -> str | None:
    """Return what is wrong with a log; None: each of its writes may be sound."""
    try:
        end = _end_to_cut(log, is_log=True)
    except Damaged as error:
        return str(error)
    return None if end is None else f"{log.name} is damaged at byte {end}"


def drop_damaged_records(log: Path) -> None:
    """Change a log so that LevelDB's repair passes its damaged records: it verifies no checksum of a log."""
    data, at = bytearray(log.read_bytes()), 0
    while at + _HEADER.size <= len(data):
        room = _BLOCK - at % _BLOCK
        if room < _HEADER.size:
            at += room
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        if at + _HEADER.size + length > len(data) or _HEADER.size + length > room:
            _HEADER.pack_into(data, at, 0, _NO_LENGTH, kind)
            at += room
        elif not length and not kind:
            at += room  # LevelDB, too, passes the rest of a block that begins with zeros.
        else:
            if not _has_checksum(data, at):
                _HEADER.pack_into(data, at, 0, length, _NO_KIND)
            at += _HEADER.size + length
    log.write_bytes(data)


def current_of(database: Path) -> str:
    """Return the text of CURRENT, which names the manifest. Raises OSError; ValueError: it is no file of text."""
    path = database / "CURRENT"
    if path.exists() and not path.is_file():  # To read a pipe is to wait for a writer.
        raise ValueError("it is no file")
    return path.read_text()


def _manifest(database: Path) -> Path | None:
    try:
        name = current_of(database).strip()
    except (OSError, ValueError):
        return None  # LevelDB makes a new database, or reports the error.
    path = database / name
    return path if name.startswith("MANIFEST-") and path.is_file() else None


def _newest_log(database: Path) -> Path | None:
    """Return the log with the last write. A log that was just begun is empty, and does not count."""
    logs = sorted(
        (path for path in database.glob("*.log") if path.stem.isdigit() and path.stat().st_size),
        key=lambda path: int(path.stem),
    )
    return logs[-1] if logs else None


def _end_to_cut(path: Path, *, is_log: bool) -> int | None:
    """Return where to cut a file; None: its end is sound. Raises Damaged."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                end = sound_end(data, is_log=is_log)
            except Damaged as error:
                raise Damaged(f"{path.name}: {error}") from None
            if end == len(data):
                return None
            if not is_log:
                _check_log_of(path, data[:end])
    return end


def _check_log_of(manifest: Path, edits: bytes) -> None:
    number = log_number(edits)
    if number is None or (number and not (manifest.parent / f"{number:06d}.log").exists()):
        raise Damaged(f"{manifest.name} is damaged at byte {len(edits)}, and log {number} is gone")


def sound_end(data: Bytes, *, is_log: bool) -> int:
    """Return where the last sound write of a log or a manifest ends: its size if there is no damage.

    Raises:
        Damaged: a write begins behind the damage.
    """
    last: TailWrite | None = None
    for write in writes(data):
        last = write
    if last is not None and not is_sound(data, last):
        # The headers behind some place are random data, so check every write.
        last = None
        for write in writes(data):
            if not is_sound(data, write):
                break
            last = write
    end = 0 if last is None else last.end
    if end < len(data):
        sequence = _sequence_after(data, last) if is_log else None
        found = _beginning(data, _next_header(end), sequence, is_log=is_log)
        if found is not None:
            raise Damaged(f"bytes {end} to {found} are damaged, and writes follow")
    return end


def writes(data: Bytes) -> Iterator[TailWrite]:
    """Yield the complete writes by their headers, up to the first impossible header."""
    size, at = len(data), 0
    unpack = _HEADER.unpack_from
    records: list[int] = []
    while True:
        room = _BLOCK - at % _BLOCK
        if room < _HEADER.size:
            at += room
            room = _BLOCK
        if at + _HEADER.size > size:
            return
        _, length, kind = unpack(data, at)
        end = at + _HEADER.size + length
        if length > room - _HEADER.size or end > size:
            return
        if kind in {_FULL, _FIRST} if records else kind in {_MIDDLE, _LAST}:
            return
        if kind == _FULL:
            yield TailWrite((at,), end)
        elif kind in {_FIRST, _MIDDLE}:
            records.append(at)
        elif kind == _LAST:
            yield TailWrite((*records, at), end)
            records = []
        else:
            return
        at = end


def is_sound(data: Bytes, write: TailWrite) -> bool:
    """True if all records of a write have the right checksums."""
    return all(_has_checksum(data, at) for at in write.records)


def _has_checksum(data: Bytes, at: int) -> bool:
    expected, length, _ = _HEADER.unpack_from(data, at)
    body = bytes(data[at + _HEADER.size - 1 : at + _HEADER.size + length])
    return bool(masked_crc32c(body) == expected)


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C in the masked form that LevelDB stores."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _next_header(at: int) -> int:
    room = _BLOCK - at % _BLOCK
    return at + room if room < _HEADER.size else at


def _sequence_after(data: Bytes, write: TailWrite | None) -> int | None:
    """Return the sequence number of the next write, None if it is not known."""
    if write is None:
        return None
    sequence, count = _BATCH.unpack_from(_contents(data, write))
    return int(sequence + count)


def _beginning(data: Bytes, behind: int, sequence: int | None, *, is_log: bool) -> int | None:
    """Return the offset of a sound record behind ``behind`` that begins a write; None: there is none.

    The record at ``behind`` itself belongs to the damaged write. If a block's headers are lost, its records may
    begin anywhere. The sequence number rules out most random matches, which saves most checksums.
    """
    pattern = _BEGINNING_IN_LOG if is_log else _BEGINNING
    for found in pattern.finditer(data, behind + _HEADER.size):
        at = found.start() - _HEADER.size + 1
        _, length, _ = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if end > len(data) or at % _BLOCK + _HEADER.size + length > _BLOCK:
            continue
        if is_log and not _may_follow(data, at, length, behind, sequence):
            continue
        if _has_checksum(data, at):
            return at
    return _beginning_at_a_blocks_end(data, behind) if is_log else None


def _may_follow(data: Bytes, at: int, length: int, behind: int, sequence: int | None) -> bool:
    """True if the record's sequence number can follow the write that begins at ``behind``."""
    if length < _BATCH.size:
        return False
    number, _ = _BATCH.unpack_from(data, at + _HEADER.size)
    # Each operation of the writes between has at least two bytes, and a number of its own.
    return sequence is None or bool(sequence < number < sequence + (at - behind))


def _beginning_at_a_blocks_end(data: Bytes, behind: int) -> int | None:
    """Return where a sound record begins a write whose sequence number did not fit into the block."""
    for block_end in range(behind - behind % _BLOCK + _BLOCK, len(data) + 1, _BLOCK):
        for length in range(_BATCH.size):
            at = block_end - _HEADER.size - length
            is_first = at > behind and _HEADER.unpack_from(data, at)[1:] == (length, _FIRST)
            if is_first and _has_checksum(data, at):
                return at
    return None


def _contents(data: Bytes, write: TailWrite) -> bytes:
    parts = []
    for at in write.records:
        _, length, _ = _HEADER.unpack_from(data, at)
        parts.append(bytes(data[at + _HEADER.size : at + _HEADER.size + length]))
    return b"".join(parts)


def log_number(edits: Bytes) -> int | None:
    """Return the number of the oldest log that a manifest still needs.

    It is 0 if there is no log yet, and None if the manifest does not name one.
    """
    number = None
    for tag, numbers in _fields(edits):
        if tag == _LOG_NUMBER:
            (number,) = numbers
    return number


def table_numbers(edits: Bytes) -> set[int]:
    """Return the numbers of all tables that a manifest names, including tables removed since."""
    return {numbers[1] for tag, numbers in _fields(edits) if tag == _TABLE}


def live_tables(edits: Bytes) -> set[int]:
    """Return the numbers of the tables that the last edit of a manifest leaves. Raises Damaged."""
    live = set[int]()
    for tag, numbers in _fields(edits):
        if tag == _TABLE:
            live.add(numbers[1])
        elif (
            tag == _REMOVED_TABLE
        ):  # A table that moves to another level is removed, and added behind that.
            live.discard(numbers[1])
    return live


def _fields(edits: Bytes) -> Iterator[tuple[int, list[int]]]:
    """Yield the tag and the numbers of each field of each edit (version_edit.cc of LevelDB).

    Raises Damaged if LevelDB does not write such a field.
    """
    for write in writes(edits):
        edit, at = _contents(edits, write), 0
        try:
            while at < len(edit):
                tag, at = _varint(edit, at)
                count, strings = _FIELDS[tag]
                numbers = []
                for _ in range(count):
                    number, at = _varint(edit, at)
                    numbers.append(number)
                for _ in range(strings):
                    length, at = _varint(edit, at)
                    at += length
                yield tag, numbers
        except (IndexError, KeyError) as error:
            raise Damaged("an edit can't be read") from error


_FIELDS = {
    1: (0, 1),  # Comparator.
    _LOG_NUMBER: (1, 0),
    3: (1, 0),  # Next file.
    4: (1, 0),  # Last sequence number.
    5: (1, 1),  # Where a level's merging goes on.
    6: (2, 0),  # A removed file: level, number.
    _TABLE: (3, 2),  # An added file: level, number, size; its first and last key.
    9: (1, 0),  # The previous log.
}
"""How many numbers and strings follow each tag of an edit."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number stored with seven bits in each byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7

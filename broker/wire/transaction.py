"""A snapshot as bytes: Tephra's TTransaction in Thrift's binary protocol, a bare struct.

::

    field   type (1 byte) | number (int16) | value          in any order; 00 ends the struct
    i64     8 bytes, big-endian                              i32 and enums: 4 bytes
    list    type of the items | count (int32) | items

    1 i64   transactionId          4 list  inProgress          7 i64   writePointer
    2 i64   readPointer            5 i64   firstShort          8 list  checkpointWritePointers
    3 list  invalids               6 i32   type (1 short)      9 i32   visibilityLevel

The reader treats a missing field as the original does: a list is empty, a number is 0, the level is SNAPSHOT, and any
type other than *short* is long. It skips unknown fields, and known ones of another type, up to a number of parts: a
list of empty structs takes one byte for each, and is slower to skip than any other body is to read. It ignores bytes
after the struct. It uses no library, because the two that know the format load a Thrift stack into every client and
trust the counts that they read.

A snapshot may name a million transactions. As an array they take 8 MB; as a list of numbers they would take 40 MB. They
nearly always arrive in order. If not, the reader sorts runs of them and merges these: one call that sorts all would let
no other thread run for half a second.

A JSON body has a snapshot in any of three forms::

    "0a0001…"                              the bytes above, in hex
    "CgAB…"                                the same bytes, in base64
    {"transaction_id": "5", "read_pointer": "3", "in_progress": ["4"], …}      the parts, by name

The bytes of a snapshot begin with the type of a field, so their base64 is never all hex digits. Of the members of the
object, ``transaction_id`` and ``read_pointer`` are required; ``visibility`` is the name of a level.
"""

from __future__ import annotations

import base64
import heapq
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import islice, pairwise
from operator import le
from typing import Any, Final

from broker.errors import BadRequest
from broker.model import Snapshot
from broker.wire import Take, free
from broker.wire.jsontext import parse, read_long
from broker.wire.thriftskip import FIELD, FIXED_BYTES, I32, I64, LIST, LIST_HEAD, STOP, Skipper

POINTERS_MAX: Final = 1_000_000
"""The maximum number of pointers in all lists of a snapshot; far more than a transaction service keeps."""
PER_ITEM: Final = 8
"""The number of pointers that count as one item, since they take as much memory."""
_RUN: Final = 8_192

_FIELD_TYPES = {1: I64, 2: I64, 3: LIST, 4: LIST, 5: I64, 6: I32, 7: I64, 8: LIST, 9: I32}
_SHORT, _LONG = 1, 2

_FIELD_I64 = struct.Struct(">bhq")
_FIELD_I32 = struct.Struct(">bhi")
_FIELD_LIST = struct.Struct(">bhbi")

_EMPTY: Final = array("q")
_LEVELS: Final = {level.value: level for level in Snapshot.Visibility}
_MISSING: Final = {number: _EMPTY if kind == LIST else 0 for number, kind in _FIELD_TYPES.items()}


def encode_transaction(snapshot: Snapshot) -> bytes:
    """Return a snapshot in the form that the Java codec writes: all nine fields, by number."""
    return b"".join(
        (
            _FIELD_I64.pack(I64, 1, snapshot.transaction_id),
            _FIELD_I64.pack(I64, 2, snapshot.read_pointer),
            _encode_list(3, snapshot.invalids),
            _encode_list(4, snapshot.in_progress),
            _FIELD_I64.pack(I64, 5, snapshot.first_short_in_progress),
            _FIELD_I32.pack(I32, 6, _LONG if snapshot.long else _SHORT),
            _FIELD_I64.pack(I64, 7, snapshot.write_pointer),
            _encode_list(8, snapshot.checkpoint_pointers),
            _FIELD_I32.pack(I32, 9, snapshot.visibility),
            bytes((STOP,)),
        )
    )


def _encode_list(number: int, listed: Sequence[int]) -> bytes:
    head = _FIELD_LIST.pack(LIST, number, I64, len(listed))
    numbers = array("q", listed)
    if sys.byteorder == "little":
        numbers.byteswap()
    return head + numbers.tobytes()


def decode_transaction(body: bytes, *, take: Take = free) -> Snapshot:
    """Read a snapshot. It calls ``take`` for its pointers.

    Raises BadRequest, as Skipper.past and for more than POINTERS_MAX pointers.
    """
    try:
        fields = _fields(body, take)
    except (IndexError, struct.error):
        raise BadRequest("transaction: its bytes end in the middle of a field.") from None
    return Snapshot(
        transaction_id=fields[1],
        read_pointer=fields[2],
        invalids=fields[3],
        in_progress=fields[4],
        first_short_in_progress=fields[5],
        long=fields[6] != _SHORT,
        write_pointer=fields[7],
        checkpoint_pointers=fields[8],
        visibility=_LEVELS.get(fields[9], Snapshot.Visibility.SNAPSHOT),
    )


def _fields(body: bytes, take: Take) -> dict[int, Any]:
    """Return the known fields. Raises BadRequest; IndexError and struct.error if the body ends too early."""
    found: dict[int, Any] = dict(_MISSING)
    skipper, pointers, at = Skipper(body, "transaction"), 0, 0
    while body[at] != STOP:
        kind, number = FIELD.unpack_from(body, at)
        at += FIELD.size
        end = skipper.past(at, kind)
        if end > len(body):
            raise IndexError
        is_known = _FIELD_TYPES.get(number) == kind
        if is_known and kind == LIST:
            of, count = LIST_HEAD.unpack_from(body, at)
            if count and of != I64:
                raise BadRequest("transaction: a list of pointers contains values of another type.")
            pointers += count
            if pointers > POINTERS_MAX:
                raise BadRequest(
                    f"transaction: it has {pointers} pointers; {POINTERS_MAX} are allowed in all lists together."
                )
            take(pointer_items(count))
            found[number] = _of_bytes(body, at + LIST_HEAD.size, count)
        elif is_known:
            found[number] = int.from_bytes(body[at:end], "big", signed=True)
        at = end
    return found


# --- Lists of pointers: ascending, eight bytes each -----------------------------------------------


def pointer_items(count: int) -> int:
    """Return the number of items that ``count`` pointers count as."""
    return -(-count // PER_ITEM)


def _of_bytes(data: bytes, start: int, count: int) -> array[int]:
    """Return ``count`` big-endian numbers from ``data``, beginning at ``start``, in ascending order."""
    numbers = array("q", data[start : start + count * FIXED_BYTES[I64]])
    if sys.byteorder == "little":
        numbers.byteswap()
    return _ascending(numbers)


def _ascending(numbers: array[int]) -> array[int]:
    """Return numbers in ascending order."""
    runs = [numbers[at : at + _RUN] for at in range(0, len(numbers), _RUN)]
    if all(all(map(le, run, islice(run, 1, None))) for run in runs) and all(
        one[-1] <= following[0] for one, following in pairwise(runs)
    ):
        return numbers
    return array("q", heapq.merge(*[sorted(run) for run in runs]))


# --- In a JSON body -------------------------------------------------------------------------------

_NUMBERS = ("transaction_id", "read_pointer", "write_pointer", "first_short_in_progress")
_LISTS = ("invalids", "in_progress", "checkpoint_pointers")
_NAMES = (*_NUMBERS, *_LISTS, "long", "visibility")


def decode_body(body: bytes, *, take: Take = free) -> Snapshot:
    """Return the snapshot of a request's body that has no other part. Raises BadRequest, BodyTooLarge."""
    value = parse(body)
    if not isinstance(value, dict) or set(value) != {"snapshot"}:
        raise BadRequest('The body must be a JSON object with "snapshot" and nothing else.')
    return decode_snapshot(value["snapshot"], take=take)


def decode_snapshot(value: object, *, take: Take = free) -> Snapshot:
    """Return the snapshot in a parsed JSON value. It calls ``take`` for its pointers. Raises BadRequest."""
    if isinstance(value, str):
        return decode_transaction(_bytes_of(value), take=take)
    if isinstance(value, dict):
        return _from_parts(value, take)
    raise BadRequest("snapshot: hex, base64 or an object is needed.")


def encode_snapshot(snapshot: Snapshot) -> dict[str, object]:
    """Return a snapshot's members by name. Its numbers are strings."""
    return {
        **{name: str(getattr(snapshot, name)) for name in _NUMBERS},
        **{name: [str(each) for each in getattr(snapshot, name)] for name in _LISTS},
        "long": snapshot.long,
        "visibility": snapshot.visibility.name,
    }


def _bytes_of(text: str) -> bytes:
    for decode in (bytes.fromhex, _base64):
        try:
            return decode(text)
        except ValueError:
            continue
    raise BadRequest("snapshot: this string is neither hex nor base64.")


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _from_parts(parts: dict[str, Any], take: Take) -> Snapshot:
    for name in parts:
        if name not in _NAMES:
            raise BadRequest(f"snapshot: {name!a:.80} is none of {', '.join(_NAMES)}.")
    for name in _NUMBERS[:2]:
        if name not in parts:
            raise BadRequest(f"snapshot: {name} is missing.")
    known: dict[str, Any] = {
        name: read_long(f"snapshot: {name}", parts[name]) for name in _NUMBERS if name in parts
    }
    for name in _LISTS:
        if name in parts:
            if not isinstance(parts[name], list):
                raise BadRequest(f"snapshot: {name} must be a list of numbers.")
            take(pointer_items(len(parts[name])))
            numbers = [read_long(f"snapshot: {name}", each) for each in parts[name]]
            known[name] = _ascending(array("q", numbers))
    return Snapshot(**known, long=_flag(parts), visibility=_level(parts))


def _flag(parts: dict[str, Any]) -> bool:
    long = parts.get("long", False)
    if not isinstance(long, bool):
        raise BadRequest("snapshot: long must be true or false.")
    return long


def _level(parts: dict[str, Any]) -> Snapshot.Visibility:
    levels = {level.name: level for level in Snapshot.Visibility}
    level = parts.get("visibility", Snapshot.Visibility.SNAPSHOT.name)
    if not isinstance(level, str) or level not in levels:
        raise BadRequest(f"snapshot: visibility is one of {', '.join(levels)}.")
    return levels[level]

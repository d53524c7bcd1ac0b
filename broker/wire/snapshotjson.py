"""A snapshot in a JSON body, in any of three forms.

::

    "0a0001…"                              the bytes of `transaction`, in hex
    "CgAB…"                                the same bytes, in base64
    {"transaction_id": "5", "read_pointer": "3", "in_progress": ["4"], …}      the parts, by name

The bytes of a snapshot begin with the type of a field, so their base64 is never all hex digits. Of the members of the
object, ``transaction_id`` and ``read_pointer`` are required; ``visibility`` is the name of a level.
"""

from __future__ import annotations

import base64
from array import array
from typing import Any

from broker.errors import BadRequest
from broker.model import Snapshot
from broker.wire import Take, free, json_numbers, pointers
from broker.wire.jsontext import parse
from broker.wire.transaction import decode_transaction

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
        return decode_transaction(_bytes(value), take=take)
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


def _bytes(text: str) -> bytes:
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
        name: json_numbers.read_long(f"snapshot: {name}", parts[name])
        for name in _NUMBERS
        if name in parts
    }
    for name in _LISTS:
        if name in parts:
            if not isinstance(parts[name], list):
                raise BadRequest(f"snapshot: {name} must be a list of numbers.")
            take(pointers.items(len(parts[name])))
            numbers = [json_numbers.read_long(f"snapshot: {name}", each) for each in parts[name]]
            known[name] = pointers.ascending(array("q", numbers))
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

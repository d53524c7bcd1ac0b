"""Make request bodies that are almost valid, to find errors of decoders.

A decoder refuses random bytes at the first byte. So there are two kinds of mutant::

    shallow   a valid body of some request, damaged at random places: bits, bytes, slices, hostile
              numbers, two bodies spliced
    deep      a body built field by field: all fields except the last are odd but legal; the last is legal,
              odd or broken; a decoder reaches the last field

Every mutant names its request, so that the same mutants go to decoders in this process and to a broker over HTTP.
The same seed gives the same mutants.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple

from broker.model import Snapshot
from broker.wire.transaction import encode_transaction
from broker.wire.varint import encode_bytes, encode_long

AVRO: Final = "avro/binary"
JSON: Final = "application/json"
AVRO_JSON: Final = "avro/json"


class Target(NamedTuple):
    """The request of a body: the last part of its path, and its content type."""

    action: str
    content_type: str


class Mutant(NamedTuple):
    """A body; ``deep`` if decoders reach its last field."""

    target: Target
    body: bytes
    deep: bool


PUBLISH: Final = Target("publish", AVRO)
ROLLBACK: Final = Target("rollback", AVRO)
POLL: Final = Target("poll", AVRO)
PUBLISH_AVRO_JSON: Final = Target("publish", AVRO_JSON)
ROLLBACK_AVRO_JSON: Final = Target("rollback", AVRO_JSON)
POLL_AVRO_JSON: Final = Target("poll", AVRO_JSON)
PUBLISH_JSON: Final = Target("publish", JSON)
ROLLBACK_JSON: Final = Target("rollback", JSON)
POLL_JSON: Final = Target("poll", JSON)
PROPERTIES: Final = Target("properties", JSON)

LAST_FIELDS: Final = {
    PUBLISH: "messages: ",
    ROLLBACK: "endSequenceId: ",
    POLL: "transaction: ",
    PUBLISH_AVRO_JSON: "messages: ",
    ROLLBACK_AVRO_JSON: "endSequenceId: ",
    POLL_AVRO_JSON: "transaction: ",
    PUBLISH_JSON: "messages",
    ROLLBACK_JSON: "last_id: ",
    POLL_JSON: "snapshot: ",
    PROPERTIES: "The ttl property ",
}
"""The beginning of errors about the field that a decoder reads last."""

LEGAL_LONGS: Final = (0, 1, 63, 64, 8191, 8192, 1_480_000_000_000, 1 << 62, (1 << 63) - 1)
ODD_LONGS: Final = (*LEGAL_LONGS, -1, -2, -64, -65, -(1 << 31), -(1 << 62), -(1 << 63))
LEGAL_INTS: Final = (1, 2, 63, 64, 1000, 65535, (1 << 31) - 1)
ODD_INTS: Final = (*LEGAL_INTS, 0, -1, -65536, 65536, -(1 << 31), 1 << 31, 1 << 40)
LEGAL_SEQS: Final = (0, 1, 255, 256, 65535)
HOSTILE: Final = (
    b"\xff" * 9 + b"\x01",  # The least long.
    b"\xfe" + b"\xff" * 8 + b"\x01",  # The greatest.
    b"\x80" * 12,  # A number that never ends.
    b"\xff" * 9 + b"\x7f",  # More than 64 bits.
    b"\x80\x00",  # Zero, in more bytes than it needs.
    b"\x01",
    b"\x00",
    encode_long(1 << 60),
    encode_long(-(1 << 60)),
    b"[" * 40,
    b'{"a":' * 40,
    b"1e999",
    b"NaN",
    b"\xed\xa0\x80",
    b'"\\ud800"',
)

_PAYLOADS: Final = (
    b"",
    b"a",
    b"\x00",
    b"\xff" * 63,
    b"x" * 64,
    b"y" * 300,
    b'{"k": [1]}',
    b"z" * 9000,
)


def mutants(seed: int, count: int, *, deep_share: float = 0.4) -> Iterator[Mutant]:
    """Yield ``count`` mutants, ``deep_share`` of them deep, for all targets equally."""
    random = Random(seed)
    targets = tuple(_DEEP)
    for _ in range(count):
        target = random.choice(targets)
        deep = random.random() < deep_share
        body = _DEEP[target](random)
        yield Mutant(target, body if deep else damage(random, body), deep)


def damage(random: Random, body: bytes) -> bytes:
    """Return a body with one to four random damages."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        body = random.choice(_DAMAGES)(random, body)
    return body


def _slice(random: Random, body: bytes) -> tuple[int, int]:
    start = random.randint(0, len(body))
    return start, min(len(body), start + random.choice((1, 1, 2, 4, 16, 200)))


def _flip(random: Random, body: bytes) -> bytes:
    if not body:
        return b"\x01"
    at = random.randrange(len(body))
    return body[:at] + bytes((body[at] ^ 1 << random.randrange(8),)) + body[at + 1 :]


def _overwrite(random: Random, body: bytes) -> bytes:
    start, _ = _slice(random, body)
    hostile = random.choice(HOSTILE)
    return body[:start] + hostile + body[start + len(hostile) :]


def _insert(random: Random, body: bytes) -> bytes:
    start, _ = _slice(random, body)
    return body[:start] + random.choice((random.randbytes(3), *HOSTILE)) + body[start:]


def _cut_out(random: Random, body: bytes) -> bytes:
    start, stop = _slice(random, body)
    return body[:start] + body[stop:]


def _repeat(random: Random, body: bytes) -> bytes:
    start, stop = _slice(random, body)
    return body[:stop] + body[start:stop] * random.choice((1, 2, 20)) + body[stop:]


def _truncate(random: Random, body: bytes) -> bytes:
    return body[: random.randint(0, len(body))]


def _splice(random: Random, body: bytes) -> bytes:
    other = random.choice(tuple(_DEEP.values()))(random)
    return body[: random.randint(0, len(body))] + other[random.randint(0, len(other)) :]


def _noise(random: Random, body: bytes) -> bytes:
    return random.randbytes(min(len(body), random.randint(0, 40)))


_DAMAGES = (_flip, _flip, _overwrite, _insert, _cut_out, _repeat, _truncate, _splice, _noise)


def _number(random: Random, value: int) -> bytes:
    """Encode a number, sometimes in more bytes than it needs."""
    encoded = encode_long(value)
    if len(encoded) < 4 and random.random() < 0.1:
        return encoded[:-1] + bytes((encoded[-1] | 0x80,)) + b"\x00"
    return encoded


def _pointer(random: Random) -> bytes:
    return b"\x02" if random.random() < 0.4 else b"\x00" + _number(random, _legal_pointer(random))


def _legal_pointer(random: Random) -> int:
    return random.choice((*LEGAL_LONGS, random.getrandbits(60)))


def _payload(random: Random) -> bytes:
    return random.choice((*_PAYLOADS, random.randbytes(random.randint(0, 40))))


def _publish(random: Random) -> bytes:
    """Return a publish with array blocks of every form; its end may be broken."""
    parts = [_pointer(random)]
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        items = [
            _number(random, len(payload)) + payload
            for payload in (_payload(random) for _ in range(random.choice((1, 1, 2, 3, 10))))
        ]
        if random.random() < 0.3:
            size = random.choice((sum(map(len, items)), *ODD_LONGS))
            parts += [_number(random, -len(items)), encode_long(size)]
        else:
            parts.append(_number(random, len(items)))
        parts += items
    parts.append(random.choice((b"\x00", b"\x00", b"\x00", b"\x00more", b"", *HOSTILE)))
    return b"".join(parts)


def _rollback(random: Random) -> bytes:
    parts = [b"\x00", _number(random, _legal_pointer(random))]
    for seq in (random.choice(LEGAL_SEQS), random.choice((*LEGAL_SEQS, *ODD_INTS))):
        parts += [_number(random, random.choice(LEGAL_LONGS)), _number(random, seq)]
    return b"".join(parts)


def _poll(random: Random) -> bytes:
    start = random.choice(
        (
            b"\x04",
            b"\x02" + _number(random, random.choice(LEGAL_LONGS)),
            b"\x00" + encode_bytes(random.randbytes(random.choice((20, 20, 21, 64)))),
        )
    )
    limit = random.choice((b"\x02", b"\x00" + _number(random, random.choice(LEGAL_INTS))))
    return b"".join((start, random.choice((b"\x00", b"\x01")), limit, _transaction_field(random)))


def _transaction_field(random: Random) -> bytes:
    transaction = _transaction(random)
    return random.choice(
        (
            b"\x02",
            b"\x00" + encode_bytes(transaction),
            b"\x00" + encode_bytes(damage(random, transaction)),
            b"\x00" + encode_long(random.choice(ODD_LONGS)) + transaction,
            random.choice(HOSTILE),
        )
    )


def _transaction(random: Random) -> bytes:
    """Return a snapshot's bytes, sometimes after fields of an unknown version."""
    pointers = [random.choice(ODD_LONGS) for _ in range(random.randint(0, 3))]
    known = encode_transaction(
        Snapshot(
            transaction_id=random.choice(ODD_LONGS),
            read_pointer=random.choice(ODD_LONGS),
            invalids=pointers,
            in_progress=pointers[1:],
            long=random.random() < 0.5,
        )
    )
    unknown = random.choice(
        (
            b"",
            struct.pack(">bhi", 11, 20, 3) + b"abc",
            struct.pack(">bh", 12, 21) + b"\x02\x00\x01\x01\x00",
            struct.pack(">bhbbi", 13, 22, 11, 3, random.choice((0, 1, -1, 1 << 30))) + b"\x00" * 5,
            struct.pack(">bhbi", 15, 23, 15, 1) + struct.pack(">bi", 10, 0),
            struct.pack(">bhbi", 15, random.randint(1, 9), 10, random.choice(ODD_INTS[:-2])),
        )
    )
    return unknown + known


def _wrapped(random: Random, branch: str, value: object) -> object:
    return {branch: value} if value is not None and random.random() < 0.5 else value


def _odd_value(random: Random) -> object:
    odd: tuple[object, ...] = (None, True, 1.5, -1, 1 << 70, "", "é", "\u65e5", "\ud800", [], {})
    return random.choice((*odd, {"long": 1}, {"int": "1"}, {"bytes": "x", "long": 1}, [[]], [None]))


def _dump(random: Random, fields: dict[str, object]) -> bytes:
    """Write an object; sometimes without its nulls, or with white space."""
    if random.random() < 0.3:
        fields = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(fields, indent=random.choice((None, None, 1))).encode()


def _publish_avro_json(random: Random) -> bytes:
    pointer = random.choice((None, _legal_pointer(random)))
    messages: list[object] = [
        _payload(random).decode("latin-1") for _ in range(random.choice((0, 1, 2, 5)))
    ]
    last = random.choice((messages, messages, [*messages, _odd_value(random)], _odd_value(random)))
    wrapped = _wrapped(random, "long", pointer)
    return _dump(random, {"transactionWritePointer": wrapped, "messages": last})


def _rollback_avro_json(random: Random) -> bytes:
    odd: tuple[object, ...] = (*LEGAL_SEQS, *ODD_INTS, _odd_value(random))
    rows: dict[str, object] = {
        "startTimestamp": random.choice(LEGAL_LONGS),
        "startSequenceId": random.choice(LEGAL_SEQS),
        "endTimestamp": random.choice(LEGAL_LONGS),
        "endSequenceId": random.choice(odd),
    }
    pointer = _wrapped(random, "long", _legal_pointer(random))
    return _dump(random, {"transactionWritePointer": pointer, "rollbackRange": rows})


def _poll_avro_json(random: Random) -> bytes:
    identifier = random.randbytes(random.choice((20, 30))).decode("latin-1")
    transaction = damage(random, _transaction(random)).decode("latin-1")
    starts = (None, {"bytes": identifier}, identifier, random.choice(LEGAL_LONGS))
    last = (None, {"bytes": transaction}, transaction, _odd_value(random))
    fields: dict[str, object] = {
        "startFrom": random.choice(starts),
        "inclusive": random.random() < 0.5,
        "limit": _wrapped(random, "int", random.choice((None, *LEGAL_INTS))),
        "transaction": random.choice(last),
    }
    return _dump(random, fields)


def _text_or_base64(random: Random) -> object:
    payload = _payload(random)
    if random.random() < 0.5:
        return payload.decode("latin-1")
    return {"base64": base64.b64encode(payload).decode()}


def _message(random: Random) -> object:
    if random.random() < 0.5:
        return _text_or_base64(random)
    others: dict[str, object] = {
        "key": random.choice((None, _text_or_base64(random))),
        "headers": {name: _text_or_base64(random) for name in ("a", "é")},
        "ttl": random.choice((None, *LEGAL_INTS)),
    }
    return {"value": _text_or_base64(random)} | {
        name: other for name, other in others.items() if random.random() < 0.5
    }


def _odd_message(random: Random) -> object:
    odd = _odd_value(random)
    wrapped = ({"base64": odd}, {"value": "x", "headers": odd}, {"value": "x", "ttl": odd})
    return random.choice((odd, {"value": odd}, {"value": "x", "key": odd}, *wrapped))


def _publish_json(random: Random) -> bytes:
    pointer = random.choice((None, _legal_pointer(random)))
    messages = [_message(random) for _ in range(random.choice((0, 1, 2, 5)))]
    last = random.choice((messages, [*messages, _odd_message(random)], _odd_value(random)))
    return _dump(random, {"write_pointer": pointer and str(pointer), "messages": last})


def _rollback_json(random: Random) -> bytes:
    identifier = random.randbytes(20).hex()
    last = random.choice((identifier, identifier[:38], _odd_value(random)))
    rows: dict[str, object] = {"first_id": identifier, "last_id": last}
    return _dump(random, {"write_pointer": str(_legal_pointer(random)), "count": None, **rows})


def _poll_json(random: Random) -> bytes:
    transaction = _transaction(random)
    parts = {"transaction_id": random.choice(ODD_LONGS), "read_pointer": random.choice(ODD_LONGS)}
    base = base64.b64encode(transaction).decode()
    snapshots = (None, transaction.hex(), base, parts, damage(random, transaction).hex())
    starts = (None, random.randbytes(20).hex(), "2026-11-20T12:34:56.789+01:00", *LEGAL_LONGS)
    fields: dict[str, object] = {
        "start": random.choice(starts),
        "inclusive": random.random() < 0.5,
        "limit": random.choice((None, *LEGAL_INTS)),
        "snapshot": random.choice((*snapshots, _odd_value(random))),
    }
    return _dump(random, fields)


def _properties(random: Random) -> bytes:
    ttl: tuple[object, ...] = ("7", 7, *ODD_INTS, "+7", "", "7.0", 1e3, _odd_value(random))
    fields: dict[str, object] = {
        "generation": random.choice((None, None, 1, "-3")),
        "note": random.choice(("", "é", True, 1.5)),
        "ttl": random.choice(ttl),
    }
    # The decoder refuses JSON's null before it reads any property.
    return _dump(random, {name: value for name, value in fields.items() if value is not None})


_DEEP: Final[dict[Target, Callable[[Random], bytes]]] = {
    PUBLISH: _publish,
    ROLLBACK: _rollback,
    POLL: _poll,
    PUBLISH_AVRO_JSON: _publish_avro_json,
    ROLLBACK_AVRO_JSON: _rollback_avro_json,
    POLL_AVRO_JSON: _poll_avro_json,
    PUBLISH_JSON: _publish_json,
    ROLLBACK_JSON: _rollback_json,
    POLL_JSON: _poll_json,
    PROPERTIES: _properties,
}

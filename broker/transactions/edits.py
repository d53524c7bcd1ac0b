"""Edits: the changes of the service's state, as values and as bytes.

A decision of the manager returns edits, and only edits change the state. So the edits of a journal, applied in their
order, restore the state::

    format (1 byte) | kind (1 byte) | number (long) | fields        numbers and lengths as in Avro (wire/varint.py)

``number`` counts the edits of the journal from 1, without a gap. A journal with a gap is corrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from broker.errors import StorageCorrupt
from broker.wire.varint import Malformed, encode_bytes, encode_long, read_bytes, read_long

T = TypeVar("T")

FORMAT: Final = 1


class Reset(NamedTuple):
    """The state begins, or begins again: no transaction is in progress, and all pointers up to ``pointer`` are visible."""

    pointer: int


class Started(NamedTuple):
    """A transaction began. Times are ms since 1970."""

    pointer: int
    long: bool
    started_ms: int
    expires_ms: int
    client: str


class Checkpointed(NamedTuple):
    """A transaction got another write pointer."""

    transaction: int
    pointer: int


class Committing(NamedTuple):
    """A transaction sent the keys that it changed, and may commit."""

    transaction: int
    changes: tuple[bytes, ...]


class Committed(NamedTuple):
    """A transaction committed."""

    transaction: int


class Aborted(NamedTuple):
    """A short transaction ended after its client undid its writes. Its pointers count as visible."""

    transaction: int


class Invalidated(NamedTuple):
    """Transactions became invalid. ``timed_out`` is true if their time-outs had passed."""

    transactions: tuple[int, ...]
    timed_out: bool


class Truncated(NamedTuple):
    """Pointers are no longer invalid: no message of them is left."""

    pointers: tuple[int, ...]


class TruncatedBefore(NamedTuple):
    """All pointers below this one are no longer invalid."""

    pointer: int


class Named(NamedTuple):
    """A transaction in progress has a name. ``epoch`` is the pointer of the first transaction of the name's owner."""

    name: str
    epoch: int
    transaction: int


Edit = (
    Reset
    | Started
    | Checkpointed
    | Committing
    | Committed
    | Aborted
    | Invalidated
    | Truncated
    | TruncatedBefore
    | Named
)

KINDS: Final[tuple[type[Edit], ...]] = (
    Reset,
    Started,
    Checkpointed,
    Committing,
    Committed,
    Aborted,
    Invalidated,
    Truncated,
    TruncatedBefore,
    Named,
)
"""The kinds of edit. The index is the number in the journal. It never changes; new kinds are added at the end."""
_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}


def encode_edit(number: int, edit: Edit) -> bytes:
    """Return an edit as a message of the journal."""
    head = bytes((FORMAT, _NUMBERS[type(edit)])) + encode_long(number)
    return head + b"".join(map(_encode_field, edit))


def _encode_field(value: object) -> bytes:
    if isinstance(value, int):
        return encode_long(value)
    if isinstance(value, str):
        return encode_bytes(value.encode())
    assert isinstance(value, tuple), "a field is a number, a text or a tuple"
    return encode_long(len(value)) + b"".join(
        encode_bytes(each) if isinstance(each, bytes) else encode_long(each) for each in value
    )


def decode_edit(message: bytes) -> tuple[int, Edit]:
    """Return an edit and its number. Raises StorageCorrupt."""
    try:
        if message[0] != FORMAT:
            raise StorageCorrupt(f"The journal has a message of unknown format {message[0]}.")
        number, at = read_long(message, 2)
        kind = KINDS[message[1]]
        values: list[Any] = []
        for read in _READERS[kind]:
            value, at = read(message, at)
            values.append(value)
        check_end(message, at)
    except (IndexError, Malformed, UnicodeDecodeError) as error:
        raise StorageCorrupt("An edit of the journal does not decode.") from error
    return number, kind(*values)


def check_end(message: bytes, at: int) -> None:
    """Raise Malformed if a message has bytes behind its last field."""
    if at != len(message):
        raise Malformed("bytes are left")


# Lists. Snapshots of the state use them, too.


def encode_numbers(numbers: Iterable[int]) -> bytes:
    """Encode a list of numbers: the count, then each number."""
    each = [encode_long(number) for number in numbers]
    return encode_long(len(each)) + b"".join(each)


def read_numbers(body: bytes, at: int) -> tuple[list[int], int]:
    """Return a list of numbers and the place after it. Raises Malformed, IndexError."""
    return _read_list(read_long, body, at)


def encode_keys(keys: Iterable[bytes]) -> bytes:
    """Encode a list of byte strings: the count, then each with its length."""
    each = [encode_bytes(key) for key in keys]
    return encode_long(len(each)) + b"".join(each)


def read_keys(body: bytes, at: int) -> tuple[list[bytes], int]:
    """Return a list of byte strings and the place after it. Raises Malformed, IndexError."""
    return _read_list(read_bytes, body, at)


def _read_list(
    read: Callable[[bytes, int], tuple[T, int]], body: bytes, at: int
) -> tuple[list[T], int]:
    count, at = read_long(body, at)
    found = []
    for _ in range(count):
        each, at = read(body, at)
        found.append(each)
    return found, at


def _reader(
    read: Callable[[bytes, int], tuple[T, int]], form: Callable[[T], object]
) -> Callable[[bytes, int], tuple[object, int]]:
    def value(body: bytes, at: int) -> tuple[object, int]:
        found, at = read(body, at)
        return form(found), at

    return value


_READER_OF: Final[Mapping[object, Callable[[bytes, int], tuple[object, int]]]] = {
    int: read_long,
    bool: _reader(read_long, bool),
    str: _reader(read_bytes, bytes.decode),
    tuple[int, ...]: _reader(read_numbers, tuple),
    tuple[bytes, ...]: _reader(read_keys, tuple),
}
_READERS: Final = {
    kind: tuple(_READER_OF[field] for field in get_type_hints(kind).values()) for kind in KINDS
}
"""How to read the fields of each kind, in their order: by their types."""

"""Snapshots: the state in the journal, in parts.

::

    begin       format | 100 | number of the last edit in it
    part        format | 101 | section | its items                    a section may have any number of parts
    end         format | 102 | number | number of parts

Edits may lie between these messages; they are not in the snapshot. A snapshot is valid once its end is in the journal.
Then the messages before its begin are no longer needed. The parts are made from a copy that shares all immutable values
with the state, so edits go on meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from broker.errors import StorageCorrupt
from broker.transactions.edits import (
    FORMAT,
    Started,
    check_end,
    encode_keys,
    encode_numbers,
    read_keys,
    read_numbers,
)
from broker.transactions.service_state import (
    InvalidTransaction,
    NameOwner,
    OpenTransaction,
    ServiceState,
    size_of,
)
from broker.wire.varint import Malformed, encode_bytes, encode_long, read_bytes, read_long

BEGIN: Final = 100
PART: Final = 101
END: Final = 102
PART_BYTES_MAX: Final = 64 * 1024
"""The largest part. A part may be larger only if it has a single item."""
POINTERS_AT_ONCE: Final = 4096

Item = TypeVar("Item")


class Frozen(NamedTuple):
    """An immutable copy of a state."""

    number: int
    last: int
    read_pointer: int
    in_progress: tuple[tuple[OpenTransaction, tuple[int, ...], tuple[bytes, ...] | None], ...]
    invalids: array[int]
    ended: Callable[[int], InvalidTransaction | None]
    committed: tuple[tuple[int, tuple[bytes, ...]], ...]
    names: tuple[tuple[str, NameOwner], ...] = ()


def frozen(state: ServiceState) -> Frozen:
    """Return an immutable copy of the current state. For its invalid transactions, ``state.gone`` must be kept meanwhile."""
    ended, gone = state.ended, {} if state.gone is None else state.gone
    return Frozen(
        state.number,
        state.last,
        state.read_pointer,
        tuple((each, each.checkpoints, each.changes) for each in state.in_progress.values()),
        state.invalids,
        lambda pointer: ended.get(pointer) or gone.get(pointer),
        tuple(state.committed),
        tuple(state.names.items()),
    )


def encode_begin(number: int) -> bytes:
    """Return the message that begins a snapshot of the state after an edit."""
    return bytes((FORMAT, BEGIN)) + encode_long(number)


def encode_end(number: int, parts: int) -> bytes:
    """Return the message that ends a snapshot."""
    return bytes((FORMAT, END)) + encode_long(number) + encode_long(parts)


def read_end(message: bytes) -> tuple[int, int]:
    """Return the number of the last edit, and the number of parts. Raises StorageCorrupt."""
    try:
        number, at = read_long(message, 2)
        return number, read_long(message, at)[0]
    except (Malformed, IndexError) as error:
        raise StorageCorrupt("The end of a snapshot of the journal does not decode.") from error


def encode_parts(state: Frozen) -> Iterator[bytes]:
    """Yield the parts. Each step takes less than a slice, unless an item is large."""
    yield _part(_POINTERS, [encode_long(state.last) + encode_long(state.read_pointer)])
    yield from _parts(_IN_PROGRESS, map(_encode_transaction, state.in_progress))
    for at in range(0, len(state.invalids), POINTERS_AT_ONCE):
        numbers = state.invalids[at : at + POINTERS_AT_ONCE]
        yield _part(_INVALIDS, [encode_numbers(_deltas(numbers))])
    found = ((pointer, state.ended(pointer)) for pointer in state.invalids)
    yield from _parts(_ENDED, (_encode_ended(at, ended) for at, ended in found if ended))
    yield from _parts(_COMMITTED, map(_encode_committed, state.committed))
    yield from _parts(_NAMES, map(_encode_name, state.names))


def _parts(section: int, items: Iterable[bytes]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for item in items:
        if gathered and size + len(item) > PART_BYTES_MAX:
            yield _part(section, gathered)
            gathered, size = [], 0
        gathered.append(item)
        size += len(item)
    if gathered:
        yield _part(section, gathered)


def _part(section: int, items: list[bytes]) -> bytes:
    return bytes((FORMAT, PART, section)) + encode_long(len(items)) + b"".join(items)


def _encode_transaction(
    each: tuple[OpenTransaction, tuple[int, ...], tuple[bytes, ...] | None],
) -> bytes:
    found, checkpoints, changes = each
    numbers = (
        *(found.id, found.long, found.started_ms, found.expires_ms),
        *(found.read_pointer, found.first_short),
    )
    return b"".join(
        (
            *map(encode_long, numbers),
            encode_bytes(found.client.encode()),
            encode_numbers(_deltas(found.seen)),
            encode_numbers(checkpoints),
            encode_long(changes is not None),
            encode_keys(changes or ()),
        )
    )


def _encode_ended(pointer: int, ended: InvalidTransaction) -> bytes:
    return encode_long(pointer) + encode_long(ended.long) + encode_numbers(ended.checkpoints)


def _encode_committed(each: tuple[int, tuple[bytes, ...]]) -> bytes:
    return encode_long(each[0]) + encode_keys(each[1])


def _encode_name(each: tuple[str, NameOwner]) -> bytes:
    name, owner = each
    return encode_bytes(name.encode()) + encode_long(owner.epoch) + encode_long(owner.transaction)


def _deltas(numbers: array[int]) -> Iterator[int]:
    """Yield the first of ascending numbers, then the difference of each to the one before."""
    yield from numbers[:1]
    for before, number in pairwise(numbers):
        yield number - before


def _sums(deltas: Iterable[int]) -> array[int]:
    total, sums = 0, array("q")
    for delta in deltas:
        total += delta
        sums.append(total)
    return sums


# Reading.


def take_part(state: ServiceState, message: bytes) -> None:
    """Add the items of a part to a state that is being restored. Raises StorageCorrupt."""
    try:
        count, at = read_long(message, 3)
        take = _TAKE[message[2]]
        for _ in range(count):
            at = take(state, message, at)
        check_end(message, at)
    except (Malformed, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise StorageCorrupt("A part of a snapshot of the journal does not decode.") from error


def _take_pointers(state: ServiceState, body: bytes, at: int) -> int:
    state.last, at = read_long(body, at)
    state.read_pointer, at = read_long(body, at)
    return at


def _take_transaction(state: ServiceState, body: bytes, at: int) -> int:
    numbers = []
    for _ in range(6):
        number, at = read_long(body, at)
        numbers.append(number)
    identifier, long, started_ms, expires_ms, read_pointer, first_short = numbers
    client, at = read_bytes(body, at)
    seen, at = read_numbers(body, at)
    checkpoints, at = read_numbers(body, at)
    has_changes, at = read_long(body, at)
    changes, at = read_keys(body, at)
    started = Started(identifier, bool(long), started_ms, expires_ms, client.decode())
    found = OpenTransaction(started, read_pointer, _sums(seen), first_short)
    found.checkpoints = tuple(checkpoints)
    found.changes = tuple(changes) if has_changes else None
    state.in_progress[identifier] = found
    return at


def _take_invalids(state: ServiceState, body: bytes, at: int) -> int:
    deltas, at = read_numbers(body, at)
    state.invalids.extend(_sums(deltas))  # In place: no snapshot shares this array yet.
    return at


def _take_ended(state: ServiceState, body: bytes, at: int) -> int:
    identifier, at = read_long(body, at)
    long, at = read_long(body, at)
    checkpoints, at = read_numbers(body, at)
    state.ended[identifier] = InvalidTransaction(bool(long), tuple(checkpoints))
    return at


def _take_committed(state: ServiceState, body: bytes, at: int) -> int:
    pointer, at = read_long(body, at)
    changes, at = read_keys(body, at)
    state.committed.append((pointer, tuple(changes)))
    state.committed_at.update(dict.fromkeys(changes, pointer))
    state.change_bytes += size_of(changes)
    return at


def _take_name(state: ServiceState, body: bytes, at: int) -> int:
    name, at = read_bytes(body, at)
    epoch, at = read_long(body, at)
    transaction, at = read_long(body, at)
    state.names[name.decode()] = NameOwner(epoch, transaction)
    return at


_POINTERS, _IN_PROGRESS, _INVALIDS, _ENDED, _COMMITTED, _NAMES = range(6)
_TAKE: Final[tuple[Callable[[ServiceState, bytes, int], int], ...]] = (
    _take_pointers,
    _take_transaction,
    _take_invalids,
    _take_ended,
    _take_committed,
    _take_name,
)


def complete(state: ServiceState, number: int) -> ServiceState:
    """Complete a state after all its parts: set its number, and compute the derived fields."""
    state.number = number
    found = state.in_progress.values()
    state.pointers = array("q", sorted(pointer for each in found for pointer in each.pointers))
    state.shorts = array("q", [each.id for each in found if not each.long])
    state.change_bytes += sum(size_of(each.changes or ()) for each in found)
    for name, owner in state.names.items():
        if owner.transaction in state.in_progress:
            state.in_progress[owner.transaction].name = name
    return state

"""Write a snapshot of the service in the format of Tephra's snapshot files, codec version 4, for ``getSnapshot``.

::

    version (4) | time ms | read pointer | last write pointer
    invalid pointers         list of numbers
    in progress              list of: id | expires ms | upper bound | type | list of checkpoint pointers
    committing change sets   list of: transaction | list of keys
    committed change sets    list of: commit pointer | list of keys

    list    blocks, each: count | items; a count of 0 ends it      number   zig-zag varint, as in Avro
    key     length | bytes                                         type     0 short, 1 long, 2 checkpoint

A checkpoint stands in the list of its transaction, and again in the list "in progress", as its own entry. All releases
of Tephra since 0.7 read version 4. Source: Tephra's SnapshotCodecV4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.transactions.snapshots import Frozen
from broker.wire.varint import encode_bytes, encode_long

VERSION: Final = 4
SHORT, LONG, CHECKPOINT = 0, 1, 2
PER_BLOCK: Final = 1_000
"""How many items a block has at most."""

_END: Final = encode_long(0)


class InProgress(NamedTuple):
    """A transaction in progress. It sees each pointer up to ``upper_bound``, or never will see it."""

    id: int
    expires_ms: int
    upper_bound: int
    long: bool = False
    checkpoints: Sequence[int] = ()


class TephraState(NamedTuple):
    """The contents of a snapshot. Commit pointers ascend; several commits may have the same one."""

    now_ms: int
    read_pointer: int
    write_pointer: int
    invalids: Sequence[int] = ()
    in_progress: Iterable[InProgress] = ()
    committing: Iterable[tuple[int, Collection[bytes]]] = ()
    committed: Iterable[tuple[int, Collection[bytes]]] = ()


def encode_state(state: TephraState) -> bytes:
    """Return the bytes of a snapshot."""
    out = bytearray()
    for number in (VERSION, state.now_ms, state.read_pointer, state.write_pointer):
        out += encode_long(number)
    _list(map(encode_long, state.invalids), out)
    _list(_in_progress(state.in_progress), out)
    _change_sets(state.committing, out)
    _change_sets(_merged(state.committed), out)
    return bytes(out)


def state_of(frozen: Frozen, now_ms: int) -> TephraState:
    """Return the contents of the snapshot of a state."""
    in_progress = [
        InProgress(
            each.id,
            each.expires_ms,
            upper_bound(each.id, each.read_pointer, each.seen),
            each.long,
            checkpoints,
        )
        for each, checkpoints, _ in frozen.in_progress
    ]
    committing = [
        (each.id, changes) for each, _, changes in frozen.in_progress if changes is not None
    ]
    return TephraState(
        now_ms,
        frozen.read_pointer,
        frozen.last,
        frozen.invalids,
        in_progress,
        committing,
        frozen.committed,
    )


def upper_bound(transaction: int, read_pointer: int, in_progress: Sequence[int]) -> int:
    """Return the upper bound of a transaction. ``in_progress`` has the pointers in progress when it began, ascending."""
    return in_progress[0] - 1 if in_progress else min(transaction - 1, read_pointer)


def _list(items: Iterable[bytes], out: bytearray) -> None:
    block: list[bytes] = []
    for item in items:
        block.append(item)
        if len(block) == PER_BLOCK:
            out += encode_long(len(block)) + b"".join(block)
            block.clear()
    if block:
        out += encode_long(len(block)) + b"".join(block)
    out += _END


def _all(items: Collection[bytes]) -> bytes:
    """Return a whole list in one block."""
    return encode_long(len(items)) + b"".join(items) + _END if items else _END


def _in_progress(transactions: Iterable[InProgress]) -> Iterator[bytes]:
    for each in transactions:
        bounds = encode_long(each.expires_ms) + encode_long(each.upper_bound)
        kind = encode_long(LONG if each.long else SHORT)
        checkpoints = [encode_long(pointer) for pointer in each.checkpoints]
        yield encode_long(each.id) + bounds + kind + _all(checkpoints)
        for checkpoint in checkpoints:
            yield checkpoint + bounds + encode_long(CHECKPOINT) + _END


def _change_sets(sets: Iterable[tuple[int, Collection[bytes]]], out: bytearray) -> None:
    for pointer, keys in sets:
        out += encode_long(1) + encode_long(pointer)
        _list(map(encode_bytes, keys), out)
    out += _END


def _merged(
    sets: Iterable[tuple[int, Collection[bytes]]],
) -> Iterator[tuple[int, Collection[bytes]]]:
    """Yield one set for each commit pointer, as in Tephra's map. Commits without a start between them share a pointer."""
    last: int | None = None
    gathered: dict[bytes, None] = {}
    for pointer, keys in sets:
        if pointer != last and last is not None:
            yield last, gathered
            gathered = {}
        last = pointer
        gathered.update(dict.fromkeys(keys))
    if last is not None:
        yield last, gathered

"""A snapshot of the transaction service as Tephra keeps it in files, for ``getSnapshot``: its codec version 4.

::

    version (4) | time ms | read pointer | last write pointer
    invalid pointers         list of numbers
    in progress              list of: id | expires ms | upper bound | type | list of checkpoint pointers
    committing change sets   list of: transaction | list of keys
    committed change sets    list of: commit pointer | list of keys

    list    blocks, each: count | items; a count of 0 ends it      number   zig-zag varint, as in Avro
    key     length | bytes                                         type     0 short, 1 long, 2 checkpoint

A checkpoint of a transaction stands in the list of its transaction, and again among those in progress, as an entry of
its own. All releases of Tephra since 0.7 read version 4. Source: Tephra's SnapshotCodecV4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.transactions.snapshots import Frozen
from broker.wire.read_steps import Steps
from broker.wire.varint import encode_bytes, encode_long

VERSION: Final = 4
SHORT, LONG, CHECKPOINT = 0, 1, 2
PER_BLOCK: Final = 1_000
"""How many items a block has at most, and how much one step does."""

_END: Final = encode_long(0)


class InProgress(NamedTuple):
    """A transaction in progress. ``upper_bound``: all pointers up to it are visible to it, or never will be."""

    id: int
    expires_ms: int
    upper_bound: int
    long: bool = False
    checkpoints: Sequence[int] = ()


class TephraState(NamedTuple):
    """All that a snapshot says. Commit pointers ascend; several commits may have the same."""

    now_ms: int
    read_pointer: int
    write_pointer: int
    invalids: Sequence[int] = ()
    in_progress: Iterable[InProgress] = ()
    committing: Iterable[tuple[int, Collection[bytes]]] = ()
    committed: Iterable[tuple[int, Collection[bytes]]] = ()


def snapshot_steps(state: TephraState) -> Steps[bytes]:
    """Return in steps the bytes of a snapshot."""
    out = bytearray()
    for number in (VERSION, state.now_ms, state.read_pointer, state.write_pointer):
        out += encode_long(number)
    yield from _list(map(encode_long, state.invalids), out)
    yield from _list(_in_progress(state.in_progress), out)
    yield from _change_sets(state.committing, out)
    yield from _change_sets(_merged(state.committed), out)
    return bytes(out)


def state_of(frozen: Frozen, now_ms: int) -> TephraState:
    """Return what a snapshot says of a state."""
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
    """Return the upper bound of a transaction that began when others were in progress (ascending)."""
    return in_progress[0] - 1 if in_progress else min(transaction - 1, read_pointer)


def _list(items: Iterable[bytes], out: bytearray) -> Steps[None]:
    block: list[bytes] = []
    for item in items:
        block.append(item)
        if len(block) == PER_BLOCK:
            out += encode_long(len(block)) + b"".join(block)
            block.clear()
            yield
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


def _change_sets(sets: Iterable[tuple[int, Collection[bytes]]], out: bytearray) -> Steps[None]:
    """Write each set as a block of its own, since one may be larger than a step."""
    done = 0
    for pointer, keys in sets:
        out += encode_long(1) + encode_long(pointer)
        yield from _list(map(encode_bytes, keys), out)
        done += 1 + len(keys)
        if done >= PER_BLOCK:
            done = 0
            yield
    out += _END


def _merged(
    sets: Iterable[tuple[int, Collection[bytes]]],
) -> Iterator[tuple[int, Collection[bytes]]]:
    """Yield one set for each pointer: commits that no start parts have the same, and Tephra keeps a map."""
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

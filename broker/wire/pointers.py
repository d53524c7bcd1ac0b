"""Lists of write pointers: ascending 64-bit numbers, eight bytes each.

A snapshot may name a million transactions. As an array they take 8 MB; as a list of numbers they would take 40 MB. They
nearly always arrive in order. If not, the reader sorts pieces and merges them, since sorting all in one call would
take half a second.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import le
from typing import Final

from broker.wire.read_steps import Steps

POINTERS_MAX: Final = 1_000_000
"""The maximum number of pointers in all lists of a snapshot; far more than a transaction service keeps."""
PER_ITEM: Final = 8
"""The number of pointers that count as one item, since they take as much memory."""

_BYTES: Final = 8
_PIECE: Final = 8_192
_MERGED: Final = 1_024


def items(count: int) -> int:
    """Return the number of items that ``count`` pointers count as."""
    return -(-count // PER_ITEM)


def of_bytes(data: bytes, start: int, count: int) -> Steps[array[int]]:
    """Return ``count`` big-endian numbers from ``data``, beginning at ``start``, in ascending order."""
    return _joined(_read(data, start, count))


def of_numbers(numbers: Sequence[int]) -> Steps[array[int]]:
    """Return 64-bit numbers as an array in ascending order."""
    return _joined(array("q", numbers[at : at + _PIECE]) for at in range(0, len(numbers), _PIECE))


def _read(data: bytes, start: int, count: int) -> Iterator[array[int]]:
    end = start + count * _BYTES
    for at in range(start, end, _PIECE * _BYTES):
        piece = array("q", data[at : min(at + _PIECE * _BYTES, end)])
        if sys.byteorder == "little":
            piece.byteswap()
        yield piece


def _joined(pieces: Iterator[array[int]]) -> Steps[array[int]]:
    runs: list[array[int]] = []
    ascending = True
    for piece in pieces:
        run = piece
        if not all(map(le, piece, islice(piece, 1, None))):
            run = array("q", sorted(piece))
        ascending = ascending and not (runs and runs[-1][-1] > run[0])
        runs.append(run)
        yield
    whole = array("q")
    if ascending:
        for run in runs:
            whole.extend(run)
        return whole
    merged = heapq.merge(*runs)
    while numbers := list(islice(merged, _MERGED)):
        whole.extend(numbers)
        yield
    return whole

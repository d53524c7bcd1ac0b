"""Lists of write pointers: ascending 64-bit numbers, eight bytes each.

A snapshot may name a million transactions. As an array they take 8 MB; as a list of numbers they would take 40 MB. They
nearly always arrive in order. If not, the reader sorts runs of them and merges these: one call that sorts all would let
no other thread run for half a second.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from itertools import islice, pairwise
from operator import le
from typing import Final

POINTERS_MAX: Final = 1_000_000
"""The maximum number of pointers in all lists of a snapshot; far more than a transaction service keeps."""
PER_ITEM: Final = 8
"""The number of pointers that count as one item, since they take as much memory."""

_BYTES: Final = 8
_RUN: Final = 8_192


def items(count: int) -> int:
    """Return the number of items that ``count`` pointers count as."""
    return -(-count // PER_ITEM)


def of_bytes(data: bytes, start: int, count: int) -> array[int]:
    """Return ``count`` big-endian numbers from ``data``, beginning at ``start``, in ascending order."""
    numbers = array("q", data[start : start + count * _BYTES])
    if sys.byteorder == "little":
        numbers.byteswap()
    return ascending(numbers)


def ascending(numbers: array[int]) -> array[int]:
    """Return numbers in ascending order."""
    runs = [numbers[at : at + _RUN] for at in range(0, len(numbers), _RUN)]
    if all(all(map(le, run, islice(run, 1, None))) for run in runs) and all(
        one[-1] <= following[0] for one, following in pairwise(runs)
    ):
        return numbers
    return array("q", heapq.merge(*[sorted(run) for run in runs]))

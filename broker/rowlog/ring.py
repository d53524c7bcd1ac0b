"""Rows to shards, by consistent hashing. Pure.

Each shard has POINTS points on a ring of 64 bits. A row belongs to the shard of the next point. With one shard more,
about 1/n of the rows move, all of them to the new one. The ring decides only where new entries go: an entry stays in
the shard in which it was put, and is removed there.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

POINTS: Final = 64


class Ring:
    """The shards that take new entries."""

    def __init__(self, shards: Iterable[int]) -> None:
        """Place each shard's points."""
        placed = sorted(
            (_hash(b"%d/%d" % (shard, point)), shard) for shard in shards for point in range(POINTS)
        )
        assert placed, "at least one shard"
        self._points = [point for point, _ in placed]
        self._shards = [shard for _, shard in placed]

    def shard_of(self, row: bytes) -> int:
        """Return the shard of a row's new entries."""
        return self._shards[bisect_right(self._points, _hash(row)) % len(self._points)]


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())

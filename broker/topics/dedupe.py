"""Remember the answers to idempotency keys: one answer per key, for a window of time.

A keyed request leaves a mark in the entry that stores its messages, so storage has the truth about each key. This
memory in front of storage holds the keys that were answered since the claim. The leader looks up an unknown key in
storage until a whole window has passed since the claim. It does so longer if this memory was full and forgot a
key that is younger than the window: the bound limits the memory, never the window.

Pure: time is an argument.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from broker.errors import IdempotencyKeyReused
from broker.model import RowId
from broker.topics.effects import POINTER_BYTES, decode_pointer, refuse_other

KEY_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeyedOutcome:
    """The outcome of a keyed request: its first and last row, and the hash of its body with its write pointer."""

    first: RowId
    last: RowId
    body_hash: bytes

    @property
    def pointer(self) -> int | None:
        """Return the write pointer of the request."""
        return decode_pointer(self.body_hash[-POINTER_BYTES:])


def key_hash(key: str) -> bytes:
    """Return the hash that stands for a client's key in marks: it has a fixed length."""
    return hashlib.sha256(key.encode()).digest()[:KEY_HASH_BYTES]


def check_same_request(theirs: bytes, mine: bytes, ids: str = "") -> None:
    """Refuse a request under the key of another one, given the hashes of both.

    Raises:
        IdempotencyKeyReused: the other one had another body.
        AlreadyPublished: it had another write pointer.
    """
    if theirs[:-POINTER_BYTES] != mine[:-POINTER_BYTES]:
        raise IdempotencyKeyReused(
            "The Idempotency-Key was used before, with another body. Use a new key for a new request."
        )
    first, second = (decode_pointer(each[-POINTER_BYTES:]) for each in (theirs, mine))
    refuse_other("The request of this Idempotency-Key", first, second, ids)


class AnsweredKeys:
    """The keys answered under one hold, bounded in number."""

    def __init__(self, *, claimed_ms: float, window_ms: int, keys_max: int) -> None:
        """Start with nothing known; ``claimed_ms`` is the monotonic time of the claim."""
        self._window_ms = window_ms
        self._keys_max = keys_max
        self._complete_since_ms = claimed_ms
        self._answers: OrderedDict[bytes, tuple[float, KeyedOutcome]] = OrderedDict()

    def get(self, key: bytes, monotonic_ms: float) -> KeyedOutcome | None:
        """Return the remembered answer to a key, if its window has not passed."""
        self._expire(monotonic_ms)
        found = self._answers.get(key)
        return found[1] if found else None

    def must_look_up(self, monotonic_ms: float) -> bool:
        """Return whether storage may have a key that ``get`` does not know, within its window."""
        return monotonic_ms - self._complete_since_ms <= self._window_ms

    def put(self, key: bytes, answer: KeyedOutcome, monotonic_ms: float) -> None:
        """Remember an answer; forget the oldest if there are too many."""
        self._expire(monotonic_ms)
        self._answers[key] = (monotonic_ms, answer)
        if len(self._answers) > self._keys_max:
            _, (at_ms, _) = self._answers.popitem(last=False)
            self._complete_since_ms = max(self._complete_since_ms, at_ms)

    def expire(self, monotonic_ms: float) -> Iterator[None]:
        """Forget the answers whose window has passed. Each step forgets one; others may come between."""
        horizon = monotonic_ms - self._window_ms
        while self._answers and next(iter(self._answers.values()))[0] < horizon:
            self._answers.popitem(last=False)
            yield

    def _expire(self, monotonic_ms: float) -> None:
        for _ in self.expire(monotonic_ms):
            pass

"""Idempotency keys: one answer per key, for a window of time.

A keyed request leaves a mark in the entry that stores its messages, so what storage says of a key is the
truth. In front of it stands this memory: keys under way, so that a repetition joins instead
of running beside, and keys answered since the claim. A key that it does not know is looked up in
storage until a whole window has passed since the claim, and longer if the bound on memory made it
forget a key that is younger than the window: the bound is on memory, never on the window.

Pure but for the futures that joiners wait on; time is an argument.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from broker.errors import IdempotencyKeyReused
from broker.model import RowId

KEY_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeyedOutcome:
    """What a keyed request led to: its first and last row, and what its body was."""

    first: RowId
    last: RowId
    body_hash: bytes


def key_hash(key: str) -> bytes:
    """Return what stands for a client's key in row keys: of a fixed length, whatever it holds."""
    return hashlib.sha256(key.encode()).digest()[:KEY_HASH_BYTES]


def check_same_body(answer: KeyedOutcome, body_hash: bytes) -> KeyedOutcome:
    """Return ``answer`` if the request's body is the one it answers, else raise."""
    if answer.body_hash != body_hash:
        raise IdempotencyKeyReused(
            "The Idempotency-Key was used before, with another body. Use a new key for a new request."
        )
    return answer


class AnsweredKeys:
    """The keys answered under one hold, bounded in number."""

    def __init__(self, *, claimed_ms: float, window_ms: int, keys_max: int) -> None:
        """Start with nothing known; ``claimed_ms`` is the monotonic time of the claim."""
        self._window_ms = window_ms
        self._keys_max = keys_max
        self._complete_since_ms = claimed_ms
        self._answers: OrderedDict[bytes, tuple[float, KeyedOutcome]] = OrderedDict()

    def get(self, key: bytes, monotonic_ms: float) -> KeyedOutcome | None:
        """Return the answer that is remembered for a key, if its window has not passed."""
        self._expire(monotonic_ms)
        found = self._answers.get(key)
        return found[1] if found else None

    def must_look_up(self, monotonic_ms: float) -> bool:
        """Whether a key that ``get`` does not know may stand in storage, within its window."""
        return monotonic_ms - self._complete_since_ms <= self._window_ms

    def put(self, key: bytes, answer: KeyedOutcome, monotonic_ms: float) -> None:
        """Remember an answer; the oldest goes if there are too many."""
        self._expire(monotonic_ms)
        self._answers[key] = (monotonic_ms, answer)
        if len(self._answers) > self._keys_max:
            _, (at_ms, _) = self._answers.popitem(last=False)
            self._complete_since_ms = max(self._complete_since_ms, at_ms)

    def _expire(self, monotonic_ms: float) -> None:
        horizon = monotonic_ms - self._window_ms
        while self._answers and next(iter(self._answers.values()))[0] < horizon:
            self._answers.popitem(last=False)

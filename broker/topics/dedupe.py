"""Remember the answers to idempotency keys: one answer per key, for a window of time.

A keyed request leaves a mark in the entry that stores its messages, so storage has the truth about each key. This
memory in front of storage holds the keys that were answered since the claim. The leader looks up an unknown key in
storage as long as a mark of before the claim may count. It does so longer if this memory was full and forgot a
key that still counts: the bound limits the memory, never the window.

Pure: ``passed`` is the id below which no mark counts any more (mark_window.py).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from broker.errors import IdempotencyKeyReused
from broker.model import LogKey
from broker.topics.effects import POINTER_BYTES, decode_pointer, refuse_other

KEY_HASH_BYTES = 16
KEY_BYTES: Final = 512
"""The memory of one key with its answer."""
EXPIRED_AT_ONCE: Final = 16
"""The expired answers that one new answer removes. The sweeper removes the others, in slices."""


@dataclass(frozen=True, slots=True)
class KeyedOutcome:
    """The outcome of a keyed request: its first and last log key, and the hash of its body with its write pointer."""

    first: LogKey
    last: LogKey
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


class KeyMemory(Protocol):
    """Keys, or producers, of one log that can be looked up again."""

    def forget_oldest(self) -> bool:
        """Forget the oldest one. Return False if there is none."""


class KeyBudget:
    """The memory that the keys and producers of all topics share. The topic that was idle longest forgets its oldest ones."""

    def __init__(self, bytes_max: int) -> None:
        """Begin with no key."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._memories: OrderedDict[KeyMemory, None] = OrderedDict()

    def take(self, memory: KeyMemory) -> None:
        """Count one more key of a memory."""
        self.bytes += KEY_BYTES
        self._memories[memory] = None
        self._memories.move_to_end(memory)
        while self.bytes > self.bytes_max and self._memories:
            oldest = next(iter(self._memories))
            if not oldest.forget_oldest():
                del self._memories[oldest]

    def give(self, keys: int = 1) -> None:
        """Count fewer keys."""
        self.bytes -= keys * KEY_BYTES

    def leave(self, memory: KeyMemory) -> None:
        """Forget a memory that takes no more keys."""
        self._memories.pop(memory, None)


class AnsweredKeys:
    """The keys answered under one hold, bounded in number."""

    def __init__(self, *, pointer: LogKey, keys_max: int, budget: KeyBudget | None = None) -> None:
        """Start with nothing known; ``pointer`` is the end of the log at the claim."""
        self._keys_max = keys_max
        self._budget = budget or KeyBudget(keys_max * KEY_BYTES)
        self._complete_after = pointer
        self._closed = False
        self._answers: OrderedDict[bytes, KeyedOutcome] = OrderedDict()

    def get(self, key: bytes, passed: LogKey) -> KeyedOutcome | None:
        """Return the remembered answer to a key, if it still counts."""
        found = self._answers.get(key)
        return found if found is not None and found.first >= passed else None

    def must_look_up(self, passed: LogKey) -> bool:
        """Return whether storage may have a key that ``get`` does not know, and that counts."""
        return passed <= self._complete_after

    def put(self, key: bytes, answer: KeyedOutcome, passed: LogKey) -> None:
        """Remember an answer, and forget some that count no more; the oldest if there are too many."""
        if self._closed:
            return
        for _ in islice(self.expire(passed), EXPIRED_AT_ONCE):
            pass
        if self._answers.pop(key, None) is not None:
            self._budget.give()
        self._answers[key] = answer
        self._budget.take(self)
        if len(self._answers) > self._keys_max:
            self.forget_oldest()

    def forget_oldest(self) -> bool:
        """Forget the oldest answer, whose key is looked up from now on. Return False if there is none."""
        if not self._answers:
            return False
        _, oldest = self._answers.popitem(last=False)
        self._budget.give()
        self._complete_after = max(self._complete_after, oldest.first)
        return True

    def expire(self, passed: LogKey) -> Iterator[None]:
        """Forget the answers that count no more. Each step forgets one; others may come between."""
        while self._answers and next(iter(self._answers.values())).first < passed:
            self._answers.popitem(last=False)
            self._budget.give()
            yield

    def close(self) -> Iterator[None]:
        """Forget everything at once, and remember no more: the hold is done. Each step frees one answer."""
        self._closed = True
        self._budget.leave(self)
        answers, self._answers = self._answers, OrderedDict()
        return self._free(answers)

    def _free(self, answers: OrderedDict[bytes, KeyedOutcome]) -> Iterator[None]:
        while answers:
            answers.popitem()
            self._budget.give()
            yield

"""Give out log keys, the ids of messages in their log: they rise strictly within a topic name, even if the clock jumps.

An id is a millisecond and a counter within it. A writer owns part of the counter::

    standalone   0 … 65535                            one node owns all of it
    cluster      instance id << 8 | 0 … 255           two writers never make the same key

Each batch starts at the clock's millisecond or the last id's, whichever is later. When a millisecond is full, ids go
on in the next one without waiting for the clock. So ids may run ahead of the clock, up to a bound. At the bound, id
time advances no faster than the monotonic clock. Ids always continue behind the log's last id, even if it lies far
ahead of this clock: the order of ids is more important than their time.

Pure: time is an argument.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from broker.model import LogKey, log_key, log_key_after, timestamp_of

_TIMESTAMP = struct.Struct(">q")
_SEQS = [struct.pack(">H", seq) for seq in range(1 << 16)]


class LeadExceeded(Exception):
    """The requested ids lie too far ahead of the clock; after ``wait_ms`` they don't."""

    def __init__(self, wait_ms: float) -> None:
        """Keep the time to wait."""
        super().__init__(f"ids are ahead of the clock; wait {wait_ms:.0f} ms")
        self.wait_ms = wait_ms


class Position(NamedTuple):
    """A place in the sequence: the millisecond and the next free counter in it."""

    timestamp_ms: int
    counter: int


class LogKeys:
    """The keys of one log under one hold.

    Invariant: every id given out is greater than every id given out before, and its timestamp is at
    least ``first_ms``.
    """

    def __init__(
        self, *, first_ms: int, monotonic_ms: float, lead_ms_max: int, instance: int | None = None
    ) -> None:
        """Start at ``first_ms``, which must be above every timestamp in the log.

        With ``instance`` None these ids use the whole counter, else the 256 numbers of that instance.
        """
        self._base_ms = first_ms
        self._base_monotonic_ms = monotonic_ms
        self._lead_ms_max = lead_ms_max
        self._offset = 0 if instance is None else instance << 8
        self._per_ms = 1 << 16 if instance is None else 1 << 8
        self._next = Position(first_ms, 0)

    @property
    def at_once_max(self) -> int:
        """Return the most ids that one request may take without waiting, if none are ahead of the clock."""
        return max(self._lead_ms_max, 1) * self._per_ms

    def ahead_ms(self, now_ms: int) -> int:
        """Return how far the next id lies ahead of the clock; 0 if it does not."""
        return max(0, self._next.timestamp_ms - now_ms)

    def rise_to(self, timestamp_ms: int) -> None:
        """Give every later id a time at or after ``timestamp_ms``."""
        if timestamp_ms > self._next.timestamp_ms:
            self._next = Position(timestamp_ms, 0)

    def take(self, count: int, now_ms: int, monotonic_ms: float) -> list[LogKey]:
        """Return the next ``count`` ids, in order.

        Raises:
            LeadExceeded: nothing was taken.
        """
        start = self._start(now_ms)
        end_counter = start.counter + count
        last_ms = start.timestamp_ms + (end_counter - 1) // self._per_ms
        followed_ms = self._follow(now_ms, monotonic_ms)
        wait_ms = last_ms - followed_ms - self._lead_ms_max
        if wait_ms > 0 and not self._exceeds_bound_alone(count, start.timestamp_ms - followed_ms):
            raise LeadExceeded(wait_ms)
        spilled_ms, counter = divmod(end_counter, self._per_ms)
        self._next = Position(start.timestamp_ms + spilled_ms, counter)
        if end_counter <= self._per_ms:
            return self._run(start.timestamp_ms, start.counter, end_counter)
        return self._runs(start, end_counter)

    def _start(self, now_ms: int) -> Position:
        return Position(now_ms, 0) if now_ms > self._next.timestamp_ms else self._next

    def _follow(self, now_ms: int, monotonic_ms: float) -> float:
        """Return the time that ids may follow: the clock's highest time, plus the monotonic time since then."""
        followed_ms = self._base_ms + (monotonic_ms - self._base_monotonic_ms)
        if now_ms <= followed_ms:
            return followed_ms
        self._base_ms, self._base_monotonic_ms = now_ms, monotonic_ms
        return now_ms

    def _exceeds_bound_alone(self, count: int, ahead_ms: float) -> bool:
        """Return whether waiting can't help: the request alone exceeds the bound, and no id is ahead of the clock."""
        return ahead_ms <= 0 and count > self.at_once_max

    def _run(self, timestamp_ms: int, start: int, end: int) -> list[LogKey]:
        head = _TIMESTAMP.pack(timestamp_ms)
        offset = self._offset
        return [head + seq for seq in _SEQS[offset + start : offset + end]]

    def _runs(self, start: Position, end_counter: int) -> list[LogKey]:
        ids: list[LogKey] = []
        timestamp_ms, counter = start
        left = end_counter - counter
        while left > 0:
            end = min(self._per_ms, counter + left)
            ids += self._run(timestamp_ms, counter, end)
            left -= end - counter
            timestamp_ms, counter = timestamp_ms + 1, 0
        return ids


def is_run(keys: Sequence[LogKey]) -> bool:
    """Return whether each id is the next one after the id before, as those of one request are."""
    return all(_is_next(key, following) for key, following in pairwise(keys))


def _is_next(key: LogKey, following: LogKey) -> bool:
    if following == log_key_after(key):
        return True
    # In a cluster a millisecond has 256 ids of one instance.
    instance, counter = key[-2:]
    return counter == 255 and following == log_key(timestamp_of(key) + 1, instance << 8)


def first_timestamp_ms(now_ms: int, pointer_ms: int) -> int:
    """Return the first millisecond of a new epoch: above the clock and above the log's pointer."""
    return max(now_ms, pointer_ms) + 1

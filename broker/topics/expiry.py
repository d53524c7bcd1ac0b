"""Decide what may be removed: pages below a floor, and payload logs whose messages can't be shown any more."""

from __future__ import annotations

from typing import NamedTuple

from broker.model import (
    LOG_KEY_MIN,
    POINTER_MAX,
    POINTERS_PER_MS,
    LogKey,
    Topic,
    first_log_key_at,
    timestamp_of,
)
from broker.storage.head import Head
from broker.storage.root import Root, RootState
from broker.topics import stages


def floor_of(topic: Topic, now_ms: int, margin_ms: int) -> LogKey:
    """Return the least id that may still be read, less a margin. Purged messages need no margin."""
    return first_log_key_at(max(now_ms - topic.ttl_ms - margin_ms, topic.purged_ms))


def due_through(topic: Topic, *, now_ms: int, lives: PayloadLifetimes) -> int:
    """Return the greatest number of a payload log that may be due: the number tells when its transaction began."""
    began_ms = now_ms - lives.transaction_ms - topic.ttl_ms - lives.margin_ms
    return min(max(began_ms, -1) * POINTERS_PER_MS, POINTER_MAX)


class PayloadLifetimes(NamedTuple):
    """The time, in ms, in which payload logs may be stored to and published, and the margin."""

    transaction_ms: int
    stage_ms: int
    margin_ms: int

    def end_ms(self, number: int) -> int:
        """Return the time from which no store to a payload log is accepted, a margin included."""
        if number < 0:
            return stages.began_ms(number) + self.stage_ms + self.margin_ms
        return number // POINTERS_PER_MS + self.transaction_ms + self.margin_ms


def may_drop(
    number: int,
    root: Root,
    tail: Head | None,
    topic: Topic,
    *,
    now_ms: int,
    lives: PayloadLifetimes,
) -> bool:
    """Return whether a payload log's messages can never be shown again."""
    if number < 0 and root.state is RootState.OPEN:
        return now_ms > lives.end_ms(number)
    stored = tail.pointer if tail is not None else LOG_KEY_MIN
    last_ms = timestamp_of(max(stored, root.at, root.reference))
    life_ms = lives.stage_ms if number < 0 else lives.transaction_ms
    return now_ms > last_ms + life_ms + topic.ttl_ms + lives.margin_ms


def may_forget(
    root: Root, number: int, *, floor: LogKey, now_ms: int, lives: PayloadLifetimes
) -> bool:
    """Return whether no request can ask for a dropped payload log any more, and none is in flight.

    Its number can't come again, because a store with it would be too old. No message at or above ``floor``, the
    floor of the topic, can be its reference.
    """
    referred = max(root.reference, root.at)
    is_quiet = now_ms > max(root.dropped_ms + lives.margin_ms, lives.end_ms(number))
    return is_quiet and (referred < floor or referred == LOG_KEY_MIN)

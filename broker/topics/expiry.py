"""What has expired so that it may be removed: pages below a floor, and payload logs that nothing can show any more."""

from __future__ import annotations

from typing import NamedTuple

from broker.model import (
    POINTER_MAX,
    POINTERS_PER_MS,
    ROW_ID_MIN,
    RowId,
    Topic,
    first_row_at,
    timestamp_of,
)
from broker.storage.head import Head
from broker.storage.root import Root, RootState
from broker.topics import stages


def floor_of(topic: Topic, now_ms: int, margin_ms: int) -> RowId:
    """Return the least id that may still be read, a margin aside; what was purged needs none."""
    return first_row_at(max(now_ms - topic.ttl_ms - margin_ms, topic.purged_ms))


def due_through(topic: Topic, *, now_ms: int, lives: PayloadLifetimes) -> int:
    """Return the greatest number of a payload log that may be due: by when its transaction began."""
    began_ms = now_ms - lives.transaction_ms - topic.ttl_ms - lives.margin_ms
    return min(max(began_ms, -1) * POINTERS_PER_MS, POINTER_MAX)


class PayloadLifetimes(NamedTuple):
    """How long payload logs may be stored to and published, in ms, and the margin."""

    transaction_ms: int
    stage_ms: int
    margin_ms: int

    def end_ms(self, number: int) -> int:
        """Return when nothing can be stored to a payload log any more, a margin included."""
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
    """Whether nothing can ever show a payload log's messages again."""
    if number < 0 and root.state is RootState.OPEN:
        return now_ms > lives.end_ms(number)
    stored = tail.pointer if tail is not None else ROW_ID_MIN
    last_ms = timestamp_of(max(stored, root.at, root.reference))
    life_ms = lives.stage_ms if number < 0 else lives.transaction_ms
    return now_ms > last_ms + life_ms + topic.ttl_ms + lives.margin_ms


def may_forget(
    root: Root, number: int, *, floor: RowId, now_ms: int, lives: PayloadLifetimes
) -> bool:
    """Whether no request can ask for a dropped payload log any more, and nothing of it is under way.

    Its number can't come again, since a store of it would be too old, and no message from ``floor`` on, the
    floor of the topic, can be its reference.
    """
    referred = max(root.reference, root.at)
    is_quiet = now_ms > max(root.dropped_ms + lives.margin_ms, lives.end_ms(number))
    return is_quiet and (referred < floor or referred == ROW_ID_MIN)

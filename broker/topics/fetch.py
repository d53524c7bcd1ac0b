"""What a consumer receives: the rules of consuming, as pure functions.

A message's id is (row id of its message row, row id of its payload row or zero), 20 bytes, and the
order of ids is the order of the topic. So a resume point needs no state and no special case: a consumer
that names an id receives what is above it (or at it, if inclusive), wherever the id points::

    message row     inline            one message    (row, 0)
                    reference         its payloads   (row, payload row) …      maybe none
    start id        (row, payload)    → message rows from `row` on; within `row`, payloads from there on

A row that gives no message, because it is skipped or refers to nothing, costs no part of the limit.

With a snapshot, a row's pointer decides: absent or visible: taken; negative or invalid: skipped; any
other is open, and the scan *ends* there, since what comes behind must not be seen before it. Without
a snapshot every row is taken, rolled back or not.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from broker.model import (
    MESSAGE_ID_BYTES,
    ROW_ID_BYTES,
    ROW_ID_MIN,
    MessageId,
    Poll,
    RowId,
    Snapshot,
    Topic,
    first_row_at,
    row_after,
    row_before,
    timestamp_of,
)


class FetchAction(enum.Enum):
    """What a consumer does at a row."""

    TAKE = "take"
    SKIP = "skip"
    HOLD = "hold"


class FetchStart(NamedTuple):
    """Where reading begins.

    ``after`` is exclusive, in the message log. If the row ``row`` is met, only its messages with a
    payload row above ``payload_after`` count, and an inline message there only if ``inline``.
    """

    after: RowId
    row: RowId | None = None
    payload_after: RowId = ROW_ID_MIN
    inline: bool = True


def oldest_live(topic: Topic, now_ms: int, lifetime_ms: int | None = None) -> RowId:
    """Return the least row id that is neither expired nor purged; a message aged exactly its ttl still lives.

    ``lifetime_ms``: of messages with a life of their own; the topic's ttl bounds it.
    """
    life_ms = topic.ttl_ms if lifetime_ms is None else min(lifetime_ms, topic.ttl_ms)
    return first_row_at(max(now_ms - life_ms, topic.purged_ms))


def start_of(poll: Poll, bound: RowId) -> FetchStart:
    """Return where a poll begins, given the oldest row that lives."""
    if poll.start is None:
        return FetchStart(_just_before(bound))
    if isinstance(poll.start, int):
        return FetchStart(_just_before(max(bound, first_row_at(poll.start))))
    return after_id(poll.start[:MESSAGE_ID_BYTES], poll.inclusive, bound)


def after_id(identifier: MessageId, inclusive: bool, bound: RowId) -> FetchStart:
    """Return the start above a message id, or at it if ``inclusive``."""
    row, payload = identifier[:ROW_ID_BYTES], identifier[ROW_ID_BYTES:]
    if timestamp_of(row) < timestamp_of(bound):
        return FetchStart(_just_before(bound))
    inline = inclusive and payload == ROW_ID_MIN
    return FetchStart(_just_before(row), row, row_before(payload) if inclusive else payload, inline)


def _just_before(row: RowId) -> RowId:
    return row_before(row)


def behind(after: MessageId | None, snapshot: Snapshot | None) -> Poll:
    """Return the poll that begins where a bulk read does, behind ``after`` or with the oldest message.

    An id with a payload row is a message of a reference: the read goes on behind that message. Any other counts
    by its row, so it stands for all that a reference shows.
    """
    if after is None:
        return Poll(snapshot=snapshot)
    if after[ROW_ID_BYTES:] != ROW_ID_MIN:
        return Poll(after, inclusive=False, snapshot=snapshot)
    return Poll(row_after(after[:ROW_ID_BYTES]) + ROW_ID_MIN, snapshot=snapshot)


def judge(pointer: int | None, snapshot: Snapshot | None) -> FetchAction:
    """Say what a consumer with ``snapshot`` does at a row with visibility pointer ``pointer``."""
    if snapshot is None or pointer is None:
        return FetchAction.TAKE
    if pointer < 0:
        return FetchAction.SKIP
    if snapshot.is_visible(pointer):
        return FetchAction.TAKE
    return FetchAction.SKIP if snapshot.is_invalid(pointer) else FetchAction.HOLD


def oldest_held(snapshot: Snapshot) -> int:
    """Return a pointer below which none can hold a consumer with ``snapshot`` up."""
    return min((snapshot.read_pointer + 1, *snapshot.in_progress[:1]))  # They ascend.


def lives(topic: Topic, row: RowId, lifetime_ms: int | None, now_ms: int) -> bool:
    """Whether a message published at ``row``, perhaps with a life of its own, still lives."""
    return row >= oldest_live(topic, now_ms, lifetime_ms)


def expires_at_ms(row: RowId, lifetime_ms: int | None, ttl_ms: int) -> int:
    """Return the last ms at which a message published at ``row`` lives."""
    life_ms = ttl_ms if lifetime_ms is None else min(lifetime_ms, ttl_ms)
    return timestamp_of(row) + life_ms

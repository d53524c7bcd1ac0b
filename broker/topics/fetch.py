"""Decide which messages a consumer receives: the rules of consuming, as pure functions.

A message's id has 20 bytes: its key in the message log, and its key in the payload log or zero. The order of
ids is the order of the topic. So a resume point needs no state and no special case: a consumer that names an id
receives the messages above it (or at it, if inclusive), whether or not a message has this id::

    message log     message           one message    (key, 0)
                    reference         its payloads   (key, payload key) …      maybe none
    start id        (key, payload)    → the message log from `key` on; within `key`, payloads from there on

A message that is skipped, and a reference that shows no payload, do not count against the limit.

With a snapshot, the pointer of a message or reference decides. The consumer takes one without a pointer or with a
visible one. It skips one whose pointer is negative or invalid. Any other pointer is of an open transaction, and the
scan *ends* there, because the messages behind must not be seen before it. An expired one is skipped before its pointer
is looked at: it will never be seen, so it blocks no consumer. Without a snapshot the consumer takes every one, also
those that were rolled back.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from broker.model import (
    LOG_KEY_BYTES,
    LOG_KEY_MIN,
    MESSAGE_ID_BYTES,
    POINTERS_PER_MS,
    LogKey,
    MessageId,
    Poll,
    Snapshot,
    Topic,
    first_log_key_at,
    log_key_after,
    log_key_before,
    timestamp_of,
)

CLOCKS_DIFFER_MS_MAX: Final = 3_600_000
"""The clock that numbers transactions may be this far ahead of the clock that numbers messages."""
POINTERS_LEAD_MS_MAX: Final = 60_000
"""A pointer that is further ahead of the clock does not tell when its transaction began."""


class FetchAction(enum.Enum):
    """The action of a consumer at a message or reference."""

    TAKE = "take"
    SKIP = "skip"
    BLOCK = "block"


class FetchStart(NamedTuple):
    """The place where reading begins.

    ``after`` is exclusive, in the message log. Of the reference ``key`` only messages with a payload key above
    ``payload_after`` count, and an inline message counts only if ``inline``.
    """

    after: LogKey
    key: LogKey | None = None
    payload_after: LogKey = LOG_KEY_MIN
    inline: bool = True


def oldest_live(topic: Topic, now_ms: int, lifetime_ms: int | None = None) -> LogKey:
    """Return the least log key that is neither expired nor purged. A message as old as its ttl still lives.

    ``lifetime_ms`` is that of messages with a lifetime of their own; the topic's ttl bounds it.
    """
    life_ms = topic.ttl_ms if lifetime_ms is None else min(lifetime_ms, topic.ttl_ms)
    return first_log_key_at(max(now_ms - life_ms, topic.purged_ms))


def start_of(poll: Poll, bound: LogKey) -> FetchStart:
    """Return the place where a poll begins, given the oldest live key."""
    if poll.start is None:
        return FetchStart(log_key_before(bound))
    if isinstance(poll.start, int):
        return FetchStart(log_key_before(max(bound, first_log_key_at(poll.start))))
    return after_id(poll.start[:MESSAGE_ID_BYTES], poll.inclusive, bound)


def after_id(identifier: MessageId, inclusive: bool, bound: LogKey) -> FetchStart:
    """Return the start above a message id, or at it if ``inclusive``."""
    key, payload = identifier[:LOG_KEY_BYTES], identifier[LOG_KEY_BYTES:]
    if timestamp_of(key) < timestamp_of(bound):
        return FetchStart(log_key_before(bound))
    inline = inclusive and payload == LOG_KEY_MIN
    return FetchStart(
        log_key_before(key), key, log_key_before(payload) if inclusive else payload, inline
    )


def behind(after: MessageId | None, snapshot: Snapshot | None) -> Poll:
    """Return the poll that begins where a bulk read begins: behind ``after``, or at the oldest message.

    An id with a payload key is a message of a reference: the read continues behind that message. Any other id counts
    by its log key, so it stands for all messages of a reference.
    """
    if after is None:
        return Poll(snapshot=snapshot)
    if after[LOG_KEY_BYTES:] != LOG_KEY_MIN:
        return Poll(after, inclusive=False, snapshot=snapshot)
    return Poll(log_key_after(after[:LOG_KEY_BYTES]) + LOG_KEY_MIN, snapshot=snapshot)


def judge(pointer: int | None, snapshot: Snapshot | None) -> FetchAction:
    """Return the action of a consumer with ``snapshot`` at a message or reference with ``pointer``."""
    if snapshot is None or pointer is None:
        return FetchAction.TAKE
    if pointer < 0:
        return FetchAction.SKIP
    if snapshot.is_visible(pointer):
        return FetchAction.TAKE
    return FetchAction.SKIP if snapshot.is_invalid(pointer) else FetchAction.BLOCK


def oldest_blocking(snapshot: Snapshot) -> int:
    """Return the least pointer that can block a consumer with ``snapshot``."""
    return min((snapshot.read_pointer + 1, *snapshot.in_progress[:1]))  # in_progress ascends.


def first_blocking(snapshot: Snapshot, now_ms: int) -> LogKey:
    """Return a key below which no message can block a consumer with ``snapshot``.

    A transaction publishes only after its begin, and its pointer tells when it began. Only a pointer ahead of the clock
    tells nothing: pointers rise strictly, so all that follow one of a clock that was once wrong are ahead.
    """
    begun_ms = oldest_blocking(snapshot) // POINTERS_PER_MS
    is_ahead = begun_ms > now_ms + POINTERS_LEAD_MS_MAX
    return first_log_key_at(0 if is_ahead else max(begun_ms - CLOCKS_DIFFER_MS_MAX, 0))


def lives(topic: Topic, key: LogKey, lifetime_ms: int | None, now_ms: int) -> bool:
    """Return whether a message published under ``key``, perhaps with a lifetime of its own, still lives."""
    return key >= oldest_live(topic, now_ms, lifetime_ms)


def expires_at_ms(key: LogKey, lifetime_ms: int | None, ttl_ms: int) -> int:
    """Return the last ms at which a message published under ``key`` lives."""
    life_ms = ttl_ms if lifetime_ms is None else min(lifetime_ms, ttl_ms)
    return timestamp_of(key) + life_ms

"""Find the transactions that block a consumer that reads with a snapshot.

A consumer stops at the first message of a transaction that has not ended: the messages behind it must not be seen
before it (fetch.py). Messages of other open transactions may lie behind that one, and would block the consumer next.
The search reports each such transaction once, with its first message and the number of messages behind that.

The search is bounded: it stops after a number of transactions, or after a number of entries, but not before the first
transaction: a reader from now on begins there. It reads entries in pauses, as browsing does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.http import budget
from broker.http.budget import Usage
from broker.long_work import Pace
from broker.model import (
    LOG_KEY_BYTES,
    LogKey,
    MessageId,
    Snapshot,
    Topic,
    first_log_key_at,
    log_key_before,
)
from broker.storage.entry import Entry
from broker.storage.keys import LogId
from broker.storage.reference import messages_of
from broker.topics.browse import AT_ONCE_BYTES
from broker.topics.fetch import FetchAction, first_blocking, judge, lives, oldest_live
from broker.topics.ranges import TopicNumberings
from broker.topics.surroundings import Surroundings

ENTRIES_MAX: Final = 200_000
"""The most entries that one search reads, if a transaction is among them."""


class BlockersQuery(NamedTuple):
    """Describes the consumer: it has ``snapshot`` and reads from ``start``.

    ``start`` is inclusive: an id, a time in ms, or None for the oldest message. ``generation`` is that of ``start``;
    None: any.
    """

    snapshot: Snapshot
    start: MessageId | int | None = None
    limit: int = 10
    generation: int | None = None


class Blocker(NamedTuple):
    """One write pointer that blocks the consumer.

    ``first`` is its first message. ``messages`` counts its own messages that this search saw, and ``waiting`` the
    messages behind ``first``.
    """

    pointer: int
    first: LogKey
    messages: int
    waiting: int


class Blockers(NamedTuple):
    """Blockers in the order of the topic. ``complete`` is False if there may be more."""

    blockers: list[Blocker]
    complete: bool


async def blockers(
    around: Surroundings,
    ranges: TopicNumberings,
    topic: Topic,
    query: BlockersQuery,
    usage: Usage | None = None,
) -> Blockers:
    """Return the transactions that block a consumer. ``usage`` is the request's, and counts the entries read.

    Raises:
        Unavailable: storage gives stale reads, and keeps doing so.
        Overloaded: requests hold too much memory.
    """
    found, complete = await _find(around, topic, query, usage or Usage(None))
    out = []
    for pointer, (first, messages) in found.items():
        out.append(Blocker(pointer, first, messages, await ranges.behind(topic, first)))
    return Blockers(out, complete)


async def _find(
    around: Surroundings, topic: Topic, query: BlockersQuery, usage: Usage
) -> tuple[dict[int, tuple[LogKey, int]], bool]:
    """Return each pointer's first message and number of messages seen, and whether the search saw everything."""
    found: dict[int, tuple[LogKey, int]] = {}
    looked, pace = 0, Pace()
    log = LogId(topic.id, topic.generation)
    reader = around.logs.reader(log, _start_of(around, topic, query))
    while not reader.ended:
        async with around.browsing:
            await pace.pause()
            entries = await reader.next(min(AT_ONCE_BYTES, around.settings.page_bytes_max))
        usage.take(budget.BudgetKind.ROWS, len(entries))
        usage.give(budget.BudgetKind.REPLY_BYTES)
        usage.take(budget.BudgetKind.REPLY_BYTES, sum(each.content_bytes for each in entries))
        for entry in entries:
            looked += 1
            await pace.step()
            if judge(entry.pointer, query.snapshot) is not FetchAction.BLOCK:
                continue
            key, messages = _blocked_at(around, topic, entry)
            assert entry.pointer is not None
            if key is None:
                continue
            if entry.pointer not in found and len(found) >= query.limit:
                return found, False
            first, before = found.get(entry.pointer, (key, 0))
            found[entry.pointer] = first, before + messages
        if looked >= ENTRIES_MAX and found:
            return found, reader.ended
    return found, True


def _start_of(around: Surroundings, topic: Topic, query: BlockersQuery) -> LogKey:
    """Return the id behind which to look."""
    start = query.start
    if start is None:
        begin = bytes(LOG_KEY_BYTES)
    else:
        begin = first_log_key_at(start) if isinstance(start, int) else start[:LOG_KEY_BYTES]
    now_ms = around.clock.now_ms()
    begun = first_blocking(query.snapshot, now_ms)
    return log_key_before(max(begin, begun, oldest_live(topic, now_ms)))


def _blocked_at(around: Surroundings, topic: Topic, entry: Entry) -> tuple[LogKey | None, int]:
    """Return the first message of an entry at which a consumer stops, and how many messages there are."""
    if entry.is_stub:
        return None, 0
    now_ms = around.clock.now_ms()
    keys = [
        key
        for key in entry.ids()
        if not entry.is_rolled_back(key) and lives(topic, key, entry.lifetime_ms, now_ms)
    ]
    if not keys:
        return None, 0
    return keys[0], messages_of(entry) if entry.is_reference else len(keys)


def as_transaction(
    now: Snapshot, transaction_id: int, checkpoints: list[int], *, long: bool
) -> Snapshot:
    """Return the snapshot of a transaction in progress, as far as the present snapshot tells.

    The transaction does not see transactions that began after it. A transaction that was in progress when it
    began, and has ended since, counts as ended: the service does not keep more.
    """
    return Snapshot(
        transaction_id=transaction_id,
        read_pointer=min(now.read_pointer, transaction_id - 1),
        write_pointer=checkpoints[-1] if checkpoints else transaction_id,
        invalids=now.invalids,
        in_progress=[pointer for pointer in now.in_progress if pointer < transaction_id],
        checkpoint_pointers=checkpoints,
        long=long,
    )

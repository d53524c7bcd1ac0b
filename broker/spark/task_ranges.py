"""How a range of a topic is divided into parts for tasks, by what the broker tells of it.

A small range is one part: a second task costs more than it saves. A large one has a part for every so many
messages and bytes, so that all cores have work and none waits long for the last. The broker divides at the
ends of rows, into about equal parts.
"""

from __future__ import annotations

from typing import Final

from broker.client.sync import SyncClient
from broker.client.values import TopicRange
from broker.model import ROW_ID_BYTES, ROW_ID_MIN, MessageId, row_after
from broker.spark.format_options import SourceOptions
from broker.spark.record_batches import TaskRange

PART_MESSAGES: Final = 65_536
PART_BYTES: Final = 8 << 20
"""By which a range is divided where no option says how."""
PAGE_MESSAGES: Final = 1_000
PARTS_A_CALL: Final = 100
"""Into how many parts the broker divides a range at most."""


def parts_wanted(found: TopicRange, options: SourceOptions) -> int:
    """Return into how many parts a range shall be divided."""
    if options.part_messages_max is not None:
        by_size = -(-found.messages // options.part_messages_max)
    elif options.parts_min:
        by_size = 1
    else:
        by_size = max(found.messages // PART_MESSAGES, found.size // PART_BYTES) + 1
    return max(by_size, options.parts_min, 1)


def check_nothing_lost(options: SourceOptions, after: MessageId, found: TopicRange) -> None:
    """Raise ValueError if messages behind ``after`` have expired, and the query shall not bear that."""
    if found.lost and options.fail_on_data_loss:
        raise ValueError(
            f"At least {found.lost} messages of the topic {options.topic} behind {after.hex()} have "
            "expired before they were read. Give the topic a longer ttl; or set failOnDataLoss=false "
            "to go on with what is there."
        )


def parts_of(client: SyncClient, options: SourceOptions, found: TopicRange) -> list[TaskRange]:
    """Return the parts of a range, in order."""
    if found.after >= found.through:
        return []
    wanted = parts_wanted(found, options)
    if (
        wanted == 1 or options.snapshot is not None
    ):  # Behind what holds a transaction nothing is read.
        return [TaskRange(options.topic, found.after, found.through, options.snapshot)]
    ends: list[MessageId] = []
    after = found.after
    while after < found.through:
        calls_left = -(-(wanted - len(ends)) // PARTS_A_CALL)
        several = client.range(
            options.topic,
            after=after,
            through=found.through,
            messages=None if calls_left <= 1 else found.messages * PARTS_A_CALL // wanted,
            parts=max(1, min(PARTS_A_CALL, wanted - len(ends))),
        )
        ends += several.ends or [found.through]
        after = ends[-1]
    begins = [found.after, *ends]
    return [TaskRange(options.topic, begin, end) for begin, end in zip(begins, ends, strict=False)]


def seen_through(client: SyncClient, options: SourceOptions, found: TopicRange) -> MessageId:
    """Return the last id of a range that the transaction of ``snapshot`` may see.

    Behind it comes what holds the transaction back, or what it skips. The messages are read for this.
    """
    start, seen = row_after(found.after[:ROW_ID_BYTES]) + ROW_ID_MIN, found.after
    inclusive = True
    while True:
        page = client.poll(
            options.topic,
            start,
            inclusive=inclusive,
            limit=PAGE_MESSAGES,
            snapshot=options.snapshot,
        )
        inside = [m.id for m in page if m.id[:ROW_ID_BYTES] <= found.through[:ROW_ID_BYTES]]
        if inside:
            seen = inside[-1][:ROW_ID_BYTES] + ROW_ID_MIN
        if not page or len(inside) < len(page):
            return seen
        start, inclusive = page[-1].id, False

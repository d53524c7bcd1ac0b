"""Divide a range of a topic into parts for tasks, by the sizes that the broker reports.

A small range is one part: a second task costs more than it saves. A large range has one part for each
``PART_MESSAGES`` messages or ``PART_BYTES`` bytes. So all cores have work, and the query does not wait long for the
last part. The broker divides a range at the ends of rows, into about equal parts.
"""

from __future__ import annotations

from typing import Final

from broker.client.sync import SyncClient
from broker.client.values import TopicRange
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, MessageId, log_key_after
from broker.places import Place
from broker.spark.format_options import SourceOptions
from broker.spark.record_batches import TaskRange

PART_MESSAGES: Final = 65_536
PART_BYTES: Final = 8 << 20
"""The size of a part if no option sets it."""
PAGE_MESSAGES: Final = 1_000
PARTS_A_CALL: Final = 100
"""The most parts into which the broker divides a range in one call."""


def parts_wanted(found: TopicRange, options: SourceOptions) -> int:
    """Return the number of parts for a range."""
    if options.part_messages_max is not None:
        by_size = -(-found.messages // options.part_messages_max)
    elif options.parts_min:
        by_size = 1
    else:
        by_size = max(found.messages // PART_MESSAGES, found.size // PART_BYTES) + 1
    # A part has a message at least. The broker refuses a range of none.
    return max(min(max(by_size, options.parts_min), found.messages), 1)


def check_nothing_lost(options: SourceOptions, after: MessageId, found: TopicRange) -> None:
    """Raise ValueError if messages behind ``after`` have expired, and the query shall fail in this case."""
    if found.lost and options.fail_on_data_loss:
        raise ValueError(
            f"At least {found.lost} messages of the topic {options.topic} behind {after.hex()} have "
            "expired before they were read. Give the topic a longer ttl; or set failOnDataLoss=false "
            "to go on with the messages that still exist."
        )


def parts_of(client: SyncClient, options: SourceOptions, found: TopicRange) -> list[TaskRange]:
    """Return the parts of a range, in order."""
    if found.after >= found.through:
        return []
    wanted = parts_wanted(found, options)
    # In a transaction the read may stop at a message that it can't see yet. Later parts would go on.
    if wanted == 1 or options.snapshot is not None:
        return [
            TaskRange(options.topic, found.after, found.through, options.snapshot, found.generation)
        ]
    ends: list[MessageId] = []
    after = found.after
    while after < found.through:
        calls_left = -(-(wanted - len(ends)) // PARTS_A_CALL)
        several = client.range(
            options.topic,
            after=Place(after, found.generation),
            through=found.through,
            messages=None if calls_left <= 1 else found.messages * PARTS_A_CALL // wanted,
            parts=max(1, min(PARTS_A_CALL, wanted - len(ends))),
        )
        ends += several.ends or [found.through]
        after = ends[-1]
    begins = [found.after, *ends]
    return [
        TaskRange(options.topic, begin, end, generation=found.generation)
        for begin, end in zip(begins, ends, strict=False)
    ]


def seen_through(client: SyncClient, options: SourceOptions, found: TopicRange) -> MessageId:
    """Return the last id of a range that the transaction of ``snapshot`` may see.

    Behind it are only messages that hold the transaction back, or that it skips. This function polls the messages.
    """
    start, seen = log_key_after(found.after[:LOG_KEY_BYTES]) + LOG_KEY_MIN, found.after
    inclusive = True
    while True:
        page = client.poll(
            options.topic,
            Place(start, found.generation),
            inclusive=inclusive,
            limit=PAGE_MESSAGES,
            snapshot=options.snapshot,
        )
        inside = [m.id for m in page if m.id[:LOG_KEY_BYTES] <= found.through[:LOG_KEY_BYTES]]
        if inside:
            seen = inside[-1][:LOG_KEY_BYTES] + LOG_KEY_MIN
        if not page or len(inside) < len(page):
            return seen
        start, inclusive = page[-1].id, False

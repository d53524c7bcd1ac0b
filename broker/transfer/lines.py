"""Publish the lines of a file in order, each as a message. The same lines give the same requests, also at a repetition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final, NamedTuple

from broker.client import Published, SyncClient
from broker.errors import BrokerError, DoneInPart, TaskFailed
from broker.model import MessageId, TopicId
from broker.small_files import bounded_lines, chunked

BATCH_MESSAGES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 1 << 28
"""The limit of one message that is read from a file; it is held in memory. A broker's default limit is a quarter."""


class PublishOrder(NamedTuple):
    """The topic and options of a publish; ``key`` and ``headers`` apply to each message."""

    topic: TopicId
    idempotency_key: str | None
    ttl_s: int | None
    key: bytes | None
    headers: dict[str, bytes]

    def publish(
        self, client: SyncClient, payloads: list[bytes], part: int | None = None
    ) -> Published:
        """Publish messages as one request; ``part`` is its number if there are several. Raises BrokerError."""
        idempotency_key = self.idempotency_key
        if idempotency_key is not None and part is not None:
            idempotency_key = f"{idempotency_key}-{part}"
        return client.publish(
            self.topic,
            payloads,
            key=self.key,
            headers=self.headers,
            ttl_s=self.ttl_s,
            idempotency_key=idempotency_key,
        )


class PublishTally:
    """The messages that the requests of one command published, in order."""

    def __init__(self) -> None:
        self.first: MessageId | None = None
        self.last: MessageId | None = None
        self.messages = 0
        self.already = 0
        """The number of them that were published before, with the same idempotency key."""

    def add(self, published: Published, messages: int, order: PublishOrder) -> None:
        """Count an acknowledged request."""
        if not self.messages:
            self.first = published.first_id
        self.last = published.last_id
        self.messages += messages
        if order.idempotency_key is not None and published.replayed:
            self.already += messages


def batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Cut lines into requests. The same lines give the same requests, so their idempotency keys match."""
    messages = (line.removesuffix(b"\n") for line in lines)
    return chunked(messages, len, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX)


def _bounded(file: IO[bytes], tally: PublishTally) -> Iterator[bytes]:
    """Yield the lines of a file. Raises TaskFailed: a line is longer than any message."""
    try:
        yield from bounded_lines(file, MESSAGE_BYTES_MAX)
    except ValueError as error:
        done = tally.messages
        failure = DoneInPart if done else TaskFailed
        before = f"Lines 1 to {done:,} are published." if done else "No line was published."
        raise failure(f"{file.name}, {error}. {before}") from error


def publish_lines(
    client: SyncClient,
    order: PublishOrder,
    file: IO[bytes],
    tally: PublishTally,
    advance: Callable[[int], object],
) -> None:
    """Publish the lines of a file in order, and count them; ``advance`` gets the bytes of each request.

    Raises BrokerError with a note about the lines before; TaskFailed: a line is longer than any message.
    """
    for number, batch in enumerate(batches(_bounded(file, tally)), start=1):
        try:
            published = order.publish(client, batch, part=number)
        except BrokerError as error:
            done, last = tally.messages, tally.messages + len(batch)
            before = (
                f"Lines 1 to {done:,} are published" if done else "No line was published before"
            )
            error.add_note(
                f"{before}; the outcome of lines {done + 1:,} to {last:,} is: {error.outcome}."
            )
            raise
        tally.add(published, len(batch), order)
        advance(sum(map(len, batch)) + len(batch))

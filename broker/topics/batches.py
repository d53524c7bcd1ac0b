"""Build the entries of requests that are stored together, and the answer to each: no waiting, no I/O.

Neighbouring plain requests share entries. A request with a write pointer, a lifetime or a reference has
entries of its own, because a consumer judges these properties once for an entry. If its messages have lifetimes
of their own, each run of one lifetime has its own entries. A key, or a producer's number, goes into the entry
that holds the last message of its request.
"""

from __future__ import annotations

import struct
from itertools import chain, groupby
from typing import NamedTuple

from broker.model import LogKey, timestamp_of
from broker.storage.entry import PLAIN, Entry, Mark, Shared, entries_of
from broker.storage.marks import IDEMPOTENCY, PRODUCER
from broker.storage.reference import encode_count
from broker.topics.effects import POINTER_BYTES, decode_pointer, encode_pointer
from broker.topics.settings import PublishedIds
from broker.topics.write import Write

_PRODUCER = struct.Struct(">QQQ")


class Batch(NamedTuple):
    """The content of one append. The log's totals rise by ``messages`` and ``payload_bytes``."""

    entries: list[Entry]
    ids: list[LogKey]
    messages: int
    payload_bytes: int


def batch_of(writes: list[Write], ids: list[LogKey], epoch: int, *, is_stored: bool) -> Batch:
    """Give each request its ids, and join neighbours that share everything but payloads."""
    added: list[Entry] = []
    plain: list[Write] = []
    messages = payload_bytes = start = plain_start = 0
    shared = PLAIN._replace(is_stored=True) if is_stored else PLAIN

    def close_plain(stop: int) -> None:
        if plain:
            payloads = list(chain.from_iterable(write.payloads or () for write in plain))
            attributes = _attributes_of(plain)
            added.extend(entries_of(epoch, ids[plain_start:stop], payloads, shared, attributes))
            plain.clear()

    for write in writes:
        stop = start + write.count
        messages += write.messages
        payload_bytes += write.payload_bytes
        if write.is_plain:
            plain.append(write)
        else:
            close_plain(start)
            added.extend(_own_entries(write, ids[start:stop], epoch, is_stored=is_stored))
            plain_start = stop
        start = stop
    close_plain(start)
    _mark(writes, ids, added)
    return Batch(added, ids, messages, payload_bytes)


def _attributes_of(writes: list[Write]) -> list[bytes]:
    """Return the attributes of each message of plain requests; an empty list if no message has any."""
    if not any([write.attributes for write in writes]):  # noqa: C419 - A list is twice as fast.
        return []
    return list(chain.from_iterable(write.attributes or [b""] * write.count for write in writes))


def _own_entries(write: Write, ids: list[LogKey], epoch: int, *, is_stored: bool) -> list[Entry]:
    shared = Shared(write.pointer, write.lifetime_ms, None, is_stored)
    added: list[Entry] = []
    if write.payloads is not None:
        if not write.lifetimes_ms:
            return entries_of(epoch, ids, write.payloads, shared, write.attributes)
        start = 0
        for lifetime_ms, run in groupby(write.lifetimes_ms):
            stop = start + len(list(run))
            added += entries_of(
                epoch,
                ids[start:stop],
                write.payloads[start:stop],
                shared._replace(lifetime_ms=lifetime_ms),
                write.attributes[start:stop],
            )
            start = stop
        return added
    for key, (number, messages, digest) in zip(ids, write.references, strict=True):
        reference = shared._replace(number=number)
        added += entries_of(epoch, [key], [encode_count(messages, digest)], reference)
    return added


def _mark(writes: list[Write], ids: list[LogKey], added: list[Entry]) -> None:
    """Put the marks of requests into the entries that hold their last messages."""
    start = place = 0
    for write in writes:
        stop = start + write.count
        if write.key is not None or write.producer is not None:
            first, last = ids[start], ids[stop - 1]
            while added[place].last < last:
                place += 1
            added[place].marks = (*added[place].marks, *_marks_of(write, first, last))
        start = stop


def _marks_of(write: Write, first: LogKey, last: LogKey) -> list[Mark]:
    marks = []
    if write.key is not None:
        hashed, body_hash = write.key
        marks.append(Mark(IDEMPOTENCY, hashed, first, last, body_hash))
    if write.producer is not None:
        hashed, number, since, since_ms = write.producer
        since_ms = timestamp_of(first) if since_ms is None else since_ms
        numbers = _PRODUCER.pack(number, since, since_ms)
        marks.append(Mark(PRODUCER, hashed, first, last, numbers + encode_pointer(write.pointer)))
    return marks


class ProducerRun(NamedTuple):
    """The content of a producer's mark: its last number, and the run of numbers under one write pointer.

    No number from ``since`` to ``number`` was published under another pointer. The first message of the run has the
    time ``since_ms``.
    """

    number: int
    since: int
    since_ms: int
    pointer: int | None


def producer_run(mark: Mark) -> ProducerRun:
    """Decode the mark of a producer."""
    number, since, since_ms = _PRODUCER.unpack_from(mark.body)
    return ProducerRun(number, since, since_ms, decode_pointer(mark.body[-POINTER_BYTES:]))


def answer(writes: list[Write], batch: Batch, generation: int) -> None:
    """Answer each request with its keys, which are consecutive, and with the log's generation. Keep their order."""
    ids, start = batch.ids, 0
    for write in writes:
        stop = start + write.count
        if write.references:
            write.ids = ids[start:stop]
        first, last = ids[start], ids[stop - 1]
        write.answer(PublishedIds(first, last, write.pointer, False, write.messages, generation))
        start = stop

"""What is stored for requests that are stored together, and what each of them is told: no waiting, no I/O.

Neighbours that any consumer takes share entries. A request with a write pointer, a lifetime or a reference has
entries of its own, since what it has in common is judged once. A key goes into the entry that holds the last
message of its request.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.model import RowId
from broker.storage.entry import PLAIN, Entry, Mark, Shared, encode_count, entries_of
from broker.topics.settings import Published

if TYPE_CHECKING:
    from broker.topics.writer import Write

IDEMPOTENCY: Final = 1
"""The kind of a mark that an idempotency key leaves."""


class Batch(NamedTuple):
    """What one append writes. ``messages`` and ``payload_bytes`` are what the log's totals rise by."""

    entries: list[Entry]
    ids: list[RowId]
    messages: int
    payload_bytes: int

    @property
    def last(self) -> RowId:
        """The id of its last message."""
        return self.ids[-1]


def batch_of(writes: list[Write], ids: list[RowId], epoch: int, *, is_stored: bool) -> Batch:
    """Give each request its ids, joining neighbours that share everything but payloads."""
    added: list[Entry] = []
    plain: list[Write] = []
    messages = payload_bytes = start = plain_start = 0
    shared = PLAIN._replace(is_stored=True) if is_stored else PLAIN

    def close_plain(stop: int) -> None:
        if plain:
            payloads = list(chain.from_iterable(write.payloads or () for write in plain))
            added.extend(entries_of(epoch, ids[plain_start:stop], payloads, shared))
            plain.clear()

    for write in writes:
        stop = start + write.rows
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


def _own_entries(write: Write, ids: list[RowId], epoch: int, *, is_stored: bool) -> list[Entry]:
    payloads = write.payloads
    if payloads is None:
        payloads = [encode_count(write.messages)]
    shared = Shared(write.pointer, write.lifetime_ms, write.number, is_stored)
    return entries_of(epoch, ids, payloads, shared)


def _mark(writes: list[Write], ids: list[RowId], added: list[Entry]) -> None:
    """Put the keys of requests into the entries that hold their last messages."""
    start = place = 0
    for write in writes:
        stop = start + write.rows
        if write.key is not None:
            first, last = ids[start], ids[stop - 1]
            while added[place].last < last:
                place += 1
            hashed, body_hash = write.key
            mark = Mark(IDEMPOTENCY, hashed, first, last, body_hash)
            added[place].marks = (*added[place].marks, mark)
        start = stop


def answer(writes: list[Write], batch: Batch) -> None:
    """Tell each request its rows. They are consecutive, in the order of the requests."""
    ids, start = batch.ids, 0
    for write in writes:
        stop = start + write.rows
        if not write.future.done():
            write.future.set_result(Published(ids[start], ids[stop - 1], write.pointer))
        start = stop

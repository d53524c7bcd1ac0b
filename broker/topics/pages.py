"""What a reading gives out at a time: runs of messages, as they lie in entries.

A run is a part of one entry, from its place ``first`` to ``stop`` (exclusive). Nothing is copied before it is
known what becomes of it: a poll joins the items of all runs to a block, a bulk read makes columns of them::

    run of the message log      item: 28 | row | zero | length | payload
    run of a payload log        item:      row | length | payload         and the row of its reference
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.model import Message, RowId
from broker.storage.entry import Entry
from broker.wire import messages
from broker.wire.blocks import PollDecoder
from broker.wire.varint import encode_long

Run = tuple[Entry, int, int, RowId | None]
"""An entry, the places ``first`` and ``stop`` (exclusive), and of a payload log's the row of the reference."""

PIECE_BYTES_MAX: Final = 256 * 1024
"""The most bytes of what is sent at once, but for a page that is read whole."""
WHOLE_BYTES_MAX: Final = 320 * 1024
"""A page of so many bytes is one piece. Most pages are such, and none is much smaller than that."""
_APART_BYTES: Final = 64 * 1024
"""What is larger is not joined with others: it is sent from where it lies."""
_TOGETHER_BYTES: Final = 64 * 1024
"""So many bytes of messages become values at a time."""


class PollPage:
    """Runs in their order, with ``count`` messages of together about ``bytes`` bytes."""

    __slots__ = ("bytes", "count", "runs")

    def __init__(self, runs: list[Run], count: int, size: int) -> None:
        """Keep the parts."""
        self.runs = runs
        self.count = count
        self.bytes = size

    def attributes(self) -> list[tuple[int, bytes]]:
        """Return the attributes of those messages that have any, each with the message's place in this page."""
        found: list[tuple[int, bytes]] = []
        base = 0
        for entry, first, stop, _ in self.runs:
            if entry.attributed:
                shift = base - first
                found += [(shift + place, each) for place, each in entry.attributes(first, stop)]
            base += stop - first
        return found

    def block(self) -> Iterator[bytes | memoryview]:
        """Yield the messages as a block of a poll's reply, in pieces, none empty."""
        if self.count:
            yield from self._pieces([encode_long(self.count), *self._items()])

    def whole(self) -> Iterator[bytes | memoryview]:
        """Yield the messages as a page of a reply with attributes (wire.messages), in pieces, none empty."""
        if self.count:
            yield from self._pieces(messages.page(self.count, self._items(), self.attributes()))

    def messages(self) -> Iterator[list[Message]]:
        """Yield the messages as values, a bounded number of bytes at a time, or one message."""
        runs: list[Run] = []
        size = 0
        for run in self.runs:
            entry, first, stop, _ = run
            run_bytes = entry.run_bytes(first, stop)
            if runs and size + run_bytes > _TOGETHER_BYTES:
                yield _values(runs)
                runs, size = [], 0
            runs.append(run)
            size += run_bytes
        if runs:
            yield _values(runs)

    def _pieces(self, parts: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        if self.bytes <= WHOLE_BYTES_MAX:
            return iter((b"".join(parts),))
        return pieces_of(parts)

    def _items(self) -> list[bytes | memoryview]:
        return _items(self.runs)


def _items(runs: Sequence[Run]) -> list[bytes | memoryview]:
    items: list[bytes | memoryview] = []
    for entry, first, stop, row in runs:
        if row is not None:
            items += entry.framed(row, first, stop)
        elif stop - first == entry.count:
            items.append(entry.items)
        else:
            items.append(entry.run(first, stop))
    return items


def _values(runs: list[Run]) -> list[Message]:
    """Return the messages of runs."""
    entry, first, _, row = runs[0]
    count = sum([stop - first for _, first, stop, _ in runs])
    if count == 1:
        # It may be large, and is copied once.
        identifier = entry.message_id(first)
        found = [Message(identifier if row is None else row + identifier, entry.payload(first))]
    else:
        found = PollDecoder().feed(b"".join([encode_long(count), *_items(runs)]))
    messages.add_attributes(found, PollPage(runs, count, 0).attributes())
    return found


def pieces_of(parts: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield what parts are when joined: small ones joined, large ones cut where they lie."""
    small: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        is_large = len(part) > _APART_BYTES
        if size and (is_large or size + len(part) > PIECE_BYTES_MAX):
            yield b"".join(small)
            small, size = [], 0
        if is_large:
            yield from cut(part)
        else:
            small.append(part)
            size += len(part)
    if size:
        yield b"".join(small)


def cut(piece: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """Yield a piece in pieces of PIECE_BYTES_MAX, without a copy."""
    if len(piece) <= PIECE_BYTES_MAX:
        yield piece
        return
    view = memoryview(piece)
    for at in range(0, len(view), PIECE_BYTES_MAX):
        yield view[at : at + PIECE_BYTES_MAX]


NO_PAGE: Final = PollPage([], 0, 0)
"""One without messages."""

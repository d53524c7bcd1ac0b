"""Hold one page of a reading: runs of messages, in the form of their entries.

A run is a part of one entry, from its place ``first`` to ``stop`` (exclusive). A page copies nothing: only its user
knows the form that it needs. A poll joins the items of all runs to a block, a bulk read makes columns of them::

    run of the message log      item: 28 | row | zero | length | payload
    run of a payload log        item:      key | length | payload         and the key of its reference
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.model import LogKey, ShownMessage, ViewedMessage
from broker.storage.entry import Entry
from broker.wire import attributes, messages
from broker.wire.messages import PollDecoder
from broker.wire.varint import encode_long

Run = tuple[Entry, int, int, LogKey | None]
"""An entry, the places ``first`` and ``stop`` (exclusive), and for a payload log the key of its reference."""

PIECE_BYTES_MAX: Final = 256 * 1024
"""The most bytes of one piece, except for a page that is sent whole."""
WHOLE_BYTES_MAX: Final = 320 * 1024
"""A page of at most so many bytes is one piece. Most pages are, and most are not much smaller than this."""
_APART_BYTES: Final = 64 * 1024
"""A larger part is not joined with others: it is sent without a copy."""
_TOGETHER_BYTES: Final = 64 * 1024
"""The bytes of messages that are decoded to values at a time. A larger message is a view of its entry, without a copy."""


class PollPage:
    """Runs in their order. They have ``count`` messages, and together about ``bytes`` bytes."""

    __slots__ = ("bytes", "count", "runs")

    def __init__(self, runs: list[Run], count: int, size: int) -> None:
        """Keep the parts."""
        self.runs = runs
        self.count = count
        self.bytes = size

    def attributes(self) -> list[tuple[int, bytes]]:
        """Return the attributes of messages that have any, each with the message's place in this page."""
        found: list[tuple[int, bytes]] = []
        base = 0
        for entry, first, stop, _ in self.runs:
            if entry.attributed:
                shift = base - first
                found += [(shift + place, each) for place, each in entry.attributes(first, stop)]
            base += stop - first
        return found

    def block(self) -> Iterator[bytes | memoryview]:
        """Yield the messages as a block of a poll's reply, in non-empty pieces."""
        if self.count:
            yield from self._pieces([encode_long(self.count), *self._items()])

    def whole(self) -> Iterator[bytes | memoryview]:
        """Yield the messages as a page of a reply with attributes (wire.messages), in non-empty pieces."""
        if self.count:
            yield from self._pieces(messages.page(self.count, self._items(), self.attributes()))

    def messages(self) -> Iterator[Sequence[ShownMessage]]:
        """Yield the messages as values, in lists of bounded size. A larger message has a list of its own, as a view."""
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
    for entry, first, stop, reference in runs:
        if reference is not None:
            items += entry.framed(reference, first, stop)
        elif stop - first == entry.count:
            items.append(entry.items)
        else:
            items.append(entry.run(first, stop))
    return items


def _values(runs: list[Run]) -> Sequence[ShownMessage]:
    """Return the messages of runs."""
    entry, first, stop, reference = runs[0]
    if entry.run_bytes(first, stop) > _TOGETHER_BYTES:
        assert len(runs) == 1, "only an entry of one message is so large"
        identifier = entry.message_id(first)
        beside = [attributes.decode(each) for _, each in entry.attributes(first, stop)]
        return [
            ViewedMessage(
                identifier if reference is None else reference + identifier,
                entry.payload_view(first),
                *(beside[0] if beside else ()),
            )
        ]
    count = sum([stop - first for _, first, stop, _ in runs])
    found = PollDecoder().feed(b"".join([encode_long(count), *_items(runs)]))
    messages.add_attributes(found, PollPage(runs, count, 0).attributes())
    return found


def pieces_of(parts: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of all parts in order: small parts joined, large parts cut without a copy."""
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
    """Yield a piece in parts of at most PIECE_BYTES_MAX, without a copy."""
    if len(piece) <= PIECE_BYTES_MAX:
        yield piece
        return
    view = memoryview(piece)
    for at in range(0, len(view), PIECE_BYTES_MAX):
        yield view[at : at + PIECE_BYTES_MAX]


NO_PAGE: Final = PollPage([], 0, 0)
"""A page without messages."""

"""What a reading gives out at a time: runs of messages, as they lie in entries.

A run is a part of one entry, from its place ``first`` to ``stop`` (exclusive). Nothing is copied before it is
known what becomes of it: a poll joins the items of all runs to a block, a bulk read makes columns of them::

    run of the message log      item: 28 | row | zero | length | payload
    run of a payload log        item:      row | length | payload         and the row of its reference
"""

from __future__ import annotations

from typing import Final

from broker.model import Message, RowId
from broker.storage.entry import Entry
from broker.wire import messages
from broker.wire.blocks import PollDecoder
from broker.wire.varint import encode_long

Run = tuple[Entry, int, int, RowId | None]
"""An entry, the places ``first`` and ``stop`` (exclusive), and of a payload log's the row of the reference."""


class Page:
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

    def block(self) -> bytes:
        """Return the messages as a block of a poll's reply; no messages are no bytes."""
        if not self.count:
            return b""
        return b"".join((encode_long(self.count), *self._items()))

    def whole(self) -> bytes:
        """Return the messages as a page of a reply with attributes (wire.messages); no messages are no bytes."""
        if not self.count:
            return b""
        return messages.page(self.count, self._items(), self.attributes())

    def messages(self) -> list[Message]:
        """Return the messages as values."""
        found = PollDecoder().feed(self.block())
        messages.add_attributes(found, self.attributes())
        return found

    def _items(self) -> list[bytes]:
        return [
            (entry.items if stop - first == entry.count else entry.run(first, stop))
            if row is None
            else entry.framed(row, first, stop)
            for entry, first, stop, row in self.runs
        ]


NO_PAGE: Final = Page([], 0, 0)
"""One without messages."""

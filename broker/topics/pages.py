"""What a reading gives out at a time: runs of messages, as they lie in entries.

A run is a part of one entry, from its place ``first`` to ``stop`` (exclusive). Nothing is copied before it is
known what becomes of it: a poll joins the items of all runs to a block, a bulk read makes columns of them::

    run of the message log      item: 28 | row | zero | length | payload
    run of a payload log        item:      row | length | payload         and the row of its reference
"""

from __future__ import annotations

from broker.model import RowId
from broker.storage.entry import Entry
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

    def block(self) -> bytes:
        """Return the messages as a block of a poll's reply; no messages are no bytes."""
        if not self.count:
            return b""
        items = [
            (entry.items if stop - first == entry.count else entry.run(first, stop))
            if row is None
            else entry.framed(row, first, stop)
            for entry, first, stop, row in self.runs
        ]
        return b"".join((encode_long(self.count), *items))

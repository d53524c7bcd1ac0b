"""Describe a topic's stored pages, read from storage without a node: for the command ``log`` of scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from broker.model import TopicId
from broker.storage import entry, head
from broker.storage.columns import is_rolled_column
from broker.storage.keys import prefix_end as above
from broker.storage.keys import topic_prefix
from broker.storage.memory.table import MemoryTable
from broker.storage.reference import messages_of
from broker.storage.table import Space

CELLS_MAX = 100_000
BYTES_MAX = 1 << 30


def lines(table: MemoryTable, topic: TopicId, space: Space = Space.MESSAGES) -> Iterator[str]:
    """Yield a line with the state of each page, and a line for each epoch that wrote to it."""
    rows, prefix = table.spaces[space], topic_prefix(topic)
    generation_0 = prefix + bytes(4)
    number = 0
    for key in rows.keys(prefix, above(prefix)):
        if key.startswith(generation_0):
            continue
        row = rows.get(key)
        if row.head is None:
            continue
        number += 1
        of_page = head.decode(row.head.value)
        yield f"page {number}: {of_page.state.name.lower()}, epoch {of_page.epoch}"
        found = row.cells(
            b"", b"\xff" * 64, cells_max=CELLS_MAX, bytes_max=BYTES_MAX, reverse=False
        )
        rolled = {column[:-1] for column, _ in found.cells if is_rolled_column(column)}
        entries = [
            (entry.decode(value), column in rolled)
            for column, value in found.cells
            if not is_rolled_column(column)
        ]
        for epoch, written in groupby(entries, key=lambda each: each[0].epoch):
            shown = " ".join(word for each, undone in written for word in _words(each, undone))
            yield f"  in epoch {epoch}: {shown}"


def _words(each: entry.Entry, undone: bool) -> Iterator[str]:
    if each.is_stub:
        yield "(expired)"
    elif each.is_reference:
        yield f"(stored: {messages_of(each)})"
    else:
        for place in range(each.count):
            payload = each.payload(place).decode()
            yield f"({payload}, rolled back)" if undone else payload

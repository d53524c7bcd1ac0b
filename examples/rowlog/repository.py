"""Records in HBase: the WAL's first action updates their links, and the MQ feeds SQLite's full-text index.

::

    save ── one put ──▶ row: cells, and the WAL's message
      │                     process(message), before save returns:
      │                       10 links     rows of the table "links" are changed
      │                       20 feeder    the message is copied into the MQ
      ▼
    MQ ── elected processor ──▶ indexer: SQLite FTS5, some time later, at least once

A process that dies after its put loses nothing. The remaining actions of the WAL run before the row's next change, or
the WAL's processor runs them.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from broker.rowlog import Message, RowLog, Subscription, feeder
from broker.rowlog.row_table import RowTable

WAL = {"respect_order": True, "work_off_first": True, "minimal_process_delay_ms": 5_000}


class Repository:
    """Records that have a title, a text, and links to other records."""

    def __init__(self, index: sqlite3.Connection, given: dict[str, Any]) -> None:
        """Use a full-text index; ``given`` are the arguments by which the rowlogs reach HBase and ZooKeeper."""
        self._index = index
        self.wal = RowLog(table="records", id="wal", log_byte=3, settings=WAL, **given)
        self.mq = RowLog(table="records", id="mq", log_byte=4, **given)
        self._open = AsyncExitStack()
        self._indexed = asyncio.Event()
        with index:
            index.execute("CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(row, title, text)")

    async def __aenter__(self) -> Self:
        """Open both rowlogs and listen; this process is a candidate for their processors."""
        for log in (self.wal, self.mq):
            await self._open.enter_async_context(log)
        await self.wal.subscribe(Subscription("links", order=10))
        await self.wal.subscribe(Subscription("feeder", order=20))
        await self.mq.subscribe(Subscription("indexer", max_tries=5))
        self.wal.listen("links", self.update_links)
        self.wal.listen("feeder", feeder(self.mq))
        self.mq.listen("indexer", self.index)
        await self.wal.start()
        await self.mq.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close both rowlogs."""
        await self._open.aclose()

    @property
    def rows(self) -> RowTable:
        """The tables."""
        return self.wal.rows

    async def save(self, row: str, title: str, text: str, links: Sequence[str] = ()) -> None:
        """Change a record, and return once its links are up to date."""
        before = await self.read(row)
        record = {"title": title, "text": text, "links": list(links)}
        cells: dict[bytes, bytes | None] = {b"d:record": json.dumps(record).encode()}
        event = {"gone": before.get("links", []), "links": list(links)}
        message = await self.wal.put(row.encode(), cells, json.dumps(event).encode())
        assert message is not None, "the WAL has subscriptions"
        await self.wal.process(message)

    async def read(self, row: str) -> dict[str, Any]:
        """Return a record; an empty dict if there is none."""
        found = await self.rows.get(b"records", [row.encode()], [b"d:record"])
        cells = found.get(row.encode())
        return json.loads(cells[b"d:record"]) if cells else {}

    async def update_links(self, message: Message) -> bool:
        """Update the table of links, by target. It is safe to repeat."""
        event, column = json.loads(message.payload), b"d:" + message.row
        for target in set(event["gone"]) - set(event["links"]):
            await self.rows.delete(b"links", [(target.encode(), [column])])
        if event["links"]:
            await self.rows.put(
                b"links", [(each.encode(), {column: b"1"}) for each in event["links"]]
            )
        return True

    async def linked_from(self, row: str) -> list[str]:
        """Return the records that link to a record."""
        found = await self.rows.get(b"links", [row.encode()], [b"d:"])
        return sorted(column[2:].decode() for column in found.get(row.encode(), {}))

    async def index(self, message: Message) -> bool:
        """Put the present content of a record into the full-text index. It is safe to repeat."""
        row = message.row.decode()
        record = await self.read(row)
        with self._index:
            self._index.execute("DELETE FROM words WHERE row = ?", (row,))
            self._index.execute(
                "INSERT INTO words VALUES (?, ?, ?)", (row, record["title"], record["text"])
            )
        self._indexed.set()
        return True

    async def until_found(self, words: str, row: str) -> None:
        """Wait until a search for these words finds a record."""
        while row not in self.search(words):
            self._indexed.clear()
            await self._indexed.wait()

    def search(self, words: str) -> list[str]:
        """Return the records that have all these words, the best first."""
        found = self._index.execute(
            "SELECT row FROM words WHERE words MATCH ? ORDER BY rank", (words,)
        )
        return [row for (row,) in found]

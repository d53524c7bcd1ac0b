"""Helpers of the log contract: a topic, two nodes, and rising ids."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest

from broker.clock import SystemClock
from broker.errors import Fenced
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey, TopicId, log_key
from broker.storage import sweep
from broker.storage.entry import PLAIN, Entry, Mark, Shared, entries_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.log_reader import LogReader
from broker.storage.ownpage import PageBounds
from broker.storage.table import Table
from tests.kit.bench import HookedTable, failing
from tests.kit.contract.table import TableHarness

SMALL: Final = PageBounds(cells_max=4, packed_from=2)
BODY: Final = bytes(range(32))
KEY: Final = b"k" * 16
ALL: Final = 1 << 26

Row = tuple[LogKey, bytes, int | None, bool]
"""(id, payload, write pointer, whether it was rolled back)."""


def payload_of(key: LogKey) -> bytes:
    """Return the payload that ``Bench.publish`` gives a message."""
    return b"payload of " + key.hex().encode()


@dataclasses.dataclass
class Bench:
    """The topic of one test, two nodes, and rising ids."""

    table: Table
    topic: TopicId
    one: Logs
    other: Logs
    generation: int = 1
    ms: int = 1_000_000

    @property
    def log(self) -> LogId:
        """The topic's message log."""
        return LogId(self.topic, self.generation)

    def ids(self, count: int) -> list[LogKey]:
        """Return the next ids."""
        self.ms += count
        return [log_key(self.ms - count + i, 7) for i in range(count)]

    async def claim(self, logs: Logs | None = None, name: str = "one") -> LogHold:
        """Claim the topic's log."""
        return await (logs or self.one).claim(self.log, name)

    async def publish(
        self,
        hold: LogHold,
        count: int = 1,
        shared: Shared = PLAIN,
        *,
        key: bytes | None = None,
        payloads: Sequence[bytes] | None = None,
        attributes: Sequence[bytes] = (),
    ) -> list[LogKey]:
        """Append messages as one entry, or several if they need more; return their ids."""
        ids = self.ids(count if payloads is None else len(payloads))
        added = self.entries(hold, ids, shared, payloads, attributes)
        if key is not None:
            added[0].marks = (Mark(1, key, ids[0], ids[-1], BODY),)
        size = sum(entry.payload_bytes() for entry in added)
        await hold.append(added, messages=len(ids), payload_bytes=size)
        return ids

    @staticmethod
    def entries(
        hold: LogHold,
        ids: Sequence[LogKey],
        shared: Shared,
        payloads: Sequence[bytes] | None = None,
        attributes: Sequence[bytes] = (),
    ) -> list[Entry]:
        """Return messages as entries."""
        several = payloads or [payload_of(key) for key in ids]
        return entries_of(hold.epoch, ids, several, shared, attributes)

    async def rows(
        self,
        after: LogKey = LOG_KEY_MIN,
        through: LogKey | None = None,
        *,
        log: LogId | None = None,
        bytes_max: int = ALL,
    ) -> list[Row]:
        """Read a log from storage through the other node."""
        reader = self.other.reader(log or self.log, after, through)
        out: list[Row] = []
        while not reader.ended:
            out += rows_of(await reader.next(bytes_max))
        return [row for row in out if row[0] > after and row[0] <= (through or LOG_KEY_MAX)]

    async def read(self, log: LogId | None = None) -> list[LogKey]:
        """Return the ids of a log's messages."""
        return [row[0] for row in await self.rows(log=log)]

    async def hidden(self) -> list[LogKey]:
        """Return the ids of messages that were rolled back."""
        return [row[0] for row in await self.rows() if row[3]]

    async def clear(self, hold: LogHold, pages_max: int = 2) -> int:
        """Remove the pages below the floor, in slices; return the number of removed messages."""
        went, more = 0, True
        while more:
            some, more = await sweep.clear_below_floor(self.one.resolver, hold, pages_max)
            went += some
        return went


def rows_of(found: Sequence[Entry]) -> list[Row]:
    """Return messages of entries."""
    return [
        (key, entry.payload(place), entry.pointer, entry.is_rolled_back(key))
        for entry in found
        if not entry.is_stub
        for place, key in enumerate(entry.ids())
    ]


def attributes_of(found: Sequence[Entry]) -> dict[LogKey, bytes]:
    """Return the attributes of those messages of entries that have any."""
    return {
        entry.id(place): each for entry in found for place, each in entry.attributes(0, entry.count)
    }


async def all_of(reader: LogReader) -> list[Entry]:
    """Return the remaining entries of a reader."""
    out: list[Entry] = []
    while not reader.ended:
        out += await reader.next(ALL)
    return out


async def backwards(reader: LogReader, cells_max: int, bytes_max: int = ALL) -> list[LogKey]:
    """Return the ids of a reader's messages, backwards."""
    out: list[LogKey] = []
    while not reader.ended:
        for entry in await reader.before(cells_max, bytes_max):
            out += entry.ids()[::-1]
    return out


class LogSuite:
    """The fixtures that all suites share."""

    @pytest.fixture
    async def table(self, harness: TableHarness) -> AsyncIterator[Table]:
        """Give the opened table."""
        opened = await harness.open()
        yield opened
        await opened.close()

    @pytest.fixture
    def bench(self, table: Table) -> Bench:
        """Give a topic, and two nodes."""
        topic = TopicId("contract", f"log-{secrets.token_hex(6)}")
        one, other = (Logs(table, SystemClock(), bounds=SMALL) for _ in "12")
        return Bench(table, topic, one, other)

    @pytest.fixture
    async def hold(self, bench: Bench) -> LogHold:
        """Give a hold of the first node."""
        return await bench.claim()


async def hold_that_dies_at_its_roll(bench: Bench) -> LogHold:
    """Claim the log for a node that dies after it sealed a page, before it made the next one."""
    table = HookedTable(bench.table)
    hold = await bench.claim(Logs(table, SystemClock(), bounds=SMALL))
    table.on("make", failing(Fenced("the node died before it made the next page")))
    return hold

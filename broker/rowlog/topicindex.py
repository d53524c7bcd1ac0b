"""A broker topic as the index, in place of the table's rows: hints are published, and read from a time on.

::

    01 | subscription: length int16, UTF-8 | timestamp int64 | seq int64 | row: length int32, bytes | data

Nothing can be removed from a topic. This process remembers which hints are settled, and skips them. It stores a position
for each subscription: a time before which all hints are settled. The next processor reads from there. The row decides here,
too: a hint that is read again costs one reading of its row.

A sweep reads the topic once, from the position on, and publishes hints again for open messages that have none there. It does
not use the hints that this process remembers: another process may have settled one and stored a later position.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Sequence
from typing import TYPE_CHECKING, Final

from broker.client import Client
from broker.errors import BrokerError, UnavailableError
from broker.model import Message as Hint
from broker.rowlog.cell_keys import Entry
from broker.rowlog.row_table import NotWritten, TableError, WriteUnknown

if TYPE_CHECKING:
    from broker.rowlog.rowlog import RowLog

PAGE: Final = 1_000
SETTLED_MAX: Final = 200_000
"""How many settled hints an index remembers, and how many hints a sweep compares with."""
NOTE_S: Final = 5.0
"""How many seconds lie between two storings of the positions, at least."""
_head = struct.Struct(">BH")
_place = struct.Struct(">qqi")


def encode_hint(entry: Entry) -> bytes:
    """Write an entry as the payload of a topic's message."""
    name = entry.subscription.encode()
    place = _place.pack(entry.timestamp, entry.seq, len(entry.row))
    return b"".join((_head.pack(1, len(name)), name, place, entry.row, entry.data))


def decode_hint(payload: bytes) -> Entry | None:
    """Read an entry; None: the payload is no hint, or of a later version."""
    try:
        version, length = _head.unpack_from(payload)
        at = _head.size + length
        timestamp, seq, row_bytes = _place.unpack_from(payload, at)
        begin = at + _place.size
        if version != 1 or row_bytes < 0 or begin + row_bytes > len(payload):
            return None
        name = payload[_head.size : at].decode()
    except (struct.error, UnicodeDecodeError):
        return None
    end = begin + row_bytes
    return Entry(0, name, timestamp, seq, payload[begin:end], payload[end:])


class topic_index:  # noqa: N801 - It is called as a function is.
    """Make a topic the index of a RowLog: ``RowLog(..., index=topic_index(client, "app/mq"))``."""

    def __init__(self, client: Client, topic: str) -> None:
        """Use an existing topic, through an open client."""
        self.client = client
        self.topic = topic

    def __call__(self, log: RowLog) -> TopicIndex:
        """Return the index of a rowlog."""
        return TopicIndex(self.client, self.topic, log)


class TopicIndex:
    """Implements Index over a topic."""

    def __init__(self, client: Client, topic: str, log: RowLog) -> None:
        """Store positions in the meta rows of ``log``."""
        self._client = client
        self._topic = topic
        self._log = log
        self._open: dict[Entry, dict[bytes, int]] = {}
        """For each entry that is not settled, the ids of its hints and the times of their publication."""
        self._settled: OrderedDict[bytes, None] = OrderedDict()
        self._read_from: dict[str, int] = {}
        """When the last reading of a subscription began, ms since 1970, once it was read from its position on."""
        self._noted_at = 0.0

    async def add(self, entries: Sequence[Entry]) -> None:
        """Publish entries in one request."""
        try:
            await self._client.publish(self._topic, [encode_hint(each) for each in entries])
        except BrokerError as error:
            raise _as_table_error(error) from error

    async def remove(self, entries: Sequence[Entry]) -> None:
        """Remember that entries are settled."""
        for entry in entries:
            for message_id in self._open.pop(_key(entry), ()):
                self._settled[message_id] = None
        while len(self._settled) > SETTLED_MAX:
            self._settled.popitem(last=False)

    async def flush(self) -> None:
        """Store how far all entries are settled, if NOTE_S have passed since the last time."""
        now = self._log.clock.monotonic()
        if now < self._noted_at + NOTE_S:
            return
        self._noted_at = now
        margin = (await self._log.meta.setup()).settings.scan_margin_ms
        for name, read_from in list(self._read_from.items()):  # A scan adds to it meanwhile.
            mine = [times for entry, times in self._open.items() if entry.subscription == name]
            oldest = min((time for times in mine for time in times.values()), default=read_from)
            await self._log.meta.set_position(name, max(min(oldest, read_from) - margin, 0))

    async def pages(self, subscription: str, since: int) -> AsyncIterator[list[Entry]]:
        """Yield entries that are not known to be settled."""
        began = self._log.clock.now_ms()
        async for hints in self._hints(since or await self._log.meta.position(subscription)):
            page = []
            for hint, entry in hints:
                if entry.subscription == subscription and hint.id not in self._settled:
                    self._open.setdefault(_key(entry), {})[hint.id] = hint.timestamp_ms
                    page.append(entry)
            if page:
                yield page
        if not since or subscription in self._read_from:
            self._read_from[subscription] = began

    async def count(self, subscription: str, limit: int) -> tuple[int, int]:
        """Count hints from the position on. It counts too many: other processes may have settled some."""
        found: set[Entry] = set()
        async for hints in self._hints(await self._log.meta.position(subscription)):
            found |= {
                _key(entry)
                for hint, entry in hints
                if entry.subscription == subscription and hint.id not in self._settled
            }
            if len(found) >= limit:
                break
        return len(found), min((each.timestamp for each in found), default=0)

    async def inventory(self) -> TopicInventory:
        """Read all hints that the next processors will read."""
        setup = await self._log.meta.fresh()
        young = self._log.clock.now_ms() - setup.settings.scan_margin_ms
        positions = {each.id: await self._log.meta.position(each.id) for each in setup.current}
        there: set[Entry] = set()
        if positions:
            async for hints in self._hints(min(positions.values())):
                there |= {
                    _key(entry)
                    for hint, entry in hints
                    if hint.timestamp_ms >= positions.get(entry.subscription, hint.timestamp_ms)
                }
                if len(there) >= SETTLED_MAX:
                    break  # Entries beyond are published again, which does no harm.
        return TopicInventory(there, young)

    async def _hints(self, start: int | bytes) -> AsyncIterator[list[tuple[Hint, Entry]]]:
        """Yield the topic's hints from a time on (ms since 1970; 0: from the first), page by page."""
        inclusive = True
        while True:
            try:
                found = await self._client.poll(
                    self._topic, start or None, inclusive=inclusive, limit=PAGE
                )
            except BrokerError as error:
                raise _as_table_error(error) from error
            yield [
                (hint, entry) for hint in found if (entry := decode_hint(hint.payload)) is not None
            ]
            if len(found) < PAGE:
                return
            start, inclusive = found[-1].id, False


class TopicInventory:
    """The hints of a topic at one moment. Implements Inventory."""

    def __init__(self, there: set[Entry], young: int) -> None:
        """Keep the hints ``there``. Entries of time ``young`` (ms since 1970) or later may have been published since."""
        self._there = there
        self._young = young

    async def lacks(self, entries: Collection[Entry]) -> set[Entry]:
        """Return the older entries that have no hint.

        A younger one is left to the next sweep: its hint was published before its row was put, but perhaps
        after the topic was read.
        """
        return {
            each
            for each in entries
            if each.timestamp < self._young and _key(each) not in self._there
        }


def _key(entry: Entry) -> Entry:
    """Return an entry without shard and data."""
    return entry._replace(shard=0, data=b"")


def _as_table_error(error: BrokerError) -> TableError:
    if isinstance(error, UnavailableError) and error.outcome == "refused":
        return NotWritten(f"the index topic: {error.message.removesuffix('.')}")
    return WriteUnknown(f"the index topic: {error.message.removesuffix('.')}")

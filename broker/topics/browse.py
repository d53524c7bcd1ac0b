"""Browse a topic: show the stored messages without the rules of consuming.

Browsing shows every message that has not expired: also those that were rolled back, those of open transactions, and
references. Behind each reference it shows the payloads that the reference stands for. Entries are ordered by
message id, and a reference (the second half of its id is zero) comes before its payloads.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Final, NamedTuple

from broker.http import budget
from broker.http.budget import Usage
from broker.long_work import Pace
from broker.model import (
    LOG_KEY_BYTES,
    LOG_KEY_MAX,
    LOG_KEY_MIN,
    MESSAGE_ID_BYTES,
    LogKey,
    MessageId,
    Snapshot,
    Topic,
    first_log_key_at,
    id_after,
    log_key_after,
    log_key_before,
)
from broker.storage.entry import ENTRY_BYTES_MAX, Entry
from broker.storage.keys import LogId
from broker.storage.log_reader import LogReader
from broker.topics.fetch import (
    FetchAction,
    expires_at_ms,
    first_blocking,
    judge,
    lives,
    oldest_live,
)
from broker.topics.payload_reader import PayloadReader, shorter
from broker.topics.surroundings import Surroundings

PAGE_BYTES_MAX = 2 * 1024 * 1024
"""A page ends with the message that reaches this size."""
AT_ONCE_BYTES: Final = 512 * 1024
"""The bytes that one read asks storage for. The copy of a message can't be interrupted."""
COUNTED_AT_ONCE: Final = 1024 * 1024
"""The request's usage counts the bytes of a page in steps of this size."""
_ID_MAX = b"\xff" * MESSAGE_ID_BYTES


class PayloadKind(enum.StrEnum):
    """Where a message's payload lies."""

    INLINE = "inline"
    STORED = "stored"
    REFERENCE = "reference"


class TransactionState(enum.StrEnum):
    """The state of a message's transaction, as far as the log itself knows it."""

    NONE = "none"
    PUBLISHED = "published"
    ROLLED_BACK = "rolled_back"


class BrowseQuery(NamedTuple):
    """Selects messages from ``start`` (inclusive) to ``end`` (exclusive): ids, times in ms, or None for no bound.

    Of a longer payload only the first ``payload_bytes_max`` bytes are kept. ``generation`` is that of the bounds;
    None: any.
    """

    start: MessageId | int | None = None
    end: MessageId | int | None = None
    limit: int = 100
    descending: bool = False
    snapshot: Snapshot | None = None
    payload_bytes_max: int | None = None
    generation: int | None = None


class BrowseEntry(NamedTuple):
    """One message as it is stored. ``consumable`` is None without a snapshot.

    ``attributes`` has its key and headers, encoded (wire.attributes), and is empty if it has none. ``size`` is the
    size of its payload in bytes; ``payload`` may be only the beginning of that.
    """

    id: MessageId
    payload: bytes | memoryview | None
    kind: PayloadKind
    tx_state: TransactionState
    pointer: int | None
    expires_at_ms: int
    consumable: bool | None
    attributes: bytes = b""
    size: int = 0


class EntryPage(NamedTuple):
    """Entries of one generation in the requested order.

    ``next`` continues where the page ends: as ``start`` when ascending, as ``end`` when descending. It is None
    at the end of the range. A page that is full by its bytes always has a ``next``, even if no message follows: to
    find out, this code would have to fetch a message.
    """

    entries: list[BrowseEntry]
    next: MessageId | None
    generation: int = 0


async def browse(
    around: Surroundings, topic: Topic, query: BrowseQuery, usage: Usage | None = None
) -> EntryPage:
    """Return one page.

    ``usage`` is the request's: it counts the entries read, and the payloads as REPLY_BYTES, which the caller gives
    back.

    Raises:
        Unavailable: storage gives stale reads, and keeps doing so.
        Overloaded: requests hold too much memory.
    """
    usage = usage or Usage(None)
    bound = oldest_live(topic, around.clock.now_ms()) + LOG_KEY_MIN
    low = max(_message_id(query.start, bytes(MESSAGE_ID_BYTES)), bound)
    high = _message_id(query.end, _ID_MAX)
    browser = _Browser(around, topic, query, low, high, usage)
    page = await _collect(browser, query, usage)
    page = page._replace(generation=topic.generation)
    if query.snapshot is None or not page.entries:
        return page
    last = max(page.entries[0].id, page.entries[-1].id)[:LOG_KEY_BYTES]
    blocked_at = await browser.first_blocked(
        query.snapshot, log_key_before(bound[:LOG_KEY_BYTES]), last
    )
    return page._replace(entries=[_as_blocked(entry, blocked_at) for entry in page.entries])


async def _collect(browser: _Browser, query: BrowseQuery, usage: Usage) -> EntryPage:
    entries: list[BrowseEntry] = []
    size = uncounted = 0
    pace = Pace()
    async with aclosing(browser.entries()) as found:
        async for entry in found:
            await pace.step()
            if len(entries) >= query.limit:
                following = entries[-1].id if query.descending and entries else entry.id
                return EntryPage(entries, following)
            entries.append(entry)
            size += entry.size + len(entry.attributes)
            uncounted += len(entry.payload or b"") + len(entry.attributes)
            if uncounted >= COUNTED_AT_ONCE:
                usage.take(budget.BudgetKind.REPLY_BYTES, uncounted)
                uncounted = 0
            if size > PAGE_BYTES_MAX:
                return EntryPage(entries, entry.id if query.descending else id_after(entry.id))
    return EntryPage(entries, None)


def _as_blocked(entry: BrowseEntry, blocked_at: LogKey | None) -> BrowseEntry:
    """Return ``entry`` as it is for a consumer that is blocked at a message."""
    if blocked_at is None or entry.id[:LOG_KEY_BYTES] < blocked_at:
        return entry
    return entry._replace(consumable=False)


def _message_id(value: MessageId | int | None, absent: MessageId) -> MessageId:
    if value is None:
        return absent
    return first_log_key_at(value) + LOG_KEY_MIN if isinstance(value, int) else value


class _Browser:
    """The answer of one query, as entries."""

    def __init__(
        self,
        around: Surroundings,
        topic: Topic,
        query: BrowseQuery,
        low: MessageId,
        high: MessageId,
        usage: Usage,
    ) -> None:
        self._around = around
        self._topic = topic
        self._query = query
        self._low = low
        self._high = high
        self._usage = usage
        self._payload_bytes_max = query.payload_bytes_max
        self._bytes_max = min(AT_ONCE_BYTES, around.settings.page_bytes_max)
        self._pace = Pace()

    async def entries(self) -> AsyncGenerator[BrowseEntry, None]:
        """Yield the entries in ``[low, high)``, in the requested order."""
        if self._low >= self._high:
            return
        first, last = self._low[:LOG_KEY_BYTES], min(self._high[:LOG_KEY_BYTES], LOG_KEY_MAX)
        log = LogId(self._topic.id, self._topic.generation)
        reader = self._around.logs.reader(log, log_key_before(first), last)
        async with aclosing(self._entries_of(reader)) as entries:
            async for stored in entries:
                places = self._places(stored, first, last)
                attributes = _attributes_in(stored, places)
                for place in places:
                    each = attributes.get(place, b"")
                    async with aclosing(self._expand(stored, place, each)) as expanded:
                        async for entry in expanded:
                            if self._low <= entry.id < self._high:
                                yield entry

    async def _entries_of(self, reader: LogReader) -> AsyncGenerator[Entry, None]:
        cells_max = min(self._query.limit + 1, self._around.settings.page_messages_max)
        while not reader.ended:
            async with self._turn():
                found = (
                    await reader.before(cells_max, self._bytes_max)
                    if self._query.descending
                    else await reader.next(self._bytes_max, cells_max)
                )
            self._usage.take(budget.BudgetKind.ROWS, len(found))
            read = sum(entry.content_bytes for entry in found)
            self._usage.take(budget.BudgetKind.REPLY_BYTES, read)
            try:
                found.reverse()
                while found:
                    yield found.pop()  # Without a name here, so that each is freed before the next read.
            finally:
                found.clear()
                self._usage.give(budget.BudgetKind.REPLY_BYTES, read)

    def _places(self, entry: Entry, first: LogKey, last: LogKey) -> range:
        """Return the places of an entry's messages in ``[first, last]``, in the requested order."""
        self._around.gaps.note(self._topic.id, entry)
        places = range(entry.place_at(first), entry.place_after(last))
        return places[::-1] if self._query.descending else places

    async def _expand(
        self, stored: Entry, place: int, attributes: bytes
    ) -> AsyncGenerator[BrowseEntry, None]:
        """Yield one message, or a reference and the payloads that it stands for."""
        key = stored.id(place)
        payload = None if stored.is_reference else stored.payload_view(place)
        own = self._entry(stored, key, LOG_KEY_MIN, payload, stored.lifetime_ms)
        if own is None:
            return  # A reference expires with all the messages that it shows.
        if payload is not None:
            yield own._replace(attributes=attributes)
            return
        if not self._query.descending:
            yield own
        async with aclosing(self._expand_reference(stored, key)) as payloads:
            async for entry in payloads:
                yield entry
        if self._query.descending:
            yield own

    async def _expand_reference(
        self, reference: Entry, key: LogKey
    ) -> AsyncGenerator[BrowseEntry, None]:
        assert reference.number is not None
        after, through = self._payload_bounds(key)
        reader = PayloadReader(self._around, self._topic, reference.number, after, through)
        async with aclosing(self._payload_entries(reader)) as entries:
            async for stored in entries:
                life_ms = shorter(reference.lifetime_ms, stored.lifetime_ms)
                places = self._places(stored, log_key_after(after), through)
                attributes = _attributes_in(stored, places)
                for place in places:
                    entry = self._entry(
                        reference, key, stored.id(place), stored.payload_view(place), life_ms
                    )
                    if entry is not None:
                        yield entry._replace(attributes=attributes.get(place, b""))

    async def _payload_entries(self, reader: PayloadReader) -> AsyncGenerator[Entry, None]:
        if self._query.descending:
            payloads = reader.backwards(self._query.limit + 1, self._bytes_max)
            async with aclosing(payloads) as entries:
                while True:
                    async with self._turn():
                        entry = await anext(entries, None)
                    if entry is None:
                        return
                    yield entry
        while not reader.ended:
            async with self._turn():
                found = await reader.next(self._bytes_max, self._query.limit + 1)
            for entry in found:
                yield entry

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        """Read while no other browse reads, after the publishes that wait for the event loop."""
        async with self._around.browsing:
            await self._pace.pause()
            yield

    def _payload_bounds(self, key: LogKey) -> tuple[LogKey, LogKey]:
        after, through = LOG_KEY_MIN, LOG_KEY_MAX
        if key == self._low[:LOG_KEY_BYTES]:
            after = log_key_before(self._low[LOG_KEY_BYTES:])
        if key == self._high[:LOG_KEY_BYTES]:
            through = log_key_before(self._high[LOG_KEY_BYTES:])
        return after, through

    def _entry(
        self,
        stored: Entry,
        key: LogKey,
        payload_key: LogKey,
        payload: memoryview | None,
        lifetime_ms: int | None,
    ) -> BrowseEntry | None:
        if not lives(self._topic, key, lifetime_ms, self._around.clock.now_ms()):
            return None
        is_rolled_back = stored.is_rolled_back(key)
        size = 0 if payload is None else len(payload)
        return BrowseEntry(
            key + payload_key,
            self._shown_part(payload),
            _kind(payload_key, payload),
            _transaction_state(stored.pointer, is_rolled_back),
            stored.pointer,
            expires_at_ms(key, lifetime_ms, self._topic.ttl_ms),
            self._consumable(stored.pointer, is_rolled_back),
            size=size,
        )

    def _shown_part(self, payload: memoryview | None) -> bytes | memoryview | None:
        """Return the part of a payload to show. A large one is not copied: it is most of its entry."""
        if payload is None:
            return None
        kept = payload[: self._payload_bytes_max]
        return kept if len(kept) > ENTRY_BYTES_MAX else bytes(kept)

    def _consumable(self, pointer: int | None, is_rolled_back: bool) -> bool | None:
        snapshot = self._query.snapshot
        if snapshot is None:
            return None
        return not is_rolled_back and judge(pointer, snapshot) is FetchAction.TAKE

    async def first_blocked(
        self, snapshot: Snapshot, after: LogKey, through: LogKey
    ) -> LogKey | None:
        """Return the message in ``(after, through]`` at which a consumer with this snapshot is blocked.

        The first open transaction behind the consumer's own beginning blocks it, wherever the page lies.
        """
        now_ms = self._around.clock.now_ms()
        after = max(after, log_key_before(first_blocking(snapshot, now_ms)))
        log = LogId(self._topic.id, self._topic.generation)
        reader = self._around.logs.reader(log, after, through)
        while not reader.ended:
            async with self._turn():
                found = await reader.next(self._bytes_max)
            self._usage.take(budget.BudgetKind.ROWS, len(found))
            for entry in found:
                if judge(entry.pointer, snapshot) is not FetchAction.BLOCK:
                    continue
                live = oldest_live(self._topic, self._around.clock.now_ms(), entry.lifetime_ms)
                for key in entry.ids()[max(entry.place_after(after), entry.place_at(live)) :]:
                    if not entry.is_rolled_back(key):
                        return key
        return None


def _attributes_in(entry: Entry, places: range) -> dict[int, bytes]:
    """Return the attributes of the messages at some places. Messages without attributes are left out."""
    return dict(entry.attributes(min(places), max(places) + 1)) if places else {}


def _kind(payload_key: LogKey, payload: memoryview | None) -> PayloadKind:
    if payload is None:
        return PayloadKind.REFERENCE
    return PayloadKind.INLINE if payload_key == LOG_KEY_MIN else PayloadKind.STORED


def _transaction_state(pointer: int | None, is_rolled_back: bool) -> TransactionState:
    if pointer is None:
        return TransactionState.NONE
    return TransactionState.ROLLED_BACK if is_rolled_back else TransactionState.PUBLISHED

"""Counting a log's messages up to an id, and finding the id of the n-th message, from the heads of pages.

A head has the totals of its log up to its page's end, and the totals of a sealed page never change. So this module
keeps the heads of a log, and finds the page of the n-th message by bisection. It reads only the heads of newer
pages again. For recently used pages it also keeps the last ids and counts of entries. For a place inside an entry
it reads that entry::

    heads    ─── 7,212 ─── 14,100 ─── 21,345 ─── …      one for 2 MiB
    entries             └ 57 ─ 114 ─ 171 ─ …            of a page in which a range begins or ends
    messages                  └ 115, 116, …             of one entry

Expired and rolled-back messages count until their page is removed. A reference counts as all the messages that it
stands for, and is not divided. Bytes are bytes of payloads; inside a page they are estimated from the size of
entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.errors import Unavailable
from broker.model import LOG_KEY_MIN, MESSAGE_ID_BYTES, LogKey, log_key_after, log_key_before
from broker.storage import head as heads
from broker.storage.entry import Entry
from broker.storage.head import Head
from broker.storage.keys import LogId, page_key, page_of, space_of
from broker.storage.log import Logs
from broker.storage.log_reader import LogReader
from broker.storage.reference import messages_of
from broker.storage.root import Root, RootState

HEADS_AT_ONCE: Final = 1000
PAGES_KEPT: Final = 8
"""For how many pages of one log the counts of entries are kept."""
_FRAME_BYTES: Final = MESSAGE_ID_BYTES + 3
"""The bytes of an item beside its payload, if that has 64 to 8,191 bytes; else one byte less or more."""


class LogCount(NamedTuple):
    """How many messages and payload bytes a log has up to an id."""

    messages: int = 0
    bytes: int = 0

    def plus(self, other: LogCount) -> LogCount:
        """Return the sum."""
        return LogCount(self.messages + other.messages, self.bytes + other.bytes)


class Numbering:
    """The counts of one log, as it was at the last ``refresh``."""

    def __init__(self, logs: Logs, log: LogId) -> None:
        """Begin as for an empty log; ``refresh`` reads the log."""
        self._logs = logs
        self.log = log
        self._forget()

    def _forget(self) -> None:
        self._base: LogCount | None = None
        """The count before the first page; None: not read yet."""
        self._pages: list[LogKey] = []
        self._ends: list[LogKey] = []
        self._counts: list[LogCount] = []
        """``_pages``, ``_ends`` and ``_counts`` have one value for each sealed page: key, last id, count there."""
        self._open: tuple[LogKey, Head] | None = None
        self._entries: OrderedDict[LogKey, _Entries] = OrderedDict()
        self.floor: LogKey = LOG_KEY_MIN
        """The last id below the log's floor: it can't be read any more."""

    @property
    def size(self) -> int:
        """How many pages and entries are kept in memory."""
        return len(self._pages) + sum(len(known.lasts) for known in self._entries.values())

    def pages_between(self, after: LogKey, through: LogKey) -> int:
        """Return how many sealed pages end in ``(after, through]``."""
        return bisect_right(self._ends, through) - bisect_right(self._ends, after)

    @property
    def tail(self) -> LogKey:
        """The last id of the log; all later messages have higher ones. It is the floor if the log is empty."""
        if self._open is not None:
            return max(self._open[1].pointer, self.floor)
        return max(self._ends[-1], self.floor) if self._ends else self.floor

    @property
    def all(self) -> LogCount:
        """The count of the whole log."""
        if self._open is not None:
            return LogCount(self._open[1].total, self._open[1].bytes)
        return self._counts[-1] if self._counts else self._base or LogCount()

    # Reading heads.

    async def refresh(self) -> None:
        """Read the heads that are not known yet.

        Raises:
            Unavailable: storage does not answer, or gives only stale reads.
        """
        pauses = self._logs.resolver.pauses()
        while not await self._is_read():
            await pauses.again()

    async def _is_read(self) -> bool:
        """Read once; False: a read was stale."""
        root = await self._logs.root(self.log)
        is_other = root is None or root.generation != self.log.generation
        if root is None or is_other or root.state is RootState.DELETED:
            self._forget()
            return True
        tail = await self._logs.find_tail(self.log, root)
        if tail is None:
            return False
        await self._raise_floor(root)
        following = log_key_after(self._ends[-1]) if self._ends else root.floor
        if tail.page < following or not await self._sealed_between(following, tail.page):
            return False
        self._open = None if tail.head is None else (tail.page, tail.head)
        return True

    async def _raise_floor(self, root: Root) -> None:
        floor = log_key_before(root.floor) if root.floor > LOG_KEY_MIN else LOG_KEY_MIN
        if floor > (self._ends[-1] if self._ends else self.floor):
            self._forget()  # Pages that were never read, or were not sealed then, are gone meanwhile.
        if self._base is None:
            before = None
            if root.floor > LOG_KEY_MIN:
                all_pages = root._replace(floor=LOG_KEY_MIN)
                before = await self._logs.page_at(self.log, log_key_before(root.floor), all_pages)
            self._base = (
                LogCount() if before is None else LogCount(before[1].total, before[1].bytes)
            )
        gone = bisect_left(self._pages, root.floor)
        if gone:
            self._base = self._counts[gone - 1]
            del self._pages[:gone], self._ends[:gone], self._counts[:gone]
        self.floor = floor

    async def _sealed_between(self, following: LogKey, tail: LogKey) -> bool:
        """Read the heads of sealed pages up to the tail; False if the chain has a gap: a read was stale."""
        resolver, space = self._logs.resolver, space_of(self.log)
        while following < tail:
            first, last = page_key(self.log, following), page_key(self.log, log_key_before(tail))
            found = await resolver.read(
                lambda first=first, last=last: self._logs.table.scan(  # type: ignore[misc]
                    space, first, last, limit=HEADS_AT_ONCE
                )
            )
            if not found:
                return False
            for key, cell in found:
                page, head = page_of(key), heads.decode(cell.value)
                if page != following or not head.is_sealed:
                    return False
                self._pages.append(page)
                self._ends.append(head.pointer)
                self._counts.append(LogCount(head.total, head.bytes))
                following = head.next
        return True

    # Queries.

    async def count(self, key: LogKey) -> LogCount:
        """Return the count up to an id, inclusive. Raises Unavailable."""
        if key >= self.tail:
            return self.all
        place = bisect_left(self._ends, key)
        before = self._before(place)
        page = self._page(place)
        if page is None or key < page or key <= self.floor:
            return before
        entries = await self._entries_of(place, page)
        found = bisect_left(entries.lasts, key)
        inside = entries.counts[found]
        if found == len(entries.lasts) or key < entries.firsts[found]:
            return before.plus(inside)
        one = await self._entry(entries, found)
        places = one.place_after(key)
        return before.plus(inside).plus(_part(one, places))

    def seek_page(self, most: LogCount) -> LogKey:
        """Return the end of the last sealed page whose count is at most ``most``; the floor if there is none."""
        place = self._fitting(most)
        return self._ends[place - 1] if place else self.floor

    async def seek(self, most: LogCount) -> LogKey:
        """Return the last id whose count is at most ``most``; the floor if there is none. Raises Unavailable."""
        if self.all.messages <= most.messages and self.all.bytes <= most.bytes:
            return self.tail
        place = self._fitting(most)
        before, page = self._before(place), self._page(place)
        start = self.seek_page(most)
        if page is None:
            return start
        entries = await self._entries_of(place, page)
        left = LogCount(most.messages - before.messages, most.bytes - before.bytes)
        found = entries.fitting(left)
        if found:
            start = entries.lasts[found - 1]
        if found == len(entries.lasts):
            return start
        inside = entries.counts[found]
        one = await self._entry(entries, found)
        if one.is_reference or one.is_stub:
            return start
        each = max(len(one.items) // one.count, 1)
        places = min(
            left.messages - inside.messages, (left.bytes - inside.bytes) // each, one.count
        )
        return one.id(places - 1) if places > 0 else start

    async def next_id(self, key: LogKey) -> LogKey:
        """Return the id of the first message behind another one; the tail if there is none. Raises Unavailable."""
        place = bisect_right(self._ends, max(key, self.floor))
        page = self._page(place)
        if page is None or key >= self.tail:
            return self.tail
        entries = await self._entries_of(place, page)
        found = bisect_right(entries.lasts, key)
        if found == len(entries.lasts):
            return self.tail
        if key < entries.firsts[found]:
            return entries.firsts[found]
        one = await self._entry(entries, found)
        return entries.lasts[found] if one.is_stub else one.id(one.place_after(key))

    async def count_ever(self, key: LogKey) -> LogCount:
        """Return the count of all messages ever published up to an id. Raises Unavailable.

        Below the floor it is an upper bound.
        """
        if key >= self.floor:
            return await self.count(key)
        every_page = Root(self.log.generation, RootState.LIVE)
        found = await self._logs.page_at(self.log, key, every_page)
        if found is None:
            return LogCount()
        _, head = found
        return LogCount(head.total - (key < head.pointer), head.bytes)

    def _before(self, place: int) -> LogCount:
        if place:
            return self._counts[place - 1]
        return self._base or LogCount()

    def _page(self, place: int) -> LogKey | None:
        if place < len(self._pages):
            return self._pages[place]
        return None if self._open is None else self._open[0]

    def _fitting(self, most: LogCount) -> int:
        """Return how many whole sealed pages fit into ``most``. Both totals never fall."""
        by_messages = bisect_right(self._counts, most.messages, key=lambda count: count.messages)
        by_bytes = bisect_right(self._counts, most.bytes, key=lambda count: count.bytes)
        return min(by_messages, by_bytes)

    async def _entries_of(self, place: int, page: LogKey) -> _Entries:
        """Return the counts of a page's entries, after reading the new ones."""
        known = self._entries.setdefault(page, _Entries())
        self._entries.move_to_end(page)
        if len(self._entries) > PAGES_KEPT:
            self._entries.popitem(last=False)
        end = self._ends[place] if place < len(self._ends) else self.tail
        after = (
            known.lasts[-1] if known.lasts else log_key_before(page) if page > LOG_KEY_MIN else page
        )
        if after < end:
            reader = self._reader(after, end)
            while not reader.ended and reader.after < end:
                known.add(await reader.next(1 << 20))
            if not known.lasts or known.lasts[-1] < end:
                raise Unavailable("The page can't be read to its end at the moment. Try again.")
        return known

    def _reader(self, after: LogKey, through: LogKey) -> LogReader:
        reader = self._logs.reader(self.log, after, through)
        reader.gathers = False  # Counts need entries as they are stored, not joined.
        return reader

    async def _entry(self, entries: _Entries, place: int) -> Entry:
        after = entries.lasts[place - 1] if place else log_key_before(entries.firsts[0])
        reader = self._reader(after, entries.lasts[place])
        found: list[Entry] = []
        while not found and not reader.ended:
            found = await reader.next(1)
        if not found:
            raise Unavailable("The page was removed meanwhile. Try again.")
        return found[0]


class _Entries:
    """The entries of one page: their ids, and the counts before each and of all."""

    def __init__(self) -> None:
        self.firsts: list[LogKey] = []
        self.lasts: list[LogKey] = []
        self.counts: list[LogCount] = [LogCount()]

    def add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.firsts.append(entry.first)
            self.lasts.append(entry.last)
            self.counts.append(self.counts[-1].plus(_part(entry, entry.count)))

    def fitting(self, most: LogCount) -> int:
        """Return how many whole entries fit into ``most``."""
        by_messages = bisect_right(self.counts, most.messages, key=lambda count: count.messages)
        by_bytes = bisect_right(self.counts, most.bytes, key=lambda count: count.bytes)
        return max(min(by_messages, by_bytes) - 1, 0)


def _part(entry: Entry, places: int) -> LogCount:
    """Return the count of an entry's first ``places`` messages. A reference counts whole, or not at all."""
    if entry.is_reference:
        return LogCount(messages_of(entry)) if places else LogCount()
    share = len(entry.items) * places // entry.count
    return LogCount(places, max(share - _FRAME_BYTES * places, 0))

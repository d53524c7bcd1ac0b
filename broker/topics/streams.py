"""Replies that are read while they are sent, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Protocol

from broker.http.budget import BudgetKind, Hold
from broker.model import Message
from broker.slices import Slice
from broker.topics.pages import NO_PAGE, PollPage
from broker.topics.topic_reader import TopicReading

PAGE_BYTES: Final = 288 * 1024
"""What a reader who stands still holds in memory; smaller pages make fast readers slower. A thousand
messages of a quarter KiB fit into one."""
ROWS_BYTES: Final = 1 << 20
"""The same of a bulk read: what a batch of columns costs besides its rows is little then."""
COUNTED_BYTES_MIN: Final = 2 << 20
"""From so many bytes on, as of a single large message, a page is counted as long as its reader has not taken it."""

Form = Callable[[PollPage], Iterator[bytes | memoryview]]
"""Gives the pieces of a page for the wire, none empty."""


class PollStream:
    """A poll's reply. Its first page is read already; the others are read as they are asked for."""

    def __init__(
        self, reading: TopicReading, first: PollPage, source: PageSource, hold: Hold
    ) -> None:
        """Keep the reading and its first page; ``hold`` is the request's."""
        self._reading = reading
        self._first = first
        self._source = source
        self._hold = hold
        self.empty = not first.count
        """Whether there is no message."""

    @property
    def ended(self) -> bool:
        """Whether all that there is has been read."""
        return self._reading.ended

    @property
    def blocked_by(self) -> int | None:
        """The write pointer of the open transaction at which the reply ends, if it ends at one."""
        return self._reading.blocked_by

    @property
    def first(self) -> PollPage:
        """The first page; the whole reply if ``ended``."""
        return self._first

    async def blocks(self, form: Form = PollPage.block) -> AsyncIterator[bytes | memoryview]:
        """Yield each page in its form for the wire, without the final zero. Can be asked for once."""
        async for page in self._pages():
            for piece in form(page):
                yield piece

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Yield the messages, with their keys and headers. Can be asked for once, instead of ``blocks``."""
        async for page in self._pages():
            for found in page.messages():
                yield found

    async def _pages(self) -> AsyncIterator[PollPage]:
        """Yield the pages, and let other work go on where the reader is always ready for more."""
        mine = Slice()
        page, self._first = self._first, NO_PAGE  # A slow reader's stream holds one page.
        while True:
            counted = _count(page, self._hold)
            yield page
            if counted:
                self._hold.give(BudgetKind.REPLY_BYTES, counted)
            if self._reading.ended:
                return
            await mine.go_on()
            page = await self._source.next_page(self._reading)


class RowStream:
    """A bulk read: pages of messages. Its first page is read already; the others as they are asked for."""

    def __init__(
        self, reading: TopicReading, first: PollPage, source: PageSource, hold: Hold
    ) -> None:
        """Keep the bounded reading and its first page; ``hold`` is the request's."""
        self._reading = reading
        self._first: PollPage | None = first
        self._source = source
        self._hold = hold
        self._counted = 0
        self.blocked_by = None if first.count else reading.blocked_by
        """The write pointer of the open transaction because of which there is no message, if that is why."""

    async def next(self) -> PollPage | None:
        """Return the next page, which has messages; None at the end. No page is held on to.

        Raises:
            Unavailable, ClockSkew, BadRequest: what is left can't be read; see TopicState.next_page.
        """
        if self._counted:
            self._hold.give(BudgetKind.REPLY_BYTES, self._counted)
            self._counted = 0
        page, self._first = self._first, None
        while page is None or not page.count:
            if self._reading.ended:
                return None
            page = await self._source.next_page(self._reading, ROWS_BYTES)
        self._counted = _count(page, self._hold)
        return page


def _count(page: PollPage, hold: Hold) -> int:
    """Count what a large page has; return what was counted. Raises Overloaded."""
    if page.bytes < COUNTED_BYTES_MIN:
        return 0
    hold.take(BudgetKind.REPLY_BYTES, page.bytes)
    return page.bytes


class PageSource(Protocol):
    """Where a stream gets its next page: the topic's cache of the moment, or storage."""

    async def next_page(self, reading: TopicReading, bytes_max: int = PAGE_BYTES) -> PollPage:
        """Return the next page of a reading."""

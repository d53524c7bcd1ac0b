"""Stream replies: read a reply from the topic page by page while it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, Protocol

from broker.http.budget import BudgetKind, Usage
from broker.model import ShownMessage
from broker.topics.pages import NO_PAGE, PollPage
from broker.topics.topic_reader import TopicReading

PAGE_BYTES: Final = 288 * 1024
"""The memory that a stalled reader holds; smaller pages make fast readers slower. A thousand messages of a quarter
KiB fit into one page."""
BULK_BYTES: Final = 1 << 20
"""The same for a bulk read. At this size the fixed cost of a batch of columns is small."""
COUNTED_BYTES_MIN: Final = 2 << 20
"""The usage counts a page of at least this size, such as one large message, until its reader has taken it."""

COPIES: Final = 2
"""A bulk read holds its page as stored and in the columns of its reply."""

Form = Callable[[PollPage], Iterator[bytes | memoryview]]
"""Yields the pieces of a page for the wire; no piece is empty."""


class PollStream:
    """A poll's reply. Its first page is read already; each further page is read when the consumer asks for it."""

    def __init__(
        self, reading: TopicReading, first: PollPage, source: PageSource, usage: Usage
    ) -> None:
        """Keep the reading and its first page; ``usage`` is the request's."""
        self._reading = reading
        self._first = first
        self._source = source
        self._usage = usage
        self._counted = _count(first, usage)
        self.generation = reading.generation
        self.empty = not first.count
        """True if the reply has no message."""

    @property
    def ended(self) -> bool:
        """Return whether all messages of the reply have been read."""
        return self._reading.ended

    @property
    def blocked_by(self) -> int | None:
        """Return the write pointer of the open transaction at which the reply ends, if it ends at one."""
        return self._reading.blocked_by

    @property
    def first(self) -> PollPage:
        """Return the first page; it is the whole reply if ``ended``."""
        return self._first

    async def blocks(self, form: Form = PollPage.block) -> AsyncIterator[bytes | memoryview]:
        """Yield each page in its form for the wire, without the final zero. Call this only once."""
        async for page in self._pages():
            for piece in form(page):
                yield piece

    async def messages(self) -> AsyncIterator[Sequence[ShownMessage]]:
        """Yield the messages, with their keys and headers. Call this only once, and not after ``blocks``.

        A large message is a view of its page: keep none of them when you ask for the next ones.
        """
        async for page in self._pages():
            for found in page.messages():
                yield found

    async def _pages(self) -> AsyncIterator[PollPage]:
        """Yield the pages."""
        page, self._first = self._first, NO_PAGE  # A slow reader's stream holds one page.
        while True:
            yield page
            self._usage.give(BudgetKind.REPLY_BYTES, self._counted)
            if self._reading.ended:
                return
            page = await self._source.next_page(self._reading)
            self._counted = _count(page, self._usage)


class BulkStream:
    """A bulk read: pages of messages. Its first page is read already; each further page is read on request."""

    def __init__(
        self, reading: TopicReading, first: PollPage, source: PageSource, usage: Usage
    ) -> None:
        """Keep the bounded reading and its first page; ``usage`` is the request's."""
        self._reading = reading
        self._first: PollPage | None = first
        self._source = source
        self._usage = usage
        self._counted = _count(first, usage, COPIES)
        self.generation = reading.generation
        self.blocked_by = None if first.count else reading.blocked_by
        """The write pointer of the open transaction that blocks the read at its beginning, if one does."""

    async def next(self) -> PollPage | None:
        """Return the next page with messages; None at the end. The stream keeps no page.

        Raises:
            Unavailable, ClockSkew, BadRequest: the rest can't be read; see TopicState.next_page.
        """
        page, self._first = self._first, None
        while page is None or not page.count:
            self._usage.give(BudgetKind.REPLY_BYTES, self._counted)
            self._counted = 0
            if self._reading.ended:
                return None
            page = await self._source.next_page(self._reading, BULK_BYTES)
            self._counted = _count(page, self._usage, COPIES)
        return page


def _count(page: PollPage, usage: Usage, copies: int = 1) -> int:
    """Count the bytes of a large page in the usage; return the counted bytes. Raises Overloaded."""
    if page.bytes < COUNTED_BYTES_MIN:
        return 0
    usage.take(BudgetKind.REPLY_BYTES, copies * page.bytes)
    return copies * page.bytes


class PageSource(Protocol):
    """Gives a stream its next page, from the topic's present cache or from storage."""

    async def next_page(self, reading: TopicReading, bytes_max: int = PAGE_BYTES) -> PollPage:
        """Return the next page of a reading."""

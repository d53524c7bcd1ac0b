"""Replies that are read while they are sent, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from broker.model import Message
from broker.topics.pages import NO_PAGE, Page
from broker.topics.reading import Reading

PAGE_BYTES: Final = 288 * 1024
"""What a reader who stands still holds in memory; smaller pages make fast readers slower. A thousand
messages of a quarter KiB fit into one."""
ROWS_BYTES: Final = 1 << 20
"""The same of a bulk read: what a batch of columns costs besides its rows is little then."""


class PollStream:
    """A poll's reply. Its first page is read already; the others are read as they are asked for."""

    def __init__(self, reading: Reading, first: Page, source: PageSource) -> None:
        """Keep the reading and its first page."""
        self._reading = reading
        self._first = first
        self._source = source
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
    def first(self) -> Page:
        """The first page; the whole reply if ``ended``."""
        return self._first

    async def blocks(self, form: Callable[[Page], bytes] = Page.block) -> AsyncIterator[bytes]:
        """Yield each page in its form for the wire, without the final zero. Can be asked for once."""
        block, self._first = form(self._first), NO_PAGE  # A slow reader's stream holds one page.
        if block:
            yield block
        while not self._reading.ended:
            block = form(await self._source.next_page(self._reading))
            if block:
                yield block

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Yield the messages, with their keys and headers. Can be asked for once, instead of ``blocks``."""
        found, self._first = self._first.messages(), NO_PAGE
        if found:
            yield found
        while not self._reading.ended:
            found = (await self._source.next_page(self._reading)).messages()
            if found:
                yield found


class RowStream:
    """A bulk read: pages of messages. Its first page is read already; the others as they are asked for."""

    def __init__(self, reading: Reading, first: Page, source: PageSource) -> None:
        """Keep the bounded reading and its first page."""
        self._reading = reading
        self._first: Page | None = first
        self._source = source
        self.blocked_by = None if first.count else reading.blocked_by
        """The write pointer of the open transaction because of which there is no message, if that is why."""

    async def next(self) -> Page | None:
        """Return the next page, which has messages; None at the end. No page is held on to.

        Raises:
            Unavailable, ClockSkew, BadRequest: what is left can't be read; see TopicState.next_page.
        """
        first, self._first = self._first, None
        if first is not None and first.count:
            return first
        while not self._reading.ended:
            page = await self._source.next_page(self._reading, ROWS_BYTES)
            if page.count:
                return page
        return None


class PageSource(Protocol):
    """Where a stream gets its next page: the topic's cache of the moment, or storage."""

    async def next_page(self, reading: Reading, bytes_max: int = PAGE_BYTES) -> Page:
        """Return the next page of a reading."""

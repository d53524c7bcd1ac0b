"""A cache of the heads of sealed pages: the first and last id of such a page never change.

So a reader that looks for an id in a known page needs no scan. The page may be gone since. Then the reader finds
fewer entries than the head counts, and reads the head again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final

from broker.model import LogKey
from broker.storage.head import Head
from broker.storage.keys import LogId

PAGES_MAX: Final = 16_384


class SealedPages:
    """A bounded number of heads. When it is full, it drops all heads of the log that it learned first."""

    def __init__(self, pages_max: int = PAGES_MAX) -> None:
        """Start empty."""
        self._logs: OrderedDict[LogId, tuple[list[LogKey], list[Head]]] = OrderedDict()
        self._left = pages_max

    def learn(self, log: LogId, page: LogKey, head: Head) -> None:
        """Keep the head of a page if it is sealed."""
        if not head.is_sealed:
            return
        pages, heads = self._logs.setdefault(log, ([], []))
        place = bisect_left(pages, page)
        if place < len(pages) and pages[place] == page:
            return
        pages.insert(place, page)
        heads.insert(place, head)
        self._left -= 1
        if self._left < 0:
            self._left += len(self._logs.popitem(last=False)[1][0])

    def find(self, log: LogId, key: LogKey) -> tuple[LogKey, Head] | None:
        """Return the page that an id lies in, if it is known."""
        known = self._logs.get(log)
        if known is None:
            return None
        pages, heads = known
        place = bisect_right(pages, key) - 1
        if place < 0 or key > heads[place].pointer:
            return None
        return pages[place], heads[place]

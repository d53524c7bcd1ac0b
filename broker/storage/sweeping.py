"""Removing pages that may not be read any more: whole pages, on every store (rule 8).

Below the floor, and in dead generations, a page's head turns to *gone* and its entries go with it in one
change; the head stays, so that no late make of the page can succeed. Entries with a lifetime of their own
are replaced by stubs, one change a page.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_after
from broker.storage import head as heads
from broker.storage.head import NO_END, Head, PageState
from broker.storage.hold import Hold
from broker.storage.keys import LogId, page_key, page_of, space_of
from broker.storage.resolve import Resolver

HEADS_AT_ONCE: Final = 256


@dataclasses.dataclass(slots=True)
class Ends:
    """When the lifetimes in a topic's pages end, as far as they were looked at."""

    generation: int
    looked_to: RowId = ROW_ID_MIN
    """Pages below were sealed when they were looked at."""
    pages: dict[RowId, int] = dataclasses.field(default_factory=dict)
    """By page: when its first lifetime ends, ms since 1970."""


async def raise_floor(hold: Hold, bound: RowId) -> None:
    """Raise the floor to the page that has the first id at or above ``bound``.

    A tail that lies below ``bound`` as a whole is sealed first, and the next page is the floor.

    Raises:
        BrokerError: see Hold.raise_floor.
    """
    if bound <= hold.root.floor:
        return
    page, head = (await hold.chain(hold.root.floor, bound))[-1]
    if head.pointer < bound and page == hold.page and head.cells:
        await hold.roll_expired()
        page = hold.page
    await hold.raise_floor(page)


async def clear_below_floor(resolver: Resolver, hold: Hold, pages_max: int) -> tuple[int, bool]:
    """Turn some pages below the floor to gone; return how many messages went, and whether more wait."""
    low, floor = hold.root.gone, hold.root.floor
    if low >= floor:
        return 0, False
    went, last = await _clear(resolver, hold.log, low, floor, pages_max)
    more = last is not None
    await hold.note_gone(floor if last is None else row_after(last))
    return went, more


async def _clear(
    resolver: Resolver, log: LogId, low: RowId, stop: RowId, pages_max: int
) -> tuple[int, RowId | None]:
    """Clear pages in ``[low, stop)``; return how many messages went, and the last page if more wait."""
    space = space_of(log)
    rows = await resolver.read(
        lambda: resolver.table.scan(
            space, page_key(log, low), page_key(log, stop), limit=pages_max + 1
        )
    )
    went, total = 0, None
    some = [(row, cell) for row, cell in rows if page_of(row) < stop]
    for row, cell in some[:pages_max]:
        head = heads.decode(cell.value)
        if head.state is not PageState.GONE:
            gone = heads.encode(
                head._replace(state=PageState.GONE, token=resolver.tokens().fresh())
            )
            if await resolver.swap(space, row, cell.value, gone, clear=True):
                went += head.cells if total is None else head.total - total
        total = head.total
    return went, page_of(some[pages_max - 1][0]) if len(some) > pages_max else None


async def clear_generation(
    resolver: Resolver, topic: TopicId, generation: int, after: RowId, pages_max: int
) -> tuple[int, RowId | None]:
    """Clear pages of a dead generation from ``after`` on; the last page is told if more wait."""
    log = LogId(topic, generation)
    return await _clear(resolver, log, after, ROW_ID_MAX, pages_max)


async def look_for_ends(resolver: Resolver, hold: Hold, known: Ends) -> None:
    """Look at pages that were not looked at since they were sealed, for lifetimes that end."""
    low = max(known.looked_to, hold.root.floor)
    for page in [page for page in known.pages if page < hold.root.floor]:
        del known.pages[page]
    while low <= hold.page:
        rows = await resolver.read(
            lambda low=low: resolver.table.scan(  # type: ignore[misc]
                space_of(hold.log),
                page_key(hold.log, low),
                page_key(hold.log, hold.page),
                limit=HEADS_AT_ONCE,
            )
        )
        for row, cell in rows:
            _note(known, page_of(row), heads.decode(cell.value))
        if len(rows) < HEADS_AT_ONCE:
            return
        low = row_after(page_of(rows[-1][0]))


def _note(known: Ends, page: RowId, head: Head) -> None:
    known.pages.pop(page, None)
    if head.first_end_ms != NO_END and head.state is not PageState.GONE:
        known.pages[page] = head.first_end_ms
    if head.is_sealed:
        known.looked_to = max(known.looked_to, row_after(page))


async def end_lives(hold: Hold, known: Ends, before_ms: int) -> int:
    """Replace entries by stubs in pages where a lifetime ended before a time; return in how many pages."""
    due = sorted(page for page, end_ms in known.pages.items() if end_ms < before_ms)
    for page in due:
        known.pages.pop(page)
        next_ms = await hold.end_lives(page, before_ms)
        if next_ms != NO_END:
            known.pages[page] = next_ms
    return len(due)

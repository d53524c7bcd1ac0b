"""Removing pages that may not be read any more: whole pages, on every store (rule 8).

Below the floor, and in dead generations, a page's head turns to *gone* and its entries go with it in one
change; the head stays, so that no late make of the page can succeed. Entries with a lifetime of their own
are replaced by stubs, one change a page.
"""

from __future__ import annotations

import dataclasses

from broker.errors import Unavailable
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_after
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.head import NO_END, Head, PageState
from broker.storage.hold import LogHold
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.resolve import Resolver
from broker.storage.root import RootState


@dataclasses.dataclass(slots=True)
class LifetimeEnds:
    """When the lifetimes in a topic's pages end, as far as they were looked at."""

    generation: int
    looked_to: RowId = ROW_ID_MIN
    """Pages below were sealed when they were looked at."""
    pages: dict[RowId, int] = dataclasses.field(default_factory=dict)
    """By page: when its first lifetime ends, ms since 1970."""


async def raise_floor(hold: LogHold, bound: RowId) -> None:
    """Raise the floor to the page that has the first id at or above ``bound``.

    A tail that lies below ``bound`` as a whole is sealed first, and the next page is the floor.

    Raises:
        BrokerError: see Hold.raise_floor.
    """
    if bound <= hold.root.floor:
        return
    await hold.roll_expired(bound)
    # Whatever was appended meanwhile: the floor is the page that can hold the bound, or the tail.
    pages = await hold.chain(hold.root.floor, bound)
    if pages:
        await hold.raise_floor(pages[-1][0])


async def clear_below_floor(resolver: Resolver, hold: LogHold, pages_max: int) -> tuple[int, bool]:
    """Turn some pages below the floor to gone; return how many messages went, and whether more wait."""
    page, floor = hold.root.gone, hold.root.floor
    went, before = 0, None
    for _ in range(pages_max):
        if page >= floor:
            break
        head, turned = await turn_gone(resolver, hold.log, page)
        if head is None:
            break
        if turned:
            went += head.total - (await _total_before(resolver, hold.log, page, head, before))
        before, page = head.total, head.next
    await hold.note_gone(min(page, floor))
    return went, page < floor


async def turn_gone(resolver: Resolver, log: LogId, page: RowId) -> tuple[Head | None, bool]:
    """Remove the entries of a page that may not be read any more; return its head, and whether they were there.

    The head stays, and says so: a page that is there can't be made.
    """
    space, row = space_of(log), page_key(log, page)
    tokens, pauses = resolver.tokens(), resolver.pauses()
    while True:
        cell = await resolver.head(space, row)
        head = None if cell is None else heads.decode(cell.value)
        if cell is None or head is None or head.state is PageState.GONE:
            return head, False
        gone = heads.encode(head._replace(state=PageState.GONE, token=tokens.fresh()))
        if await resolver.swap(space, row, cell.value, gone, clear=True):
            return head, True
        if not await pauses.next():
            raise Unavailable("Storage gave an outdated answer. Try again.")


async def _total_before(
    resolver: Resolver, log: LogId, page: RowId, head: Head, known: int | None
) -> int:
    """Return how many messages were published before a page."""
    if known is not None or head.prev >= page:
        return known or 0
    cell = await resolver.head(space_of(log), page_key(log, head.prev))
    return 0 if cell is None else heads.decode(cell.value).total


async def clear_generation(
    resolver: Resolver, topic: TopicId, generation: int, after: RowId, pages_max: int
) -> tuple[int, RowId | None]:
    """Clear pages of a dead generation from ``after`` on.

    Returns how many messages went, and the page at which the next slice begins; None at the end. A
    generation that lives, by its root, is left alone.
    """
    log = LogId(topic, generation)
    cell = await resolver.head(space_of(log), root_key(log))
    root = None if cell is None else roots.decode(cell.value)
    if root is None or (root.generation, root.state) <= (generation, RootState.LIVE):
        return 0, None
    rows = await resolver.read(
        lambda: resolver.table.scan(
            space_of(log), page_key(log, after), page_key(log, ROW_ID_MAX), limit=pages_max
        )
    )
    went, before = 0, None
    for row, _ in rows:
        head, turned = await turn_gone(resolver, log, page_of(row))
        if head is not None:
            if turned:
                went += head.total - await _total_before(resolver, log, page_of(row), head, before)
            before = head.total
    return went, row_after(page_of(rows[-1][0])) if len(rows) == pages_max else None


async def look_for_ends(resolver: Resolver, hold: LogHold, known: LifetimeEnds) -> None:
    """Look at pages that were not looked at since they were sealed, for lifetimes that end."""
    del resolver  # The hold reads its own chain.
    floor = hold.root.floor
    for page in [page for page in known.pages if page < floor]:
        del known.pages[page]
    for page, head in await hold.chain(max(known.looked_to, floor), hold.pointer):
        _note(known, page, head)


def _note(known: LifetimeEnds, page: RowId, head: Head) -> None:
    known.pages.pop(page, None)
    if head.first_end_ms != NO_END and head.state is not PageState.GONE:
        known.pages[page] = head.first_end_ms
    if head.is_sealed:
        known.looked_to = max(known.looked_to, row_after(page))


async def end_lives(hold: LogHold, known: LifetimeEnds, before_ms: int) -> int:
    """Replace entries by stubs in pages where a lifetime ended before a time; return in how many pages."""
    due = sorted(page for page, end_ms in known.pages.items() if end_ms < before_ms)
    for page in due:
        next_ms = await hold.end_lives(page, before_ms)
        if next_ms != NO_END:
            known.pages[page] = next_ms
        else:
            known.pages.pop(page, None)
    return len(due)

"""Removing pages that may not be read any more: whole pages, on every store (rule 8).

Below the floor, and in deleted generations, one change marks a page's head as *gone* and removes its entries.
The head stays, so that a late change that creates the page fails. Entries with a lifetime of their own are
replaced by stubs, with one change for each page.
"""

from __future__ import annotations

import dataclasses

from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey, TopicId, log_key_after
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.head import NO_END, Head, PageState
from broker.storage.hold import LogHold
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.resolve import Resolver
from broker.storage.root import RootState


@dataclasses.dataclass(slots=True)
class LifetimeEnds:
    """When the lifetimes in a topic's pages end, for the pages that were checked."""

    generation: int
    looked_to: LogKey = LOG_KEY_MIN
    """All pages below this key were sealed when they were checked."""
    pages: dict[LogKey, int] = dataclasses.field(default_factory=dict)
    """For each page: when its first lifetime ends, ms since 1970."""


async def raise_floor(hold: LogHold, bound: LogKey) -> None:
    """Raise the floor to the page that has the first id at or above ``bound``.

    If the whole tail lies below ``bound``, it is sealed first, and the next page becomes the floor.

    Raises:
        BrokerError: see LogHold.raise_floor.
    """
    if bound <= hold.root.floor:
        return
    await hold.roll_expired(bound)
    # The floor becomes the page that can hold the bound, or the tail; later appends don't change that.
    pages = await hold.chain(hold.root.floor, bound)
    if pages:
        await hold.raise_floor(pages[-1][0])


async def clear_below_floor(resolver: Resolver, hold: LogHold, pages_max: int) -> tuple[int, bool]:
    """Clear some pages below the floor.

    Returns how many messages were removed, and whether more pages are left to clear.
    """
    page, floor = hold.root.gone, hold.root.floor
    went, before = 0, None
    for _ in range(pages_max):
        if page >= floor:
            break
        head, turned = await turn_gone(resolver, hold.log, page)
        if head is None:
            # The store is damaged: this page is lost, and so is the way to the next one.
            floor = page
            break
        if turned:
            went += head.total - (await _total_before(resolver, hold.log, page, head, before))
        before, page = head.total, head.next
    await hold.note_gone(min(page, floor))
    return went, page < floor


async def turn_gone(resolver: Resolver, log: LogId, page: LogKey) -> tuple[Head | None, bool]:
    """Remove the entries of a page that may not be read any more, and mark its head as gone.

    Returns the head from before (None: there is no page), and whether this call removed the entries. The head
    stays, because a page that exists can't be created again.
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
        await pauses.again()


async def _total_before(
    resolver: Resolver, log: LogId, page: LogKey, head: Head, known: int | None
) -> int:
    """Return how many messages were published before a page."""
    if known is not None or head.prev >= page:
        return known or 0
    cell = await resolver.head(space_of(log), page_key(log, head.prev))
    return 0 if cell is None else heads.decode(cell.value).total


async def clear_generation(
    resolver: Resolver, topic: TopicId, generation: int, after: LogKey, pages_max: int
) -> tuple[int, LogKey | None]:
    """Clear pages of a deleted generation from ``after`` on.

    Returns how many messages were removed, and the page at which the next slice begins (None: it was the
    last). If the root says that the generation lives, this is a no-op.
    """
    log = LogId(topic, generation)
    cell = await resolver.head(space_of(log), root_key(log))
    root = None if cell is None else roots.decode(cell.value)
    if root is None or (root.generation, root.state) <= (generation, RootState.LIVE):
        return 0, None
    rows = await resolver.read(
        lambda: resolver.table.scan(
            space_of(log), page_key(log, after), page_key(log, LOG_KEY_MAX), limit=pages_max
        )
    )
    went, before = 0, None
    for row, _ in rows:
        head, turned = await turn_gone(resolver, log, page_of(row))
        if head is not None:
            if turned:
                went += head.total - await _total_before(resolver, log, page_of(row), head, before)
            before = head.total
    return went, log_key_after(page_of(rows[-1][0])) if len(rows) == pages_max else None


async def look_for_ends(hold: LogHold, known: LifetimeEnds) -> None:
    """Note when lifetimes end, in the pages that were not checked since they were sealed."""
    floor = hold.root.floor
    for page in [page for page in known.pages if page < floor]:
        del known.pages[page]
    for page, head in await hold.chain(max(known.looked_to, floor), hold.pointer):
        _note(known, page, head)


def _note(known: LifetimeEnds, page: LogKey, head: Head) -> None:
    known.pages.pop(page, None)
    if head.first_end_ms != NO_END and head.state is not PageState.GONE:
        known.pages[page] = head.first_end_ms
    if head.is_sealed:
        known.looked_to = max(known.looked_to, log_key_after(page))


async def end_lives(hold: LogHold, known: LifetimeEnds, before_ms: int) -> int:
    """Replace entries whose lifetime ended before ``before_ms`` by stubs; return in how many pages."""
    due = sorted(page for page, end_ms in known.pages.items() if end_ms < before_ms)
    for page in due:
        next_ms = await hold.end_lives(page, before_ms)
        if next_ms != NO_END:
            known.pages[page] = next_ms
        else:
            known.pages.pop(page, None)
    return len(due)

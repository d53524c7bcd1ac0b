"""Parts that all programs of a node use: heads, roots, finding the tail, reading a page in pieces.

Numbers in brackets are the rules of the design, here and in the other programs. A node does one step at a time. If a
program returns None instead of a lead, the node no longer knows that it leads: it claims before its next change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.rules import keep
from tests.model.store import (
    NONE,
    Entry,
    Head,
    Key,
    Log,
    Pair,
    Program,
    Root,
    Row,
    change,
    page_key,
)

TRIES = 4
PAGES_MAX = 60

AGAIN = "again"
TIRED = "tired"


@dataclass
class Node:
    """A node. ``clock`` is an id, and does not run. ``page_entries`` fill a page. ``busy``: the payload log in use."""

    number: int
    clock: int
    page_entries: int = 2
    tokens: int = 0
    busy: Log | None = None

    def token(self) -> Any:
        self.tokens += 1
        return (self.number, self.tokens) if keep("tokens") else "none"


@dataclass
class Lead:
    """A leader's state of one log after a claim: its page, and its last confirmed head.

    ``pending``: marks that are not put. ``batch``: the marks that are being put, and the pointer when they were
    gathered. ``put``: all marks of ids up to this one are put. ``marked`` goes into the next head.
    """

    log: Log
    page: int
    head: Head
    root: Root
    count: int
    marked: int
    put: int
    cache: list[tuple[int, str | None, bool, str]] = field(default_factory=list)
    known: set[Any] = field(default_factory=set)
    pending: list[tuple[Any, int]] = field(default_factory=list)
    batch: tuple[list[tuple[Any, int]], int] | None = None
    payloads: dict[int, Lead] = field(default_factory=dict)

    @property
    def gen(self) -> int:
        return int(self.log[1])

    @property
    def key(self) -> Key:
        return page_key(self.log, self.page)


class Tail(NamedTuple):
    """The first page that is open, closed or absent, and the head of the page before."""

    page: int
    row: Row | None
    before: Head | None

    @property
    def head(self) -> Head | None:
        return self.row.head if self.row else None


def get_head(key: Key, now: str = "") -> Program[Any]:
    row = yield ("get" + now, key)
    return row.head if row else None


def swap(
    key: Key, expected: Any, new: Any, entries: tuple[Entry, ...] = (), x: frozenset[int] = NONE
) -> Program[bool | None]:
    """Change only a root or a head (2). It succeeded if the node's token is there. None: unknown."""
    for _ in range(TRIES):
        answer = yield change(key, expected, new, entries, x)
        if answer is True:
            return True
        if answer == "deadline":
            return None
        head = yield from get_head(key)
        if head == new:
            return True
        if head != expected:
            return False
    return None


def find_tail(log: Log, root: Root | None) -> Program[Tail | None]:
    """Follow ``next`` from the root's page (3a). None: a read was stale."""
    page, before = root.page if root else 0, None
    for _ in range(PAGES_MAX):
        row = yield ("get", page_key(log, page))
        if row is None:
            is_first = page == 0 if log[0] == "L" else root is not None and page == root.floor
            return Tail(page, None, before) if before is not None or is_first else None
        if row.head.state == "gone":
            return None
        if not row.head.is_sealed:
            return Tail(page, row, before)
        before, page = row.head, row.head.next
    return None


def made_head(node: Node, root: Root | None, tail: Tail, epoch: int | None, state: str) -> Head:
    """Return the head of a page that this node makes (3c)."""
    before = tail.before
    if epoch is None:
        if before is not None:
            epoch = before.epoch + 1
        else:
            epoch = root.epoch + 1 if root is not None and keep("epochs-over-generations") else 1
    token = node.token()
    if before is None:
        return Head(epoch, node.number, token, tail.page - 1, 0, 0, tail.page - 1, state, None)
    return before._replace(epoch=epoch, owner=node.number, token=token, state=state, next=None)


def read_entries(key: Key, now: str) -> Program[tuple[Pair, ...]]:
    """Read a page's entries, each with its x cell, in two pieces, like reads with a limit."""
    pairs: tuple[Pair, ...]
    pairs, more = yield ("cells" + now, key, -1, 1)
    if more:
        rest, _ = yield ("cells" + now, key, pairs[-1][0].id, None)
        pairs += rest
    return pairs


def read_page(log: Log, page: int, now: str = "") -> Program[Row | str | None]:
    """Read the head, then entries up to its pointer (5). None: absent or gone. TIRED: too many stale reads."""
    key = page_key(log, page)
    for _ in range(TRIES):
        head = yield from get_head(key, now)
        if head is None or head.state == "gone":
            return None
        if head.ptr < page:
            return Row(head)
        pairs = yield from read_entries(key, now)
        reached = bool(pairs) and pairs[-1][0].id >= head.ptr
        if reached or not keep("up-to-the-pointer"):
            return Row(head, tuple(e for e, _ in pairs), frozenset(e.id for e, x in pairs if x))
    return TIRED


def leaders_reading(lead: Lead) -> Program[list[tuple[int, Row]] | None]:
    """Read from the floor (5). The result counts only if it ends in the leader's page with its last head."""
    for _ in range(TRIES):
        pages, page = [], lead.root.floor
        for _ in range(PAGES_MAX):
            row = yield from read_page(lead.log, page)
            if not isinstance(row, Row):
                break
            if page == lead.page and row.head != lead.head and keep("leader-ends-in-its-page"):
                break
            pages.append((page, row))
            if page == lead.page:
                return pages
            if not row.head.is_sealed:
                break
            page = row.head.next
        if not keep("leader-ends-in-its-page"):
            return pages
    return None

"""The programs of a topic's leader, with the numbers of their rules.

Append (1, 2), roll (4), prove (6), roll back (7), floor (8), marks (9), hand off (10), pack (15).
"""

from __future__ import annotations

from typing import Any

from tests.model.chain import (
    AGAIN,
    TRIES,
    Lead,
    Node,
    get_head,
    leaders_reading,
    read_page,
    swap,
)
from tests.model.claiming import carries_mark, new_id
from tests.model.rules import keep
from tests.model.store import (
    GONE,
    ROOT,
    Entry,
    Head,
    Program,
    Row,
    change,
    mark_key,
    page_key,
    root_key,
)

OK = "ok"
LOST = "lost"
NEVER = "never"
UNKNOWN = "unknown"


def next_head(node: Node, lead: Lead, entries: tuple[Entry, ...], seal: bool) -> Head:
    """Return the head that an append writes.

    ``marked`` may rise to the new pointer when no mark waits and the append carries none (9).
    """
    old = lead.head
    ptr = entries[-1].id if entries else old.ptr
    waits = bool(lead.pending) or any(map(carries_mark, entries))
    marked = lead.marked if waits and keep("nothing-pending") else ptr
    total = old.total + len(entries)
    new = old._replace(token=node.token(), ptr=ptr, total=total, marked=marked)
    if seal and keep("seal-before-make"):
        new = new._replace(state="sealed", next=ptr + 1)
    return new


def resolve(lead: Lead, new: Head, entries: tuple[Entry, ...]) -> Program[str]:
    """Find the outcome of a change (2): OK; LOST: applied, and another node leads; NEVER; UNKNOWN; AGAIN."""
    old = lead.head
    row = yield ("get", lead.key)
    if row is None:
        return AGAIN
    head = row.head
    if head.state in {"gone", "packed"}:
        return UNKNOWN if keep(f"{head.state}-is-unknown") else NEVER
    if head == new:
        return OK
    for entry in row.entries:
        if (
            entry.id == new.ptr
            and entries
            and (entry.epoch == old.epoch or not keep("entry-epoch"))
        ):
            return LOST
    if head == old:
        return AGAIN if keep("repeat-or-never") else NEVER
    is_over = head.epoch > old.epoch or head.state == "closed"
    return NEVER if is_over or not keep("stale-is-not-never") else AGAIN


def change_page(
    node: Node, lead: Lead, entries: tuple[Entry, ...], seal: bool = False
) -> Program[str]:
    """Append to the leader's page (1, 2): OK, LOST, NEVER or UNKNOWN."""
    new = next_head(node, lead, entries, seal)
    outcome = AGAIN
    for _ in range(TRIES + 1):
        answer = yield change(lead.key, lead.head, new, entries)
        if answer is True:
            outcome = OK
        else:
            outcome = UNKNOWN if answer == "deadline" else (yield from resolve(lead, new, entries))
        if outcome != AGAIN:
            break
    if outcome in {OK, LOST}:
        lead.head, lead.marked = new, new.marked
    return UNKNOWN if outcome == AGAIN else outcome


def roll(node: Node, lead: Lead) -> Program[bool]:
    """Make and link the page after the leader's sealed page (4). False: the node may not lead any more."""
    old = lead.head
    page = old.next if old.state == "sealed" and old.next is not None else old.ptr + 1
    head = old._replace(token=node.token(), state="open", next=None)
    if (yield from swap(page_key(lead.log, page), None, head)) is not True:
        return False
    if not keep("seal-before-make"):
        sealed = old._replace(token=node.token(), state="sealed", next=page)
        if (yield from swap(lead.key, old, sealed)) is not True:
            return False
    if keep("link"):
        root = lead.root._replace(page=page, token=node.token())
        if (yield from swap(root_key(lead.log), lead.root, root)) is True:
            lead.root = root
        elif keep("own-after-link"):
            return False
    lead.page, lead.head, lead.count = page, head, 0
    return True


def marked_before(lead: Lead, mark: Any) -> Program[bool]:
    """Look up a mark (9): it exists if it is known or if its row exists."""
    if mark in lead.known:
        return True
    return bool((yield ("marks!", lead.gen, mark)))


def repeated(lead: Lead, mark: Any, tx: str | None) -> Program[None]:
    """Answer a repetition as done (9), unless the effect is another transaction's, or was rolled back."""
    yield ("ev", "start")
    page: int | None = lead.root.floor
    while page is not None and isinstance(row := (yield from read_page(lead.log, page, "!")), Row):
        for entry in row.entries:
            if entry.mark == mark:
                is_other = entry.tx != tx and keep("own-effect")
                if is_other or (entry.id in row.x and keep("kept-effect")):
                    return
        page = row.head.next if row.head.is_sealed else None
    yield ("ev", "repeated", mark, tx, lead.gen)


def append(
    node: Node,
    lead: Lead,
    label: str,
    mark: Any = None,
    tx: str | None = None,
    ref: int | None = None,
) -> Program[tuple[Lead | None, bool]]:
    """Append one entry and answer the client; return the lead, and whether the entry is in the log."""
    entry = Entry(new_id(node, lead), label, lead.head.epoch, mark, tx, ref)
    if carries_mark(entry) and (yield from marked_before(lead, mark)):
        yield from repeated(lead, mark, tx)
        return lead, True
    seal = lead.count + 1 >= node.page_entries
    outcome = yield from change_page(node, lead, (entry,), seal)
    if outcome == NEVER:
        yield ("ev", "never", label, lead.gen)
    if outcome in {NEVER, UNKNOWN}:
        return None, False
    yield ("ev", "acknowledged", label, entry.id, lead.gen, entry.epoch)
    if outcome == LOST:
        return None, True
    lead.count += 1
    lead.cache.append((entry.id, tx, False, label))
    if carries_mark(entry):
        lead.known.add(mark)
        lead.pending.append((mark, entry.id))
    still_leads = not seal or (yield from roll(node, lead))
    return (lead if still_leads else None), True


# --- Marks (9): gather, put, then raise `marked`, with appends in between ---------------------------


def gather_marks(lead: Lead) -> None:
    lead.batch = list(lead.pending), lead.head.ptr


def put_batch(lead: Lead) -> Program[bool]:
    """Put the gathered marks, after their appends are confirmed."""
    if lead.batch is None:
        return True
    marks, up_to = lead.batch
    rows = tuple((mark_key(lead.gen, mark, at), (at, mark)) for mark, at in marks)
    for _ in range(TRIES):
        if not rows or (yield ("put", rows)) is True:
            lead.pending = [mark for mark in lead.pending if mark not in marks]
            lead.put, lead.batch = up_to, None
            return True
    return False


def raise_marked(lead: Lead) -> None:
    """Raise ``marked`` for the next head, only up to the last put mark."""
    up_to = lead.put if keep("up-to-what-was-put") else lead.head.ptr
    lead.marked = max(lead.marked, up_to)


def put_marks(lead: Lead) -> Program[bool]:
    gather_marks(lead)
    was_put = yield from put_batch(lead)
    raise_marked(lead)
    return was_put


# --- Floor (8) -------------------------------------------------------------------------------------


def roll_expired(node: Node, lead: Lead) -> Program[int | None]:
    """Roll a tail that has expired completely; return the new floor, or None."""
    if not keep("floor-not-tail"):
        return lead.head.ptr + 1
    if (yield from change_page(node, lead, (), seal=True)) != OK:
        return None
    return lead.page if (yield from roll(node, lead)) else None


def write_floor(node: Node, lead: Lead, floor: int) -> Program[bool]:
    if keep("marks-before-floor") and not (yield from put_marks(lead)):
        return False
    root = lead.root._replace(floor=floor, token=node.token())
    if (yield from swap(ROOT, lead.root, root)) is not True:
        return False
    lead.root = root
    return True


def raise_floor(node: Node, lead: Lead, mine_too: int = 0) -> Program[Lead | None]:
    """Raise the floor to the leader's page; with ``mine_too`` the messages in that page have expired as well."""
    floor: int | None = lead.page
    if mine_too and lead.count:
        floor = yield from roll_expired(node, lead)
    if floor is None:
        return None
    if floor > lead.root.floor and not (yield from write_floor(node, lead, floor)):
        return None
    for page, head in (yield ("heads", lead.log)):
        key = page_key(lead.log, page)
        if page >= floor:
            continue
        if keep("gone-stays"):
            yield from swap(key, head, GONE)
        else:
            yield ("remove", (key,))
    lead.cache = [shown for shown in lead.cache if shown[0] >= floor]
    return lead


# --- Proof (6), rollback (7), handoff (10) -----------------------------------------------------------


def proof(lead: Lead) -> Program[bool]:
    """Return whether a current read of the leader's page shows its last confirmed head."""
    head = yield from get_head(lead.key, "!")
    return bool(head == lead.head)


def poll(lead: Lead) -> Program[Lead | None]:
    yield ("ev", "start")
    if keep("proof") and not (yield from proof(lead)):
        return None
    yield ("ev", "polled", lead.gen, 0, tuple(lead.cache))
    return lead


def edit_own_head(node: Node, lead: Lead, x: frozenset[int] = frozenset()) -> Program[bool]:
    new = lead.head._replace(token=node.token(), edits=lead.head.edits + 1)
    if (yield from swap(lead.key, lead.head, new, (), x)) is not True:
        return False
    lead.head = new
    return True


def hide_in_page(node: Node, lead: Lead, page: int, row: Row, tx: str) -> Program[bool]:
    """Set the x cells of one page, a slice in a change: here one cell. False: this node does not lead any more."""
    for hidden in [entry.id for entry in row.entries if entry.tx == tx]:
        if not (yield from hide_slice(node, lead, page, row, frozenset({hidden}))):
            return False
    return True


def hide_slice(node: Node, lead: Lead, page: int, row: Row, x: frozenset[int]) -> Program[bool]:
    """Set some x cells of a page in one change. False: this node does not lead any more."""
    if page == lead.page:
        return x <= row.x or (yield from edit_own_head(node, lead, x))
    found: Row | str | None = yield from read_page(lead.log, page, "!")
    for _ in range(TRIES):
        if not isinstance(found, Row):
            return found is None
        if x <= found.x:
            return True
        old = found.head
        if not old.is_sealed:
            return False
        new = old._replace(token=node.token(), edits=old.edits + 1)
        if (yield from swap(page_key(lead.log, page), old, new, (), x)) is True:
            return True
        found = yield from read_page(lead.log, page, "!")
    return False


def roll_back(node: Node, lead: Lead, tx: str) -> Program[Lead | None]:
    pages = yield from leaders_reading(lead)
    if pages is None:
        return None
    for page, row in pages:
        if not (yield from hide_in_page(node, lead, page, row, tx)):
            return None
    if keep("last-step") and not (yield from edit_own_head(node, lead)):
        return None
    lead.cache = [(at, t, x or t == tx, label) for at, t, x, label in lead.cache]
    yield ("ev", "rolled back", tx)
    return lead


def pack(node: Node, lead: Lead) -> Program[Lead]:
    """Join the entries of every sealed page, in one change of each (15)."""
    for page, head in (yield ("heads", lead.log)):
        if head.state == "sealed":
            new = head._replace(state="packed", token=node.token(), edits=head.edits + 1)
            yield from swap(page_key(lead.log, page), head, new)
    return lead


def hand_off(node: Node, lead: Lead) -> Program[None]:
    yield from swap(lead.key, lead.head, lead.head._replace(owner=None, token=node.token()))

"""Claim a log (3, and 12 with the topic leader's epoch), and take over the state in its pages."""

from __future__ import annotations

from tests.model.chain import (
    AGAIN,
    TIRED,
    TRIES,
    Lead,
    Node,
    Tail,
    find_tail,
    get_head,
    leaders_reading,
    made_head,
    swap,
)
from tests.model.deleting import delete, make_root
from tests.model.rules import keep
from tests.model.store import Entry, Head, Log, Program, Root, page_key, root_key, topic


def new_id(node: Node, lead: Lead) -> int:
    return max(node.clock, lead.head.ptr + 1) if keep("ids-rise") else node.clock


def carries_mark(entry: Entry) -> bool:
    """Return whether an entry's mark belongs in the index; the leader searches the log for a reference's mark."""
    return entry.mark is not None and entry.ref is None


def refuse_root(node: Node, log: Log, root: Root) -> Program[str | None]:
    """Return the reason why a topic's root does not let this node claim (3a), or None."""
    if root.gen > log[1]:
        return "read the record again"
    if root.gen < log[1]:
        yield from make_root(node, root, log[1])
        return AGAIN
    if root.state == "deleted":
        yield from delete(node, log[1])
        return "deleted"
    return None


def refuse_tail(node: Node, log: Log, tail: Tail, epoch: int | None) -> Program[str | None]:
    """Return the reason why a tail does not let this node claim (3a, 12), or None."""
    head = tail.head
    if head is not None and head.state == "closed":
        if epoch is not None:
            return "closed"
        if not keep("finish-a-begun-deletion"):
            return AGAIN
        yield from delete(node, log[1])
        return "deleted"
    held = head or tail.before
    if epoch is not None and held is not None and held.epoch > epoch:
        return "fenced"
    return None


def tail_head(node: Node, root: Root | None, tail: Tail, epoch: int | None) -> Head:
    """Return the head with which this node owns the tail (3b, 3c)."""
    head = tail.head
    if head is None:
        return made_head(node, root, tail, epoch, "open")
    return head._replace(epoch=epoch or head.epoch + 1, owner=node.number, token=node.token())


def link_claim(node: Node, log: Log, root: Root | None, tail: Tail) -> Program[Root | None]:
    """Link the claimed page in the root (3d, 3e); None: another node leads."""
    is_news = tail.row is None or root is None or root.page != tail.page
    needed = (is_news or keep("link-every-claim")) and keep("link")
    if root is not None and not needed:
        return root
    old = root or Root(log[1], 0, 0, None, "open", 0, None)
    new = old._replace(page=tail.page, token=node.token())
    linked = yield from swap(root_key(log), root, new)
    return new if linked is True or not keep("own-after-link") else None


def claim_tail(node: Node, log: Log, root: Root | None, epoch: int | None) -> Program[Lead | str]:
    tail = yield from find_tail(log, root)
    if tail is None:
        return AGAIN
    refused = yield from refuse_tail(node, log, tail, epoch)
    if refused:
        return refused
    head = tail_head(node, root, tail, epoch)
    if (yield from swap(page_key(log, tail.page), tail.head, head)) is not True:
        return AGAIN
    linked = yield from link_claim(node, log, root, tail)
    if linked is None:
        return AGAIN
    count = len(tail.row.entries) if tail.row else 0
    return Lead(log, tail.page, head, linked, count, marked=head.marked, put=head.marked)


def claim(node: Node, log: Log, epoch: int | None = None) -> Program[Lead | str]:
    """Return a lead, or a word with the reason why not. ``epoch``: the topic leader's, for a payload log."""
    for _ in range(TRIES):
        root = yield from get_head(root_key(log))
        if epoch is None:
            refused = yield from refuse_root(node, log, root)
        else:
            refused = None if root is None or root.state == "open" else "closed"
        outcome = refused or (yield from claim_tail(node, log, root, epoch))
        if outcome != AGAIN:
            return outcome
    return TIRED


def take_over(node: Node, gen: int) -> Program[Lead | None]:
    """Claim the topic, fill the cache, find the marks that are perhaps not put (9)."""
    lead = yield from claim(node, topic(gen))
    if isinstance(lead, str):
        return None
    pages = yield from leaders_reading(lead)
    if pages is None:
        return None
    for _, row in pages:
        for entry in row.entries:
            lead.cache.append((entry.id, entry.tx, entry.id in row.x, entry.label))
            if carries_mark(entry) and entry.id > lead.marked and keep("marks-above-marked"):
                lead.known.add(entry.mark)
                if keep("put-before-raise"):
                    lead.pending.append((entry.mark, entry.id))
    return lead

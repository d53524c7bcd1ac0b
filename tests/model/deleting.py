"""Delete a topic, create it again (11), and remove the rows of its dead generations (8)."""

from __future__ import annotations

from tests.model.chain import TRIES, Node, find_tail, get_head, made_head, swap
from tests.model.rules import keep
from tests.model.store import (
    GONE,
    RECORD,
    ROOT,
    Head,
    Log,
    Program,
    Root,
    page_key,
    topic,
)

FENCED = "fenced"


def close_tail(
    node: Node, log: Log, root: Root | None, epoch: int | None = None
) -> Program[Head | str | None]:
    """Take the tail and close it; absent: make it closed (11, 12).

    Returns the closed head, FENCED, or None: read the root again.
    """
    tail = yield from find_tail(log, root)
    if tail is None:
        return None
    head = tail.head
    if head is not None and head.state == "closed":
        return head
    held = head or tail.before
    if head is None and not keep("absent-made-closed"):
        return tail.before or made_head(node, root, tail, epoch, "closed")
    if epoch is not None and held is not None and held.epoch > epoch:
        return FENCED
    if head is None:
        new = made_head(node, root, tail, epoch, "closed")
    else:
        new = head._replace(
            epoch=epoch or head.epoch + 1, owner=None, token=node.token(), state="closed"
        )
    closed = yield from swap(page_key(log, tail.page), head, new)
    return new if closed is True else None


def tail_left_open(node: Node, log: Log, root: Root) -> Program[Head | None]:
    """Find the head that close_tail would close, for the mutant that does not close it."""
    tail = yield from find_tail(log, root)
    if tail is None:
        return None
    return tail.head or tail.before or made_head(node, root, tail, None, "closed")


def delete_root(node: Node, root: Root) -> Program[bool]:
    """Close the tail, then mark the root as deleted. False: read the root again."""
    end = close_tail if keep("close-at-delete") else tail_left_open
    head = yield from end(node, topic(root.gen), root)
    if not isinstance(head, Head):
        return False
    new = root._replace(state="deleted", page=head.ptr + 1, epoch=head.epoch, token=node.token())
    return (yield from swap(ROOT, root, new)) is True


def delete(node: Node, gen: int) -> Program[None]:
    for _ in range(TRIES):
        root = yield from get_head(ROOT)
        if root.gen != gen:
            return
        if root.state == "deleted" or (yield from delete_root(node, root)):
            yield from swap(RECORD, (gen, True), (gen, False))
            return


def make_root(node: Node, root: Root, gen: int) -> Program[None]:
    if root.gen == gen - 1 and root.state == "deleted":
        new = Root(gen, root.page, root.page, node.token(), "live", root.epoch, None)
        yield from swap(ROOT, root, new)


def create(node: Node) -> Program[None]:
    gen, is_there = yield from get_head(RECORD, "!")
    if not is_there:
        gen += 1
        if (yield from swap(RECORD, (gen - 1, False), (gen, True))) is not True:
            return
    root = yield from get_head(ROOT, "!")
    if root.gen < gen:
        yield from make_root(node, root, gen)


def sweep_generations(node: Node) -> Program[None]:
    """Remove pages of dead generations; heads of the topic's message log stay, in state gone."""
    root = yield from get_head(ROOT, "!")
    for key, head in (yield ("old", root.gen)):
        if key[1][0] == "L" or not keep("dead-generations-stay"):
            yield ("remove", (key,))
        elif head != GONE:
            yield from swap(key, head, GONE)

"""Payload logs (12): store, publish a reference, drop."""

from __future__ import annotations

from tests.model.chain import (
    TRIES,
    Lead,
    Node,
    find_tail,
    get_head,
    leaders_reading,
    swap,
)
from tests.model.claiming import claim, new_id
from tests.model.deleting import FENCED, close_tail
from tests.model.leading import LOST, OK, append, change_page, proof, roll
from tests.model.rules import keep
from tests.model.store import (
    GONE,
    ROOT,
    Entry,
    Head,
    Log,
    Program,
    Root,
    change,
    page_key,
    payload,
    root_key,
    too_old,
    topic,
)


def part_of(node: Node, lead: Lead, number: int) -> Program[Lead | str]:
    """Return the lead of a payload log, claimed with the topic leader's epoch, or the reason why not."""
    if number in lead.payloads:
        return lead.payloads[number]
    part = yield from claim(node, payload(lead.gen, number), lead.head.epoch)
    if isinstance(part, Lead):
        lead.payloads[number] = part
    return part


def store_in(node: Node, lead: Lead, part: Lead, number: int, label: str) -> Program[bool]:
    """Append to a payload log; return whether the entry is there."""
    entry = Entry(new_id(node, part), label, part.head.epoch, None, None, None)
    seal = part.count + 1 >= node.page_entries
    outcome = yield from change_page(node, part, (entry,), seal)
    if outcome == OK:
        part.count += 1
        if not seal or (yield from roll(node, part)):
            return True
    del lead.payloads[number]
    return outcome in {OK, LOST}


def store_payload(node: Node, lead: Lead, number: int, label: str) -> Program[Lead | None]:
    yield ("ev", "start")
    if (yield ("get!", too_old(payload(lead.gen, number)))):
        return lead
    part = yield from part_of(node, lead, number)
    if isinstance(part, str):
        return None if part == FENCED else lead
    if not (yield from store_in(node, lead, part, number, label)):
        return lead
    if keep("store-proof") and not (yield from proof(lead)):
        if (yield from is_void(lead, number)):
            yield ("ev", "void", label, number, lead.gen)
        return None
    yield ("ev", "stored", label, number, lead.gen)
    return lead


def is_void(lead: Lead, number: int) -> Program[bool]:
    """Return whether no reader can ever see a store: its topic is deleted, and its log was still open after that."""
    root = yield from get_head(ROOT)
    if root.gen < lead.gen:
        return False  # A stale read.
    if root.gen == lead.gen and root.state == "live":
        tail = yield from find_tail(topic(lead.gen), root)
        if tail is None or tail.head is None or tail.head.state != "closed":
            return False
    stored = yield from get_head(root_key(payload(lead.gen, number)), "!")
    return stored is not None and (stored.state == "open" or not keep("void-while-open"))


def seal_once(node: Node, lead: Lead, log: Log, root: Root | None) -> Program[Root | str | None]:
    """Close a payload log and seal its root; return the root, FENCED, or None: read the root again."""
    if keep("close-at-publish"):
        closed: Head | str | None = yield from close_tail(node, log, root, lead.head.epoch)
        if not isinstance(closed, Head):
            return closed
    old = root or Root(lead.gen, 0, 0, None, "open", 0, None)
    new = old._replace(state="sealed", at=lead.head.ptr, token=node.token())
    return new if (yield from swap(root_key(log), root, new)) is True else None


def seal_log(node: Node, lead: Lead, log: Log) -> Program[Root | str | None]:
    """Return the sealed, published or dropped root of a payload log; or FENCED; or None: too many stale reads."""
    for _ in range(TRIES):
        root = yield from get_head(root_key(log))
        if isinstance(root, Root) and root.state != "open":
            return root
        sealed = yield from seal_once(node, lead, log, root)
        if sealed is not None:
            return sealed
    return None


def is_referred_to(lead: Lead, number: int) -> Program[bool | None]:
    """Search for the reference in the topic; None: the read does not count."""
    pages = yield from leaders_reading(lead)
    if pages is None:
        return None
    found = any(entry.ref == number for _, row in pages for entry in row.entries)
    return found and keep("look-for-the-reference")


def refer(node: Node, lead: Lead, root: Root, number: int, label: str) -> Program[Lead | None]:
    """Append the reference to a sealed log, if it is not there, and mark the log's root as published."""
    is_there = yield from is_referred_to(lead, number)
    if is_there is None:
        return None
    if root.at is None or lead.root.floor > root.at + 1:
        return lead  # The reference may lie below the floor, so the outcome is unknown.
    led: Lead | None = lead
    if not is_there:
        led, ok = yield from append(node, lead, label, ("reference", number), ref=number)
        if not ok:
            return led
    published = root._replace(state="published", token=node.token())
    yield change(root_key(payload(lead.gen, number)), root, published)
    return led


def publish(node: Node, lead: Lead, number: int, label: str) -> Program[Lead | None]:
    log = payload(lead.gen, number)
    lead.payloads.pop(number, None)
    if (yield ("get!", too_old(log))):
        return lead
    root = yield from seal_log(node, lead, log)
    if not isinstance(root, Root):
        return None if root == FENCED else lead
    if root.state != "sealed":
        return lead
    return (yield from refer(node, lead, root, number, label))


def drop(node: Node, lead: Lead, number: int) -> Program[Lead]:
    """Mark the root of a published log as dropped, then remove its pages."""
    log = payload(lead.gen, number)
    key = root_key(log)
    root = yield from get_head(key, "!")
    if root is None or root.state not in {"published", "dropped"}:
        return lead
    lead.payloads.pop(number, None)
    if root.state == "published":
        dropped = root._replace(state="dropped", token=node.token())
        if (yield from swap(key, root, dropped)) is not True:
            return lead
    for page, head in (yield ("heads", log)):
        yield from swap(page_key(log, page), head, GONE)
    return lead

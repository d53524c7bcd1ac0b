"""The promises, judged at every change of a row and at every answer to a client.

The ghost remembers facts that no node can know: every answer, and every deleted page. The true log of a generation is
the chain of its pages from its first one, deleted pages included. The promises are:

* ids and epochs rise, over generations too; totals are right; no message and no key is there twice;
* an acknowledged append is in the log for ever; an append with the answer "never" is never there;
* no page above the floor is deleted; no append goes into a dead generation;
* readers see a prefix without holes. Without a stale read they see all messages acknowledged before they began. The
  same holds for polls, which also show no rolled-back message;
* a repetition is answered as done only in the transaction that has the message, and not after its rollback;
* acknowledged stores are in a published log, and no store follows the publication; a store with the answer "void" is
  in no published log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from tests.model.store import (
    NONE,
    ROOT,
    Call,
    Entry,
    Key,
    Log,
    Root,
    Row,
    Rows,
    is_page,
    page_key,
    payload,
    topic,
)


class Violation(Exception):
    """A run has broken a promise."""


def bad(problem: str, *more: object) -> NoReturn:
    raise Violation(" ".join([problem, *map(str, more)]))


class Start(NamedTuple):
    """The answers given before a reader began; ``stale``: the reader had a stale read."""

    pid: int
    acked: frozenset[Any]
    rolled: frozenset[Any]
    gen: int
    stale: bool


class Ghost(NamedTuple):
    """acked: (label, id, generation, epoch); graves: (key, row); firsts: (generation, first page)."""

    acked: frozenset[Any] = NONE
    never: frozenset[Any] = NONE
    rolled: frozenset[Any] = NONE
    starts: frozenset[Start] = NONE
    graves: frozenset[tuple[Key, Row]] = NONE
    done: frozenset[Any] = NONE
    stores: frozenset[Any] = NONE
    voids: frozenset[Any] = NONE
    firsts: frozenset[tuple[int, int]] = frozenset({(1, 0)})


EMPTY = Ghost()


class Link(NamedTuple):
    """An entry of the true log, and its place."""

    page: int
    entry: Entry
    hidden: bool
    dead: bool


# --- The true log --------------------------------------------------------------------------------


def pages_of(rows: Rows, ghost: Ghost, log: Log) -> list[tuple[int, Row, bool]]:
    """Return the pages of a log from the first one: (page, row, whether it was deleted)."""
    graves = dict(ghost.graves)
    out: list[tuple[int, Row, bool]] = []
    page = 0 if log[0] == "L" else dict(ghost.firsts).get(log[1], 0)
    while True:
        key = page_key(log, page)
        grave = graves.get(key)
        row = grave or rows.get(key)
        if row is None or row.head.state == "gone":
            return out
        if out and row.head.epoch < out[-1][1].head.epoch:
            bad("epochs fall along the chain", log, page, row.head)
        out.append((page, row, grave is not None))
        if not row.head.is_sealed:
            return out
        if row.head.next <= page:
            bad("keys do not rise", log, page, row.head.next)
        page = row.head.next


def chain(rows: Rows, ghost: Ghost, log: Log) -> list[Link]:
    out: list[Link] = []
    for page, row, dead in pages_of(rows, ghost, log):
        out += [Link(page, entry, entry.id in row.x, dead) for entry in row.entries]
        if row.head.total != len(out):
            bad("total is wrong", log, page, row.head)
    return out


def has_label(rows: Rows, ghost: Ghost, log: Log, label: str) -> bool:
    return any(link.entry.label == label for link in chain(rows, ghost, log))


# --- After a change of a row -----------------------------------------------------------------------


def judge_order(links: list[Link], ghost: Ghost, gen: int) -> None:
    older = [acked for acked in ghost.acked if acked[2] < gen]
    below = max((acked[1] for acked in older), default=-1)
    epoch = max((acked[3] for acked in older), default=0)
    last = -1
    for page, e, _, _ in links:
        if e.id <= last or e.id < page:
            bad("ids do not rise", e, page, last)
        if e.id <= below:
            bad("ids do not rise over generations", e, below)
        if e.epoch <= epoch:
            bad("epochs do not rise over generations", e, epoch)
        last = e.id


def judge_labels(links: list[Link], ghost: Ghost, gen: int) -> None:
    labels: dict[str, int] = {}
    marks: dict[Any, Entry] = {}
    for _, e, _, _ in links:
        if e.label in ghost.never:
            bad("refused, and present in the log", e)
        if e.label in labels:
            bad("twice in the log", e)
        labels[e.label] = e.id
        if e.mark is not None and e.mark in marks:
            bad("one key, two entries", e, marks[e.mark])
        marks[e.mark] = e
    for label, at, its_gen, _ in ghost.acked:
        if its_gen == gen and labels.get(label) != at:
            bad("acknowledged append lost", label, at)


def judge_visible(links: list[Link], rows: Rows, ghost: Ghost, root: Root) -> None:
    for page, e, hidden, dead in links:
        if page >= root.floor:
            if e.tx is not None and e.tx in ghost.rolled and not hidden:
                bad("rolled back, visible in storage", e)
            if dead and root.state == "live":
                bad("deleted above the floor", e)
        if e.ref is not None:
            judge_reference(rows, ghost, root.gen, e)


def judge_reference(rows: Rows, ghost: Ghost, gen: int, reference: Entry) -> None:
    have = {link.entry.label for link in chain(rows, ghost, payload(gen, reference.ref or 0))}
    for label, number, its_gen in ghost.stores:
        if number == reference.ref and its_gen == gen and label not in have:
            bad("acknowledged store not in the published log", label, reference)
    for label, number, its_gen in ghost.voids:
        if number == reference.ref and its_gen == gen and label in have:
            bad("answered void, and published", label, reference)


def judge(rows: Rows, ghost: Ghost, log: Log | None = None) -> None:
    """Judge the topic's live generation, and the generation of ``log``."""
    root = rows[ROOT].head
    for gen in {root.gen, log[1]} if log and log[0] == "T" else {root.gen}:
        links = chain(rows, ghost, topic(gen))
        judge_order(links, ghost, gen)
        judge_labels(links, ghost, gen)
        if gen == root.gen:
            judge_visible(links, rows, ghost, root)


def judge_append(rows: Rows, ghost: Ghost, log: Log, entries: tuple[Entry, ...]) -> None:
    gen = rows[ROOT].head.gen
    if log[0] == "T":
        if log[1] < gen:
            bad("an append in a dead generation", entries)
    elif log[1] == gen and any(e.ref == log[2] for _, e, _, _ in chain(rows, ghost, topic(gen))):
        bad("stored after the publication", entries)


def buried(before: Rows, rows: Rows, ghost: Ghost) -> Ghost:
    """Remember the pages that this write deleted, in their former state."""
    known = {key for key, _ in ghost.graves}
    dead = set()
    for key, row in before.items():
        if is_page(key) and row.head.state != "gone" and key not in known:
            now = rows.get(key)
            if now is None or now.head.state == "gone":
                dead.add((key, row))
    return ghost._replace(graves=ghost.graves | dead) if dead else ghost


def after_write(before: Rows, rows: Rows, ghost: Ghost, call: Call) -> Ghost:
    """Judge a write that changed rows, and return the ghost after it."""
    is_change = call[0] == "change"
    if is_change and call[1] == ROOT and call[3].gen not in dict(ghost.firsts):
        ghost = ghost._replace(firsts=ghost.firsts | {(call[3].gen, call[3].page)})
    ghost = buried(before, rows, ghost)
    log = call[1][1] if is_change and is_page(call[1]) else None
    judge(rows, ghost, log)
    if log is not None and call[4]:
        judge_append(rows, ghost, log, call[4])
    return ghost


# --- After an answer to a client -------------------------------------------------------------------


def stale_answer(ghost: Ghost, pid: int) -> Ghost:
    """Remember that a reader had a stale read: it may miss messages acknowledged before."""
    starts = (s._replace(stale=True) if s.pid == pid else s for s in ghost.starts)
    return ghost._replace(starts=frozenset(starts))


def _start(rows: Rows, ghost: Ghost, pid: int, _event: Call) -> Ghost:
    others = {start for start in ghost.starts if start.pid != pid}
    start = Start(pid, ghost.acked, ghost.rolled, rows[ROOT].head.gen, stale=False)
    return ghost._replace(starts=frozenset(others | {start}))


def start_of(ghost: Ghost, pid: int) -> Start:
    return next(start for start in ghost.starts if start.pid == pid)


def _acknowledged(rows: Rows, ghost: Ghost, _pid: int, event: Call) -> Ghost:
    _, label, at, gen, _epoch = event
    links = chain(rows, ghost, topic(gen))
    if not any(link.entry.label == label and link.entry.id == at for link in links):
        bad("acknowledged, not in the log", label, at)
    if label in ghost.never:
        bad("acknowledged, and refused before", label)
    return ghost._replace(acked=ghost.acked | {event[1:]})


def _never(rows: Rows, ghost: Ghost, _pid: int, event: Call) -> Ghost:
    if has_label(rows, ghost, topic(event[2]), event[1]):
        bad("refused, and present in the log", event[1])
    return ghost._replace(never=ghost.never | {event[1]})


def _done(_rows: Rows, ghost: Ghost, _pid: int, event: Call) -> Ghost:
    return ghost._replace(done=ghost.done | {event[1]})


def _repeated(rows: Rows, ghost: Ghost, pid: int, event: Call) -> Ghost:
    _, mark, tx, gen = event
    for link in chain(rows, ghost, topic(gen)):
        if link.entry.mark == mark and not link.dead:
            if link.entry.tx != tx:
                bad("a repetition is done in another transaction", link.entry, tx)
            if tx is not None and tx in start_of(ghost, pid).rolled:
                bad("a repetition is done, and was rolled back before", link.entry)
    return ghost


def _rolled_back(_rows: Rows, ghost: Ghost, _pid: int, event: Call) -> Ghost:
    return ghost._replace(rolled=ghost.rolled | {event[1]})


def _stored(rows: Rows, ghost: Ghost, pid: int, event: Call) -> Ghost:
    _, label, number, gen = event
    if gen < start_of(ghost, pid).gen:
        bad("store acknowledged in a dead generation", label, gen)
    if not has_label(rows, ghost, payload(gen, number), label):
        bad("acknowledged store not in its log", label)
    return ghost._replace(stores=ghost.stores | {(label, number, gen)})


def _void(rows: Rows, ghost: Ghost, _pid: int, event: Call) -> Ghost:
    _, label, number, gen = event
    ghost = ghost._replace(voids=ghost.voids | {(label, number, gen)})
    for link in chain(rows, ghost, topic(gen)):
        if link.entry.ref is not None:
            judge_reference(rows, ghost, gen, link.entry)
    return ghost


def _payloads_read(_rows: Rows, ghost: Ghost, _pid: int, event: Call) -> Ghost:
    _, gen, number, labels = event
    for label, its_number, its_gen in ghost.stores:
        if (its_number, its_gen) == (number, gen) and label not in labels:
            bad("payloads read without an acknowledged store", label, labels)
    return ghost


def _shown(rows: Rows, ghost: Ghost, pid: int, event: Call) -> Ghost:
    kind, gen, begin, shown = event
    root = rows[ROOT].head
    links = [link for link in chain(rows, ghost, topic(gen)) if link.entry.id >= begin]
    labels = {link.entry.id: link.entry.label for link in links}
    ids = [at for at, _, _, _ in shown]
    if any(labels.get(at) != label for at, _, _, label in shown):
        bad(f"{kind}: shows a message that is not in the log", shown)
    if ids != sorted(set(ids)):
        bad(f"{kind}: out of order", shown)
    above = {link.entry.id for link in links if link.page >= root.floor}
    if ids and root.gen == gen and any(at <= ids[-1] for at in above.difference(ids)):
        bad(f"{kind}: skips", above.difference(ids), "in", shown)
    start = start_of(ghost, pid)
    if not start.stale and root.state == "live" and start.gen == gen == root.gen:
        judge_fresh(kind, start, shown, above)
    return ghost


def judge_fresh(kind: str, start: Start, shown: tuple[Any, ...], above: set[int]) -> None:
    """Check that a reader without stale reads sees the effects of all answers given before it began."""
    ids = {at for at, _, _, _ in shown}
    for label, at, gen, _ in start.acked:
        if gen == start.gen and at in above and at not in ids:
            bad(f"{kind}: misses a message that was acknowledged before", label, at, "in", shown)
    for at, tx, hidden, _ in shown:
        if tx is not None and tx in start.rolled and not hidden:
            bad(f"{kind}: shows a message that was rolled back before", at, tx)


_JUDGES: dict[str, Callable[[Rows, Ghost, int, Call], Ghost]] = {
    "start": _start,
    "acknowledged": _acknowledged,
    "never": _never,
    "done": _done,
    "repeated": _repeated,
    "rolled back": _rolled_back,
    "stored": _stored,
    "void": _void,
    "payloads read": _payloads_read,
    "polled": _shown,
    "read": _shown,
}


def answered(rows: Rows, ghost: Ghost, event: Call, pid: int) -> Ghost:
    """Judge and remember a node's answer to a client."""
    return _JUDGES[event[0]](rows, ghost, pid, event)

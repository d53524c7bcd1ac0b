"""Readers: any node reads from storage (5); a reader of references (12)."""

from __future__ import annotations

from tests.model.chain import PAGES_MAX, TRIES, get_head, read_page
from tests.model.rules import keep
from tests.model.store import ROOT, Log, Program, Root, Row, payload, root_key, topic


def page_after(root: Root, page: int, row: Row | None) -> Program[int | None]:
    """Return the reader's next page, or None at the end."""
    if row is None or (row.head.state == "open" and not row.entries):
        if not keep("look-at-the-root"):
            return None
        again = yield from get_head(ROOT)
        return again.floor if again.gen == root.gen and again.floor > page else None
    if row.head.is_sealed:
        return int(row.head.next)
    if row.head.state == "open" and not keep("sealed-before-next"):
        heads = yield ("heads", topic(root.gen))
        return min((key for key, _ in heads if key > page), default=None)
    return None


def reader(begin: int) -> Program[None]:
    """Read from an id to the end."""
    yield ("ev", "start")
    root = yield from get_head(ROOT)
    if root.state != "live":
        return
    log, low, shown = topic(root.gen), begin, []
    page = yield ("last", log, root.floor, max(begin, root.floor))
    page = root.floor if page is None else page
    for _ in range(PAGES_MAX):
        row = yield from read_page(log, page)
        if isinstance(row, str):
            return
        for entry in row.entries if row else ():
            if entry.id >= low:
                shown.append(
                    (entry.id, entry.tx, row is not None and entry.id in row.x, entry.label)
                )
                low = entry.id + 1
        page = yield from page_after(root, page, row)
        if page is None:
            break
    yield ("ev", "read", root.gen, begin, tuple(shown))


def read_chain(log: Log, page: int) -> Program[tuple[list[Row], bool]]:
    """Read the existing pages in order; return them, and whether the last one is closed."""
    rows: list[Row] = []
    for _ in range(PAGES_MAX):
        row = yield from read_page(log, page)
        if not isinstance(row, Row):
            break
        rows.append(row)
        if not row.head.is_sealed:
            return rows, row.head.state == "closed"
        page = row.head.next
    return rows, False


def read_payloads(gen: int, number: int) -> Program[None]:
    """Read the payload log of a reference up to a closed page, or until the log is dropped."""
    log = payload(gen, number)
    for _ in range(TRIES):
        root = yield from get_head(root_key(log))
        if root is not None and root.state == "dropped":
            return
        rows, is_closed = yield from read_chain(log, 0)
        if not is_closed and keep("closed-reference"):
            continue
        root = yield from get_head(root_key(log), "!")
        if root is not None and root.state != "dropped":
            labels = tuple(entry.label for row in rows for entry in row.entries)
            yield ("ev", "payloads read", gen, number, labels)
        return


def reference_reader() -> Program[None]:
    """Read the topic, and the payload log of each of its references."""
    root = yield from get_head(ROOT)
    if root.state != "live":
        return
    rows, _ = yield from read_chain(topic(root.gen), root.floor)
    for row in rows:
        for entry in row.entries:
            if entry.ref is not None:
                yield from read_payloads(root.gen, entry.ref)

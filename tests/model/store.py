"""The store: rows, the effect of a change, the result of a read.

Every row has a head, the only cell that a change compares. A page also has entries and ``x`` cells; a root, the
topic's record and a mark only have a head. All values are immutable, so that states can be hashed. Ids are small
integers. A call is a tuple, and its first word is its kind::

    ("change", key, expected, new, entries, x)   the one primitive: all cells together, if the head is
                                                 exactly the expected one (None: absent)
    ("put", rows)            a change without a condition, for marks
    ("remove", keys)         removes rows for good: payload logs of dead generations
    ("forget", log)          removes root and heads of a dropped payload log, after the margin
    ("get", key)             a row; of a page the programs use only the head, except to resolve (rule 2)
    ("cells", key, above, limit)   entries above an id, each with its ``x``, in one piece: (pairs, more)
    ("last", log, low, high)       the last page in a range
    ("heads", log) ("old", generation) ("marks", generation, key)    scans

A word that ends in ``!`` is a current read, where the design assumes one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from tests.model.rules import keep

Key = tuple[Any, ...]
Log = tuple[Any, ...]
Call = tuple[Any, ...]
T = TypeVar("T")
Program = Generator[Call, Any, T]
"""One storage call per ``yield``, or ``("ev", …)``: an answer to a client."""


class Root(NamedTuple):
    """state: live | deleted; of a payload log: open | sealed | published | dropped."""

    gen: int
    page: int
    floor: int
    token: Any
    state: str
    epoch: int
    at: int | None


class Head(NamedTuple):
    """state: open | sealed | packed | closed | gone. In a packed page single entries can't be distinguished."""

    epoch: int
    owner: int | None
    token: Any
    ptr: int
    total: int
    edits: int
    marked: int
    state: str
    next: int | None

    @property
    def is_sealed(self) -> bool:
        return self.state in {"sealed", "packed"}


class Entry(NamedTuple):
    """One message. ``ref``: the payload log that it publishes."""

    id: int
    label: str
    epoch: int
    mark: Any
    tx: str | None
    ref: int | None


NONE: frozenset[Any] = frozenset()


class Row(NamedTuple):
    """The head, and the other cells of a page. ``x``: ids that are rolled back."""

    head: Any
    entries: tuple[Entry, ...] = ()
    x: frozenset[int] = NONE


Rows = dict[Key, Row]
Pair = tuple[Entry, bool]
"""An entry, and whether its ``x`` cell is there. Both cells are adjacent, so one read returns both."""

GONE = Head(-1, None, "gone", -1, 0, 0, 0, "gone", None)
ROOT: Key = ("R",)
RECORD: Key = ("REC",)
WRITES = ("change", "put", "remove", "forget")


def topic(gen: int) -> Log:
    return ("T", gen)


def payload(gen: int, number: int) -> Log:
    return ("L", gen, number)


def root_key(log: Log) -> Key:
    return ROOT if log[0] == "T" else ("R", *log)


def page_key(log: Log, page: int) -> Key:
    return ("P", log, page)


def mark_key(gen: int, mark: Any, at: int) -> Key:
    return ("M", gen, mark, at)


def too_old(log: Log) -> Key:
    """Return the key of the row that stays when a payload log is forgotten."""
    return ("OLD", log)


def is_page(key: Key) -> bool:
    return bool(key[0] == "P")


def change(
    key: Key, expected: Any, new: Any, entries: tuple[Entry, ...] = (), x: frozenset[int] = NONE
) -> Call:
    return ("change", key, expected, new, entries, x)


START: Rows = {
    ROOT: Row(Root(1, 0, 0, "start", "live", 0, None)),
    RECORD: Row((1, True)),
}


# --- Writes: each changes the rows in place and returns (answer, whether a row changed) ----------


def same_head(now: Any, expected: Any) -> bool:
    if now == expected:
        return True
    if keep("exact-head") or not isinstance(now, Head) or expected is None:
        return False
    return (now.epoch, now.state) == (expected.epoch, expected.state)


def _change(rows: Rows, call: Call) -> tuple[bool, bool]:
    _, key, expected, new, entries, x = call
    row = rows.get(key)
    if not same_head(row.head if row else None, expected):
        return False, False
    if new == GONE or row is None:
        rows[key] = Row(new, entries, x)
    else:
        rows[key] = Row(new, row.entries + entries, row.x | x)
    return True, True


def _put(rows: Rows, call: Call) -> tuple[bool, bool]:
    changed = False
    for key, head in call[1]:
        row = Row(head)
        if rows.get(key) != row:
            rows[key] = row
            changed = True
    return True, changed


def _remove(rows: Rows, call: Call) -> tuple[bool, bool]:
    there = [key for key in call[1] if key in rows]
    for key in there:
        del rows[key]
    return True, bool(there)


def _forget(rows: Rows, call: Call) -> tuple[bool, bool]:
    log = call[1]
    root = rows.get(root_key(log))
    if root is None or root.head.state != "dropped":
        return False, False
    for key in [k for k in rows if k == root_key(log) or (is_page(k) and k[1] == log)]:
        del rows[key]
    rows[too_old(log)] = Row(True)
    return True, True


_WRITERS = {"change": _change, "put": _put, "remove": _remove, "forget": _forget}


def write(rows: Rows, call: Call) -> tuple[bool, bool]:
    """Apply a write to ``rows``; return (answer, whether a row changed)."""
    return _WRITERS[call[0]](rows, call)


def keys_of(call: Call) -> list[Key]:
    """Return the keys of the rows that a call writes; none for a forgotten log, because no stale read shows it."""
    if call[0] == "change":
        return [call[1]]
    if call[0] == "put":
        return [key for key, _ in call[1]]
    return list(call[1]) if call[0] == "remove" else []


# --- Reads ---------------------------------------------------------------------------------------


def _get(rows: Rows, call: Call) -> Row | None:
    return rows.get(call[1])


def _cells(rows: Rows, call: Call) -> tuple[tuple[Pair, ...], bool]:
    _, key, above, limit = call
    row = rows.get(key)
    if row is None:
        return (), False
    found = tuple((e, e.id in row.x) for e in row.entries if e.id > above)
    return found[:limit], limit is not None and len(found) > limit


def _last(rows: Rows, call: Call) -> int | None:
    _, log, low, high = call
    return max(
        (k[2] for k in rows if is_page(k) and k[1] == log and low <= k[2] <= high), default=None
    )


def _heads(rows: Rows, call: Call) -> tuple[tuple[int, Head], ...]:
    pages = [(k[2], r.head) for k, r in rows.items() if is_page(k) and k[1] == call[1]]
    return tuple(sorted(page for page in pages if page[1].state != "gone"))


def _marks(rows: Rows, call: Call) -> tuple[Any, ...]:
    return tuple(sorted(r.head for k, r in rows.items() if k[:3] == ("M", call[1], call[2])))


def _old(rows: Rows, call: Call) -> tuple[tuple[Key, Head], ...]:
    pages = [(k, r.head) for k, r in rows.items() if is_page(k) and k[1][1] < call[1]]
    return tuple(sorted(pages, key=repr))


_READERS: dict[str, Callable[[Rows, Call], Any]] = {
    "get": _get,
    "cells": _cells,
    "last": _last,
    "heads": _heads,
    "marks": _marks,
    "old": _old,
}


def read(rows: Rows, call: Call) -> Any:
    """Return the result of a read of ``rows``."""
    return _READERS[call[0].rstrip("!")](rows, call)

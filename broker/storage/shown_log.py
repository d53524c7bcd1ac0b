"""A log as it is stored, for people who search for a fault: root, heads and entries, also invisible ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.columns import (
    ENTRIES_END,
    LIFE,
    POINTER,
    REFERENCE,
    is_rolled_column,
    rolled_column,
)
from broker.storage.entry import STORED, STUB, Entry
from broker.storage.head import NO_END, Head, PageState
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.resolve import Resolver
from broker.storage.root import Root
from broker.wire.jsontext import shown_long

_CELLS_AT_ONCE: Final = 256


class ShownPage(NamedTuple):
    """A page's key, and its head or the reason why the head does not decode."""

    key: LogKey
    head: Head | str


class ShownEntry(NamedTuple):
    """An entry, or the reason why it does not decode, with its page and column."""

    page: LogKey
    column: bytes
    entry: Entry | str


class ShownLog(NamedTuple):
    """A log's root, its last pages and its last entries, each in order."""

    log: LogId
    root: Root | None
    pages: list[ShownPage]
    entries: list[ShownEntry]


async def shown(resolver: Resolver, log: LogId, *, pages_max: int, entries_max: int) -> ShownLog:
    """Return a log as it is stored. Generation 0 means the generation in the topic's root.

    Raises:
        Unavailable: the store does not answer.
        StorageCorrupt: the root does not decode.
    """
    cell = await resolver.head(space_of(log), root_key(log))
    root = None if cell is None else roots.decode(cell.value)
    if log.generation == 0 and root is not None:
        log = log._replace(generation=root.generation)
    first, last = page_key(log, LOG_KEY_MIN), page_key(log, LOG_KEY_MAX)
    rows = await resolver.read(
        lambda: resolver.table.scan(space_of(log), first, last, limit=pages_max, reverse=True)
    )
    pages = [_page(row, cell.value) for row, cell in rows]
    found: list[ShownEntry] = []
    for page in pages:
        if len(found) >= entries_max:
            break
        if not (isinstance(page.head, Head) and page.head.state is PageState.GONE):
            found += await _entries(resolver, log, page.key, entries_max - len(found))
    return ShownLog(log, root, pages[::-1], found[::-1])


def _page(row: bytes, value: bytes) -> ShownPage:
    try:
        return ShownPage(page_of(row), heads.decode(value))
    except (StorageCorrupt, ValueError) as error:
        return ShownPage(page_of(row), str(error))


async def _entries(
    resolver: Resolver, log: LogId, page: LogKey, entries_max: int
) -> list[ShownEntry]:
    """Return the last entries of a page, the last one first."""
    found: list[ShownEntry] = []
    rolled: dict[bytes, bytes] = {}
    row, last = page_key(log, page), ENTRIES_END
    while len(found) < entries_max:
        cells = await resolver.read(
            lambda last=last: resolver.table.cells(  # type: ignore[misc]
                space_of(log),
                row,
                b"e",
                last,
                cells_max=_CELLS_AT_ONCE,
                bytes_max=1 << 20,
                reverse=True,
            )
        )
        for column, value in cells.cells:
            if is_rolled_column(column):
                rolled[column] = value
            else:
                x = rolled.pop(rolled_column(column), None)
                found.append(ShownEntry(page, column, _entry(value, x)))
        if not cells.more:
            break
        last = _below(cells.cells[-1][0])
    return found[:entries_max]


def _entry(value: bytes, rolled: bytes | None) -> Entry | str:
    try:
        entry = entries.decode(value)
        if rolled is not None:
            entry.rolled = entries.decode_rolled(rolled)
    except (StorageCorrupt, ValueError) as error:
        return str(error)
    return entry


def _below(column: bytes) -> bytes:
    """Return the greatest possible column below another one."""
    return column[:-1] + bytes([column[-1] - 1]) + b"\xff" * 8 if column[-1] else column[:-1]


# --- As JSON ---------------------------------------------------------------------------------------

_FLAGS: Final = (
    *((POINTER, "pointer"), (LIFE, "lifetime"), (REFERENCE, "reference")),
    *((STORED, "stored"), (STUB, "stub")),
)


def tx_state(entry: Entry, invalid: Collection[int] = ()) -> str:
    """Return the state of an entry's transaction by the store, or ``invalid`` if it is in ``invalid``.

    The clean-up of invalid transactions inverts the entry's pointer; such an entry is rolled back.
    """
    if entry.pointer is None:
        return "none"
    if any(first <= entry.first and entry.last <= last for first, last in entry.rolled):
        return "rolled_back"
    if entry.pointer in invalid:
        return "invalid"
    return "partly_rolled_back" if entry.rolled else "published"


def json_of(shown: ShownLog, invalid: Collection[int] = ()) -> dict[str, Any]:
    """Return a log as JSON, with ids and tokens in hex."""
    return {
        "topic": str(shown.log.topic),
        "generation": shown.log.generation,
        "payload_log": shown_long(shown.log.number),
        "root": None if shown.root is None else _root_json(shown.root),
        "pages": [{"page": page.key.hex(), **_fields(page.head)} for page in shown.pages],
        "entries": [_entry_json(each, invalid) for each in shown.entries],
    }


def _root_json(root: Root) -> dict[str, Any]:
    return {name: _json(value) for name, value in root._asdict().items()} | {
        "state": root.state.name.lower()
    }


def _fields(head: Head | str) -> dict[str, Any]:
    if isinstance(head, str):
        return {"wrong": head}
    fields = {name: _json(value) for name, value in head._asdict().items()}
    end_ms = None if head.first_end_ms == NO_END else head.first_end_ms
    return fields | {"state": head.state.name.lower(), "first_end_ms": end_ms}


def _json(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _entry_json(shown: ShownEntry, invalid: Collection[int]) -> dict[str, Any]:
    known = {"page": shown.page.hex(), "column": shown.column.hex()}
    entry = shown.entry
    if isinstance(entry, str):
        return {**known, "wrong": entry}
    return {
        **known,
        "first": entry.first.hex(),
        "last": entry.last.hex(),
        "count": entry.count,
        "epoch": entry.epoch,
        "flags": _flags(entry),
        "bytes": len(entry.items),
        "pointer": shown_long(entry.pointer),
        "tx_state": tx_state(entry, invalid),
        "lifetime_ms": entry.lifetime_ms,
        "payload_log": shown_long(entry.number),
        "rolled_back": [[first.hex(), last.hex()] for first, last in entry.rolled],
        "marks": [
            {
                "kind": mark.kind,
                "key": mark.key.hex(),
                "first": mark.first.hex(),
                "last": mark.last.hex(),
            }
            for mark in entry.marks
        ],
    }


def _flags(entry: Entry) -> list[str]:
    return [name for flag, name in _FLAGS if entry.flags & flag]

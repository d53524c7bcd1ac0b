"""The output of ``broker storage``: reports, and logs as they are stored, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from broker.cli.output import write_line, write_properties, write_table
from broker.errors import BadRequest
from broker.model import LogKey, timestamp_of
from broker.moments import time_text
from broker.storage.columns import LIFE, POINTER, REFERENCE
from broker.storage.entry import STORED, STUB, Entry
from broker.storage.head import NO_END, Head
from broker.storage.report import COUNTED, CheckReport
from broker.storage.root import Root, RootState
from broker.storage.shown_log import ShownEntry, ShownLog, ShownPage
from broker.wire.jsontext import read_long, shown_long
from broker.wire.transaction import decode_snapshot, decode_transaction

_PAGE_COLUMNS: Final = (
    *("PAGE", "STATE", "EPOCH", "OWNER", "POINTER", "TOTAL", "BYTES", "ENTRIES", "MARKED"),
    "PREV",
)
_ENTRY_COLUMNS: Final = ("FIRST", "LAST", "PUBLISHED", "COUNT", "EPOCH", "BYTES", "KIND")
_FLAGS: Final = (
    *((POINTER, "pointer"), (LIFE, "lifetime"), (REFERENCE, "reference")),
    *((STORED, "stored"), (STUB, "stub")),
)


def write_report(report: CheckReport) -> None:
    """Write the counts of a check, and its problems, one on each line."""
    counted = [name for name in COUNTED if name != "wrong"]
    write_properties({name.replace("_", " "): getattr(report, name) for name in counted})
    for line in report.lost:
        write_line(f"lost: {line}")
    for line in report.problems:
        write_line(f"problem: {line}")
    if report.wrong > len(report.problems):
        write_line(f"… and {report.wrong - len(report.problems)} more")
    write_line(f"problems: {report.wrong}" if report.wrong else "no problems")


def invalid_pointers(text: bytes) -> Collection[int]:
    """Return the invalid write pointers of a snapshot or of a JSON list. Raises click.BadParameter."""
    try:
        if not text.lstrip().startswith((b"{", b"[")):
            return frozenset(decode_transaction(text).invalids)
        value = json.loads(text)
        if isinstance(value, list):
            return frozenset(read_long("--snapshot", each) for each in value)
        return frozenset(decode_snapshot(value.get("snapshot", value)).invalids)
    except (ValueError, TypeError, BadRequest) as error:
        raise click.BadParameter(
            f"the file is neither a snapshot nor a list of write pointers: {error}",
            param_hint="--snapshot",
        ) from error


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


def shown_json(shown: ShownLog, invalid: Collection[int] = ()) -> dict[str, Any]:
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


def write_shown(shown: ShownLog, invalid: Collection[int] = ()) -> None:
    """Write a log: its root, and tables of its last pages and entries."""
    if shown.root is None:
        write_line("this log has no root: no message was ever stored in it")
    else:
        write_properties(dict(_root_lines(shown.root)))
    if shown.pages:
        write_line()
        write_table(_PAGE_COLUMNS, map(_page_cells, shown.pages))
    if shown.entries:
        write_line()
        write_table(_ENTRY_COLUMNS, [_entry_cells(each, invalid) for each in shown.entries])


def _root_lines(root: Root) -> Iterator[tuple[str, object]]:
    yield "state", root.state.name.lower()
    yield "generation", root.generation
    yield "epoch", root.epoch
    yield "page", root.page.hex()
    yield "floor", root.floor.hex()
    yield "gone below", root.gone.hex()
    if root.state in {RootState.SEALED, RootState.PUBLISHED, RootState.DROPPED}:
        yield "sealed at", _id(root.at)
        yield "reference", _id(root.reference)
    if root.dropped_ms:
        yield "dropped", time_text(root.dropped_ms)


def _id(key: LogKey) -> str:
    return key.hex() if any(key) else "none"


def _page_cells(page: ShownPage) -> Sequence[str]:
    head = page.head
    if isinstance(head, str):
        return (page.key.hex(), f"wrong: {head}", *[""] * (len(_PAGE_COLUMNS) - 2))
    numbers = (head.total, head.bytes, head.cells)
    return (
        page.key.hex(),
        head.state.name.lower(),
        str(head.epoch),
        head.owner or "none",
        head.pointer.hex(),
        *map(str, numbers),
        head.marked.hex(),
        head.prev.hex(),
    )


def _entry_cells(shown: ShownEntry, invalid: Collection[int]) -> Sequence[str]:
    entry = shown.entry
    if isinstance(entry, str):
        return (shown.column.hex(), f"wrong: {entry}", *[""] * (len(_ENTRY_COLUMNS) - 2))
    time = time_text(timestamp_of(entry.first))
    numbers = (entry.count, entry.epoch, len(entry.items))
    return entry.first.hex(), entry.last.hex(), time, *map(str, numbers), _kind(entry, invalid)


def _kind(entry: Entry, invalid: Collection[int]) -> str:
    attributes: Mapping[str, object] = {
        "pointer": entry.pointer,
        "lifetime ms": entry.lifetime_ms,
        "payload log": entry.number,
    }
    parts = [f"{name} {value}" for name, value in attributes.items() if value is not None]
    if entry.is_stub:
        parts.append("ended")
    if entry.rolled:
        parts.append(f"rolled back in {len(entry.rolled)}")
    if tx_state(entry, invalid) == "invalid":
        parts.append("invalid")
    if entry.marks:
        parts.append(f"marks {len(entry.marks)}")
    return ", ".join(parts) or "plain"

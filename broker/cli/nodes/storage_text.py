"""The reports of ``broker storage`` and logs as they are stored, as text; the invalid pointers of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping

import click

from broker.cli.command.output import Field, properties, table, value_of, write_line, write_spaced
from broker.errors import BadRequest
from broker.model import LogKey, timestamp_of
from broker.moments import time_text
from broker.storage.entry import Entry
from broker.storage.report import COUNTED, CheckReport
from broker.storage.root import RootState
from broker.storage.shown_log import ShownEntry, ShownLog, ShownPage, tx_state
from broker.wire.jsontext import read_long
from broker.wire.transaction import decode_snapshot, decode_transaction


def _of(part: str, field: Field, wrong: str = "") -> Field:
    """Return a field of a page's head or of an entry; if it does not decode, ``wrong`` with the reason."""

    def found(shown: ShownPage | ShownEntry) -> object:
        value = getattr(shown, part)
        return wrong and f"{wrong}: {value}" if isinstance(value, str) else value_of(value, field)

    return found


def _hex(name: str) -> Field:
    return lambda found: getattr(found, name).hex()


_PAGES = table(
    *("PAGE", "STATE", "EPOCH", "OWNER", "POINTER", "TOTAL", "BYTES", "ENTRIES", "MARKED", "PREV"),
    fields={
        "PAGE": _hex("key"),
        "STATE": _of("head", lambda head: head.state.name.lower(), "wrong"),
        "EPOCH": _of("head", "epoch"),
        "OWNER": _of("head", lambda head: head.owner or "none"),
        "POINTER": _of("head", _hex("pointer")),
        "TOTAL": _of("head", "total"),
        "BYTES": _of("head", "bytes"),
        "ENTRIES": _of("head", "cells"),
        "MARKED": _of("head", _hex("marked")),
        "PREV": _of("head", _hex("prev")),
    },
)


def _entries(invalid: Collection[int]) -> Callable[[Iterable[ShownEntry]], None]:
    return table(
        *("FIRST", "LAST", "PUBLISHED", "COUNT", "EPOCH", "BYTES", "KIND"),
        fields={
            "FIRST": lambda each: (
                each.column if isinstance(each.entry, str) else each.entry.first
            ).hex(),
            "LAST": _of("entry", _hex("last"), "wrong"),
            "PUBLISHED": _of("entry", lambda entry: time_text(timestamp_of(entry.first))),
            "COUNT": _of("entry", "count"),
            "EPOCH": _of("entry", "epoch"),
            "BYTES": _of("entry", lambda entry: len(entry.items)),
            "KIND": _of("entry", lambda entry: _kind(entry, invalid)),
        },
    )


def write_report(report: CheckReport) -> None:
    """Write the counts of a check, and its problems, one on each line."""
    counted = [name for name in COUNTED if name != "wrong"]
    write_spaced({name: getattr(report, name) for name in counted})
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


def _if_ended(name: str) -> Field:
    ended = {RootState.SEALED, RootState.PUBLISHED, RootState.DROPPED}
    return lambda root: _id(getattr(root, name)) if root.state in ended else None


_ROOT = properties(
    *("state", "generation", "epoch", "page", "floor", "gone below", "sealed at", "reference"),
    "dropped",
    fields={
        "state": lambda root: root.state.name.lower(),
        "page": _hex("page"),
        "floor": _hex("floor"),
        "gone below": _hex("gone"),
        "sealed at": _if_ended("at"),
        "reference": _if_ended("reference"),
        "dropped": lambda root: time_text(root.dropped_ms) if root.dropped_ms else None,
    },
)


def write_shown(shown: ShownLog, invalid: Collection[int] = ()) -> None:
    """Write a log: its root, and tables of its last pages and entries."""
    if shown.root is None:
        write_line("this log has no root: no message was ever stored in it")
    else:
        _ROOT(shown.root)
    if shown.pages:
        write_line()
        _PAGES(shown.pages)
    if shown.entries:
        write_line()
        _entries(invalid)(shown.entries)


def _id(key: LogKey) -> str:
    return key.hex() if any(key) else "none"


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

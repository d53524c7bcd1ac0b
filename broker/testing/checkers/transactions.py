"""Checkers of transactions: rollbacks stay, stored payloads are sealed before they are seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from broker.testing.checkers.violations import Seen, Violation, reads_of, rows_of, spot
from broker.testing.history import Call, of


def rolled_back(calls: Sequence[Call]) -> list[Violation]:
    """Find rows that are shown as published after their rollback, or as rolled back without one."""
    rollbacks: dict[int, list[Call]] = defaultdict(list)
    for call in of(calls, "rollback"):
        rollbacks[call.asked["pointer"]].append(call)
    found = []
    for read in reads_of(calls):
        for row in rows_of(read):
            if row.pointer is not None and row.pointer > 0:
                done = [
                    call
                    for call in rollbacks[row.pointer]
                    if _concerns(call, row) and call.is_ok and call.end < read.invoked
                ]
                if done:
                    found.append(Violation("rolled_back_read", _told(row, read)))
            elif row.pointer is not None and row.pointer < 0:
                asked = [
                    call
                    for call in rollbacks[-row.pointer]
                    if _concerns(call, row) and call.invoked < read.end
                ]
                if not asked:
                    found.append(Violation("phantom_rollback", _told(row, read)))
    return found


def _concerns(call: Call, row: Seen) -> bool:
    return bool(call.asked["first"] <= row.id <= call.asked["last"])


def _told(row: Seen, read: Call) -> str:
    return spot(row.id, pointer=row.pointer, payload=row.payload, reader=read.process)


def payloads_changed(calls: Sequence[Call]) -> list[Violation]:
    """Find stored payloads that are missing where their reference shows, or came after it.

    Whoever sees a reference sees all that was stored and acknowledged before it was published, and
    everybody sees the same.
    """
    stored: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in of(calls, "store"):
        stored[call.asked["number"], call.asked["generation"]].append(call)
    found = []
    first_shown: dict[tuple[int, int], list[str]] = {}
    for read in of(calls, "payloads"):
        if not read.is_ok:
            continue
        log = read.asked["number"], read.asked["generation"]
        shown = [row[1] for row in read.told["rows"]]
        if first_shown.setdefault(log, shown) != shown:
            detail = spot("payload log", log=log, first=first_shown[log], later=shown)
            found.append(Violation("payloads_changed", detail))
        found += _stored_but_missing(stored[log], shown)
    return found


def _stored_but_missing(stores: Sequence[Call], shown: Sequence[str]) -> list[Violation]:
    present = set(shown)
    return [
        Violation("payloads_lost", spot(payload, number=call.asked["number"]))
        for call in stores
        if call.is_ok
        for payload in call.asked["payloads"]
        if payload not in present
    ]

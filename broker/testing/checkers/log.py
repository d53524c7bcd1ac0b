"""Checkers of what was published: lost, twice, never asked for, out of order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from broker.testing.checkers.violations import Violation, final_of, reads_of, rows_of, spot
from broker.testing.history import Call, of


def acknowledged(calls: Sequence[Call]) -> list[Call]:
    """Return the publishes that were acknowledged."""
    return [call for call in of(calls, "publish") if call.is_ok]


def lost(calls: Sequence[Call]) -> list[Violation]:
    """Find acknowledged payloads that are not in the log at the end.

    Told apart by place among the same process's: a lost tail might be a slow reader's, a lost prefix
    a floor's; a lost middle never is.
    """
    final = final_of(calls)
    if final is None:
        return []
    present = {row.payload for row in final.rows.values()}
    by_process: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for call in acknowledged(calls):
        # The last row bounds them all: what a floor took is not lost.
        if call.asked["generation"] != final.generation or call.told["last"] < final.floor:
            continue
        for payload in call.asked["payloads"]:
            if len(call.asked["payloads"]) == 1 or call.id is None or call.id >= final.floor:
                by_process[call.process].append((payload, payload in present))
    found = []
    for process, payloads in by_process.items():
        kept = [index for index, (_, is_present) in enumerate(payloads) if is_present]
        for index, (payload, is_present) in enumerate(payloads):
            if not is_present:
                place = _place(index, kept)
                found.append(Violation(f"lost_{place}", spot(payload, process=process)))
    return found


def _place(index: int, kept: list[int]) -> str:
    if not kept or index > kept[-1]:
        return "tail"
    return "prefix" if index < kept[0] else "middle"


def duplicated(calls: Sequence[Call]) -> list[Violation]:
    """Find payloads that stand at two ids."""
    ids: dict[str, set[str]] = defaultdict(set)
    for read in reads_of(calls):
        for row in rows_of(read):
            if row.payload is not None:
                ids[row.payload].add(row.id)
    return [
        Violation("duplicated", spot(payload, ids=sorted(places)))
        for payload, places in ids.items()
        if len(places) > 1
    ]


def phantom(calls: Sequence[Call]) -> list[Violation]:
    """Find payloads that were read though their publish failed, or was never asked for."""
    attempts: dict[str, list[Call]] = defaultdict(list)
    for call in of(calls, "publish"):
        for payload in call.asked["payloads"]:
            attempts[payload].append(call)
    found = {}
    for read in reads_of(calls):
        for row in rows_of(read):
            if row.payload is None or row.payload in found:
                continue
            tried = [call for call in attempts[row.payload] if call.invoked < read.end]
            if all(call.outcome == "fail" for call in tried):
                detail = spot(row.payload, id=row.id, attempts=len(tried), reader=read.process)
                found[row.payload] = Violation("phantom", detail)
    return list(found.values())


def reordered(calls: Sequence[Call]) -> list[Violation]:
    """Find publishes whose ids contradict real time, or one leader's order of arrival.

    If one was acknowledged before another was asked for, its id is less.
    """
    publishes = [call for call in acknowledged(calls) if not call.told.get("replayed")]
    found = []
    by_end = sorted(publishes, key=lambda call: call.end)
    place, highest, of_highest = 0, "", ""
    for call in sorted(publishes, key=lambda call: call.invoked):
        while place < len(by_end) and by_end[place].end < call.invoked:
            if by_end[place].told["last"] > highest:
                highest = by_end[place].told["last"]
                of_highest = by_end[place].asked["payloads"][-1]
            place += 1
        if call.id is not None and call.id <= highest:
            detail = spot(call.asked["payloads"][0], id=call.id, before=of_highest, its=highest)
            found.append(Violation("reordered", detail))
    return found


def id_reused(calls: Sequence[Call]) -> list[Violation]:
    """Find ids that two acknowledged publishes were given, or that showed two payloads."""
    owners: dict[str, str | None] = {}
    found = []
    for call in acknowledged(calls):
        for row_id, payload in (
            (call.id, call.asked["payloads"][0]),
            (call.told["last"], call.asked["payloads"][-1]),
        ):
            if row_id is not None and owners.setdefault(row_id, payload) != payload:
                detail = spot(row_id, one=owners[row_id], other=payload)
                found.append(Violation("id_reused", detail))
    shown: dict[str, str | None] = {}
    for read in reads_of(calls):
        for row in rows_of(read):
            known = owners.get(row.id, shown.setdefault(row.id, row.payload))
            if known != row.payload and row.payload is not None:
                detail = spot(row.id, one=known, other=row.payload)
                found.append(Violation("id_reused", detail))
    return found


def torn(calls: Sequence[Call]) -> list[Violation]:
    """Find requests of which the log holds a part."""
    final = final_of(calls)
    if final is None:
        return []
    present = {row.payload for row in final.rows.values()}
    found = []
    for call in of(calls, "publish"):
        payloads = call.asked["payloads"]
        shown = [payload for payload in payloads if payload in present]
        if call.asked["generation"] == final.generation and 0 < len(shown) < len(payloads):
            first = min(row.id for row in final.rows.values() if row.payload in shown)
            if not final.floor or first > final.floor:
                found.append(
                    Violation("torn", spot("part of a batch", batch=payloads, in_log=shown))
                )
    return found


def two_epochs(calls: Sequence[Call]) -> list[Violation]:
    """Find acknowledgements of an epoch for what was asked after a later epoch acknowledged."""
    publishes = [call for call in acknowledged(calls) if call.epoch is not None]
    by_end = sorted(publishes, key=lambda call: call.end)
    found = []
    place, highest = 0, 0
    for call in sorted(publishes, key=lambda call: call.invoked):
        while place < len(by_end) and by_end[place].end < call.invoked:
            highest = max(highest, by_end[place].epoch or 0)
            place += 1
        if call.epoch is not None and call.epoch < highest and not call.told.get("replayed"):
            detail = spot(call.asked["payloads"][0], epoch=call.epoch, after=highest)
            found.append(Violation("two_epochs", detail))
    return found


def two_answers(calls: Sequence[Call]) -> list[Violation]:
    """Find idempotency keys under which two publishes were acknowledged with different ids."""
    answers: dict[str, tuple[str | None, str]] = {}
    found = []
    for call in acknowledged(calls):
        key = call.asked.get("key")
        if key is None:
            continue
        answer = (call.id, call.told["last"])
        if answers.setdefault(key, answer) != answer:
            found.append(Violation("two_answers", spot(key, one=answers[key], other=answer)))
    return found


def written_after_delete(calls: Sequence[Call]) -> list[Violation]:
    """Find acknowledgements for what was asked of a generation after its deletion was done.

    A store is none: it shows nothing before its reference is published, which then is refused. Nor
    is an answer given once more.
    """
    deleted: dict[int, float] = {}
    for call in of(calls, "delete"):
        if call.is_ok:
            generation = call.asked["generation"]
            deleted[generation] = min(deleted.get(generation, call.end), call.end)
    return [
        Violation("written_after_delete", spot(call.op, asked=call.asked))
        for call in of(calls, "publish", "reference", "rollback")
        if call.is_ok
        and not call.told.get("replayed")
        and deleted.get(call.asked["generation"], float("inf")) < call.invoked
    ]

"""Checkers of what was read: the log never changes, and a cursor misses nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from broker.testing.checkers.violations import (
    Final,
    Violation,
    final_of,
    generations_of,
    reads_of,
    rows_of,
    spot,
)
from broker.testing.history import Call, of


def covered(read: Call) -> tuple[str, str]:
    """Return the ids that a read vouches for, ``(after, up to]``."""
    if read.asked.get("reverse"):
        after = max(_below(read.told["seen"]), read.asked["after"])
        return after, min(read.asked["through"], read.told["pointer"])
    return read.asked["after"], min(read.told["seen"], read.told["pointer"])


def _below(row_id: str) -> str:
    number = int(row_id, 16)
    return f"{max(number - 1, 0):020x}"


def changed_read(calls: Sequence[Call]) -> list[Violation]:
    """Find ids that one read shows, and another that covers them does not.

    Rows below a floor that was asked for may go; nothing else may, and nothing may come between.
    """
    found = []
    final = final_of(calls)
    for generation in generations_of(calls):
        reads = reads_of(calls, generation)
        everything = sorted({row.id for read in reads for row in rows_of(read)})
        floors = _floors(calls, generation, final)
        for read in reads:
            shown = {row.id for row in rows_of(read)}
            after, through = covered(read)
            low, high = bisect_right(everything, after), bisect_right(everything, through)
            for row_id in everything[low:high]:
                if row_id not in shown and row_id >= _floor_at(floors, read.end):
                    detail = spot(row_id, missing_in=read.process, covering=(after, through))
                    found.append(Violation("changed_read", detail))
    return found


def _floors(calls: Sequence[Call], generation: int, final: Final | None) -> list[tuple[int, str]]:
    """Return (asked at, floor): from then on rows below may be missing. The end's floor decides.

    A floor that the control row does not have at the end was none: what went by it is missing.
    """
    bound = final.floor if final is not None and final.generation == generation else None
    floors = []
    for call in of(calls, "floor"):
        if call.asked["generation"] == generation and call.outcome != "fail":
            floor = call.asked["floor"]
            floors.append((call.invoked, floor if bound is None else min(floor, bound)))
    return floors


def _floor_at(floors: Sequence[tuple[int, str]], place: float) -> str:
    return max((floor for asked, floor in floors if asked < place), default="")


def cursor(calls: Sequence[Call]) -> list[Violation]:
    """Find consumers that went backwards, or passed over a row of the log."""
    final = final_of(calls)
    by_consumer: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for read in reads_of(calls):
        if read.asked.get("cursor"):
            by_consumer[read.asked["cursor"], read.asked["generation"]].append(read)
    found = []
    for (consumer, generation), reads in by_consumer.items():
        ids = [row.id for read in reads for row in rows_of(read)]
        for earlier, later in pairwise(ids):
            if later <= earlier:
                detail = spot(consumer, earlier=earlier, later=later)
                found.append(Violation("backward_cursor", detail))
        if final is not None and final.generation == generation and ids:
            found += _skipped(consumer, reads[0].asked["after"], ids, final)
    return found


def _skipped(consumer: str, after: str, ids: list[str], final: Final) -> list[Violation]:
    everything = sorted(final.rows)
    seen = set(ids)
    low, high = bisect_right(everything, after), bisect_left(everything, ids[-1])
    return [
        Violation("skipped", spot(consumer, row=row_id))
        for row_id in everything[low:high]
        if row_id not in seen
    ]


def unreadable(calls: Sequence[Call]) -> list[Violation]:
    """Find logs that can't be read to the end when everything is healed."""
    return [
        Violation("unreadable", spot(str(call.told.get("why")), asked=call.asked))
        for call in of(calls, "read")
        if call.process == "final" and not call.is_ok
    ]


def time_addressing(calls: Sequence[Call]) -> list[Violation]:
    """Find answers with rows outside of what was asked for, or not in order."""
    found = []
    for read in reads_of(calls):
        ids = [row.id for row in rows_of(read)]
        reverse = bool(read.asked.get("reverse"))
        if ids != sorted(set(ids), reverse=reverse):
            found.append(Violation("misordered", spot(read.process, ids=ids)))
        outside = [i for i in ids if not read.asked["after"] < i <= read.asked["through"]]
        if outside:
            found.append(Violation("out_of_range", spot(read.process, ids=outside)))
    return found


def floor_lowered(calls: Sequence[Call]) -> list[Violation]:
    """Find floors that were acknowledged, and are lower at the end."""
    final = final_of(calls)
    if final is None:
        return []
    return [
        Violation("floor_lowered", spot(call.asked["floor"], final=final.floor))
        for call in of(calls, "floor")
        if call.is_ok
        and call.asked["generation"] == final.generation
        and call.told["floor"] > final.floor
    ]

"""The checker of a single read: its rows are in order, and inside the requested range."""

from __future__ import annotations

from itertools import pairwise

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.history_rows import Read, asked_after, asked_through, first_at
from chaos.checkers.violations import spot
from chaos.history import Operation


class Ranges(Checker):
    """Find answers with rows out of range, too many rows, or rows out of order."""

    names = ("misordered", "out_of_range", "time_addressing", "unreadable")

    @override
    def read(self, read: Read, life: int) -> None:
        """Judge the ids of a read."""
        del life
        call = read.call
        ids = [row.id for row in read.rows]
        pairs = pairwise(reversed(ids) if call.asked.get("reverse") else ids)
        if any(one >= other for one, other in pairs):
            self.found.add("misordered", spot(call.process, ids=ids), call.ended)
        after, through, limit = asked_after(call), asked_through(call), call.asked.get("limit")
        outside = [message_id for message_id in ids if not after < message_id <= through]
        if outside:
            time_ms = call.asked.get("time")
            is_early = time_ms is not None and min(outside) < first_at(time_ms)
            name = "time_addressing" if is_early else "out_of_range"
            detail = spot(call.process, after=after, through=through, ids=outside)
            self.found.add(name, detail, call.ended)
        if limit is not None and len(ids) > limit:
            self.found.add("out_of_range", spot(call.process, limit=limit, ids=ids), call.ended)

    @override
    def ended(self, call: Operation) -> None:
        """Find logs that can't be read to their end after healing."""
        is_final = call.process.partition("@")[0] == "final"
        if call.op == "read" and is_final and not call.is_ok:
            detail = spot(call.process, why=call.told.get("why"), asked=call.asked)
            self.found.add("unreadable", detail, call.ended)

"""The checker of payloads in the log: each was requested, and is there once, at its id."""

from __future__ import annotations

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.facts import UNSURE, Tried, answered
from chaos.checkers.history_rows import Read, ReadRow
from chaos.checkers.violations import spot
from chaos.history import Operation

NEVER_REQUESTED = Tried(place=-1, part=0, size=1, tried_ns=0, publisher="", number=0, maybe=1)
"""Stands for the missing request of a phantom."""


class Identity(Checker):
    """Find payloads that no request published or that were refused, and wrong ids and attributes."""

    names = (
        "phantom",
        "refused_but_stored",
        "duplicated",
        "id_reused",
        "torn",
        "old_rows",
        "other_attributes",
    )

    @override
    def read(self, read: Read, life: int) -> None:
        """Judge each row of a read."""
        for row in read.rows:
            if row.payload is None:
                continue
            if row.others is not None:
                detail = spot(row.payload, id=row.id, has=row.others, reader=read.call.process)
                self.found.add("other_attributes", detail, read.call.ended)
            tried = self.topic.tried.get(row.payload)
            if tried is None or tried.id != row.id:
                self._new_place(read, row, tried)
            if tried is not None and _is_older(tried, life):
                detail = spot(row.payload, id=row.id, of=tried.life, shown_in=life)
                self.found.add("old_rows", detail, read.call.ended)

    def _new_place(self, read: Read, row: ReadRow, tried: Tried | None) -> None:
        """Judge a payload that no read showed at this id before."""
        assert row.payload is not None
        place = read.call.ended
        if tried is None:
            detail = spot(row.payload, id=row.id, reader=read.call.process)
            self.found.add("phantom", detail, place)
            tried = NEVER_REQUESTED
        elif not tried.id:
            self._first_place(read, row, tried)
        self._own(row.id, row.payload, place)
        if not tried.id:
            self.topic.tried.put(row.payload, tried._replace(id=row.id))
        elif self.topic.owners.get(f"{row.id} again") is None:
            self.topic.owners.put(f"{row.id} again", (row.payload,))
            detail = spot(row.payload, ids=(tried.id, row.id), reader=read.call.process)
            self.found.add("duplicated", detail, place)

    def _first_place(self, read: Read, row: ReadRow, tried: Tried) -> None:
        if not tried.may_be_there:
            self._refused(str(row.payload), row.id, read.call)
        if tried.told and tried.told != row.id and not tried.is_stored:
            detail = spot(str(row.payload), answered=tried.told, shown_at=row.id)
            self.found.add("torn", detail, read.call.ended)

    def _refused(self, payload: str, message_id: str, call: Operation) -> None:
        detail = spot(payload, id=message_id, found_by=call.process)
        self.found.add("refused_but_stored", detail, call.ended)

    def _own(self, message_id: str, payload: str, place: int | None) -> None:
        owner = self.topic.owners.get(message_id)
        if owner is None:
            self.topic.owners.put(message_id, (payload,))
        elif owner[0] != payload:
            self.found.add("id_reused", spot(message_id, one=owner[0], other=payload), place)

    @override
    def ended(self, call: Operation) -> None:
        """Compare the ids of an acknowledgement, or the payloads of a refusal, with the shown rows."""
        if call.op != "publish":
            return
        payloads = call.asked["payloads"]
        if call.is_ok:
            for index in (0, len(payloads) - 1)[: len(payloads)]:
                self._answered(call, index)
        elif call.outcome == "fail":
            for payload in payloads:
                tried = self.topic.tried.get(payload)
                if tried is not None and tried.id and not tried.may_be_there:
                    self._refused(payload, tried.id, call)

    def _answered(self, call: Operation, index: int) -> None:
        told, payload = answered(call, index), call.asked["payloads"][index]
        if told is None or call.told.get("replayed"):
            return
        self._own(told, payload, call.ended)
        tried = self.topic.tried.get(payload)
        if tried is not None and tried.id and tried.id != told:
            self.found.add("torn", spot(payload, answered=told, shown_at=tried.id), call.ended)


def _is_older(tried: Tried, life: int) -> bool:
    return tried.acked >= 0 and not tried.maybe and UNSURE < tried.life < life

"""Checkers of transactions' reads: a read shows all rows that its snapshot includes, and no other.

A read with a snapshot goes by each row's pointer, and ends at the first row of an open transaction::

    row      1       2          3       4       5
    pointer  none    visible    invalid open    visible
             shown   shown      skipped end     not shown: it is after the end

The checker knows the rows of a range only after reads without a snapshot have covered it, so a read with a
snapshot waits until then. A row that may have been rolled back meanwhile may be shown or not. It does not
end the read.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import merge
from typing import Any, NamedTuple

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.facts import UNSURE, FinalRow, TopicFacts, TopicLife, Tried
from chaos.checkers.history_rows import ABOVE_ALL, INLINE, STORED, Read
from chaos.checkers.tables import LAST
from chaos.checkers.violations import Findings, Promises, spot


class View:
    """The rows that a snapshot includes."""

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        """Take a snapshot as a history has it."""
        self._read_pointer: int = snapshot["read_pointer"]
        self._invalids = frozenset(snapshot.get("invalids") or ())
        self._in_progress = frozenset(snapshot.get("in_progress") or ())
        own = {snapshot.get("transaction_id"), *(snapshot.get("checkpoint_pointers") or ())}
        write_pointer = snapshot.get("write_pointer")
        if snapshot.get("visibility") == 2:  # All but its current writes.
            self._own = own - {write_pointer}
        else:
            self._own = own | {write_pointer}

    def includes(self, pointer: int | None) -> bool:
        """True if a row with this pointer is visible. A row without a pointer always is."""
        if pointer is None or pointer < 0 or pointer in self._own:
            return True
        is_open = pointer > self._read_pointer or pointer in self._in_progress
        return not is_open and pointer not in self._invalids

    def is_own(self, pointer: int) -> bool:
        """True if the pointer is the reader's own."""
        return pointer in self._own

    def is_invalid(self, pointer: int) -> bool:
        """True if the reader must skip rows with this pointer."""
        return pointer in self._invalids


class _Waiting(NamedTuple):
    """A read that waits until other reads have covered its range."""

    read: Read
    view: View
    ids: frozenset[str]
    life: int
    through: str


class Snapshots(Checker):
    """Find rows that a reader with a snapshot must not see, and rows that it must see but did not."""

    names = ("dirty_read", "lost_visible", "half_transaction")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without reads."""
        super().__init__(topic, found, promises)
        self._waiting: list[_Waiting] = []

    @override
    def read(self, read: Read, life: int) -> None:
        """Judge the shown rows now; judge the missing rows when the range is covered."""
        snapshot = read.call.asked.get("snapshot")
        if snapshot is None:
            return
        view = View(snapshot)
        for row in read.rows:
            tried = self.topic.of_payload(row.payload)
            if tried is not None and tried.pointer is not None:
                self._look(read, view, row.id, tried)
        if life != UNSURE:
            ids = frozenset(row.id for row in read.rows)
            is_end = read.is_final and (not read.rows or read.call.asked.get("limit") is None)
            through = ABOVE_ALL if is_end else read.through
            self._waiting.append(_Waiting(read, view, ids, life, through))

    def _look(self, read: Read, view: View, message_id: str, tried: Tried) -> None:
        pointer, call = tried.pointer, read.call
        if pointer is None or pointer < 0:
            return
        if not view.includes(pointer):
            detail = spot(message_id, pointer=pointer, reader=call.process)
            self.found.add("dirty_read", detail, call.ended)
        fate = self.topic.fates.of(pointer)
        if fate.is_undone and fate.undone < call.invoked and not view.is_own(pointer):
            detail = spot(message_id, pointer=pointer, undone_at=fate.undone, reader=call.process)
            self.found.add("half_transaction", detail, call.ended)

    @override
    def over(self) -> None:
        """Judge the reads with a snapshot."""
        for waiting in self._waiting:
            self._judge(waiting, self.topic.log(waiting.life))
        self._waiting = []

    def _judge(self, waiting: _Waiting, log: TopicLife) -> None:
        read, view = waiting.read, waiting.view
        known = [log.shown[kind].between(read.after, waiting.through) for kind in (INLINE, STORED)]
        for message_id, shown in merge(*known):
            tried = self.topic.of_payload(shown.payload)
            pointer = None if tried is None else tried.pointer
            if self._may_be_gone(read, log, message_id, tried):
                continue
            if view.includes(pointer):
                self._must_show(waiting, message_id, pointer)
            elif pointer is not None and not view.is_invalid(pointer):
                self._ends_here(waiting, message_id, pointer)
                return

    def _must_show(self, waiting: _Waiting, message_id: str, pointer: int | None) -> None:
        call, is_shown = waiting.read.call, message_id in waiting.ids
        if call.process == "final" and pointer is not None and pointer >= 0:
            self.topic.fates.count(pointer, is_seen=is_shown)
        if not is_shown:
            detail = spot(message_id, pointer=pointer, reader=call.process)
            self.found.add("lost_visible", detail, call.ended)

    def _ends_here(self, waiting: _Waiting, message_id: str, pointer: int) -> None:
        behind = sorted(other for other in waiting.ids if other > message_id)
        if behind:
            detail = spot(
                behind[0], behind=message_id, pointer=pointer, open_to=waiting.read.call.process
            )
            self.found.add("dirty_read", detail, waiting.read.call.ended)

    def _may_be_gone(
        self, read: Read, log: TopicLife, message_id: str, tried: Tried | None
    ) -> bool:
        """True if a row may be missing for another reason than its pointer."""
        if message_id < log.floor:
            return True
        if tried is None:
            return False
        ended_ns = read.call.ended_ns or 0
        if self.topic.may_have_expired(tried, ended_ns, self.promises.early_ms):
            return True
        undone = self.topic.undone.get(tried.pointer or 0, {})
        asked_in_time = (place for place in undone if place < (read.call.ended or place + 1))
        return any(undone[place].concerns(message_id) for place in asked_in_time)


class WholeAtTheEnd(Checker):
    """Count the messages of each transaction that the logs show at the end."""

    names = ("half_transaction",)

    @override
    def over(self) -> None:
        """Look up every acknowledged message of each transaction."""
        for payload, tried in self.topic.tried.between("", LAST):
            log = self.topic.logs.get(tried.life)
            if tried.pointer is None or tried.acked < 0 or tried.is_stored:
                continue
            if log is not None and log.final is not None and not self._may_have_gone(log, tried):
                row = log.final.get(tried.id) if tried.id else None
                self._count(payload, tried.pointer, row)

    def _count(self, payload: str, pointer: int, row: FinalRow | None) -> None:
        is_seen = row is not None and (row.pointer is None or row.pointer >= 0)
        fate = self.topic.fates.of(pointer)
        if fate.is_undone and row is not None and (row.pointer or 0) > 0 and not fate.is_invalid:
            detail = spot(payload, pointer=pointer, undone_at=fate.undone)
            self.found.add("half_transaction", detail)
        self.topic.fates.count(pointer, is_seen=is_seen)

    def _may_have_gone(self, log: TopicLife, tried: Tried) -> bool:
        if max(tried.told, tried.above) < log.final_floor:
            return True
        return self.topic.may_have_expired(tried, log.final_ns, self.promises.early_ms)

"""Checkers of rollbacks and of stored payloads."""

from __future__ import annotations

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.facts import UNSURE, TopicFacts, Undone
from chaos.checkers.history_rows import ABOVE_ALL, Read, ReadRow, plain
from chaos.checkers.tables import ValueTable
from chaos.checkers.violations import Findings, Promises, spot
from chaos.history import Operation


class Rollbacks(Checker):
    """Find rows that are shown as published after their rollback, or as rolled back without one."""

    names = ("rolled_back", "phantom_rollback")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without rows."""
        super().__init__(topic, found, promises)
        self._open: set[int] = set()
        """The lines of rollbacks in flight."""
        self._early: dict[int, dict[str, tuple[ReadRow, Read]]] = {}
        """By pointer, the rows that were shown as rolled back while only rollbacks in flight can be the reason."""

    @override
    def began(self, call: Operation) -> None:
        """Note a requested rollback: from now on its rows may be rolled back."""
        if call.op == "rollback":
            asked = call.asked
            undone = Undone(
                plain(asked.get("first") or ""), plain(asked.get("last") or ABOVE_ALL), None
            )
            self.topic.undone.setdefault(asked["pointer"], {})[call.invoked] = undone
            self._open.add(call.invoked)

    @override
    def ended(self, call: Operation) -> None:
        """Note how a rollback ended: if acknowledged, its rows must be rolled back from now on.

        If it was refused, a row that was shown as rolled back meanwhile needs another rollback as the reason.
        """
        if call.op != "rollback":
            return
        self._open.remove(call.invoked)
        pointer = call.asked["pointer"]
        of_pointer = self.topic.undone[pointer]
        if call.is_ok:
            of_pointer[call.invoked] = of_pointer[call.invoked]._replace(ended=call.ended)
        elif call.outcome == "fail":
            del of_pointer[call.invoked]
        early = self._early.pop(pointer, {})
        for row, read in early.values():
            self._look_for_rollback(pointer, row, read)

    @override
    def read(self, read: Read, life: int) -> None:
        """Judge the shown pointers; for a reader with a snapshot, those of the publishes."""
        del life
        for row in read.rows:
            pointer = row.pointer
            if pointer is None and read.has_snapshot:
                tried = self.topic.of_payload(row.payload)
                pointer = None if tried is None else max(tried.pointer or 0, 0)
            if pointer is None:
                continue
            if pointer > 0 and self._was_done(pointer, row, read.call):
                self._tell("rolled_back", row, read)
            elif pointer < 0:
                self._look_for_rollback(-pointer, row, read)

    def _was_done(self, pointer: int, row: ReadRow, call: Operation) -> bool:
        return any(
            undone.concerns(row.id) and undone.ended is not None and undone.ended < call.invoked
            for undone in self.topic.undone.get(pointer, {}).values()
        )

    def _look_for_rollback(self, pointer: int, row: ReadRow, read: Read) -> None:
        """Find the rollback of a row that is shown as rolled back; look again if it may still be refused."""
        of_pointer = self.topic.undone.get(pointer, {})
        asked = {place for place, undone in of_pointer.items() if undone.concerns(row.id)}
        if not asked:
            self._tell("phantom_rollback", row, read)
        elif asked <= self._open:
            self._early.setdefault(pointer, {})[row.id] = row, read

    def _tell(self, name: str, row: ReadRow, read: Read) -> None:
        detail = spot(row.id, pointer=row.pointer, payload=row.payload, reader=read.call.process)
        self.found.add(name, detail, read.call.ended)


class Stored(Checker):
    """Find stored payloads that are missing behind their reference, or change.

    Each reader of a reference sees all payloads that were stored and acknowledged before its publication.
    All readers see the same.
    """

    names = ("payloads_changed", "payloads_lost")

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without payloads."""
        super().__init__(topic, found, promises)
        self._shown = ValueTable[tuple[str, ...]](topic.tables)
        self._stored = ValueTable[tuple[str, ...]](topic.tables)

    @override
    def ended(self, call: Operation) -> None:
        """Keep the stored payloads, and compare the shown ones with them."""
        if not call.is_ok or call.op not in ("store", "payloads"):
            return
        life = self.topic.lives.life(call)
        if life == UNSURE:
            return
        log = f"{call.asked['number']} {life}"
        if call.op == "store":
            payloads = tuple(call.asked["payloads"])
            self._stored.put(log, (self._stored.get(log) or ()) + payloads)
            self._find_missing(log, payloads, self._shown.get(log), call)
            return
        shown = tuple(row[1] for row in call.told["rows"])
        first = self._shown.get(log)
        if first is None:
            self._shown.put(log, shown)
        elif first != shown:
            detail = spot("payload log", log=log, first=first, later=shown)
            self.found.add("payloads_changed", detail, call.ended)
        self._find_missing(log, self._stored.get(log) or (), shown, call)

    def _find_missing(
        self, log: str, payloads: tuple[str, ...], shown: tuple[str, ...] | None, call: Operation
    ) -> None:
        present = set(payloads if shown is None else shown)
        for payload in payloads:
            if payload not in present:
                self.found.add("payloads_lost", spot(payload, log=log), call.ended)

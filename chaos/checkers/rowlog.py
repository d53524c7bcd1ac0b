"""The checker of a rowlog: it compares the promises with the history of writers and listeners. Pure.

=================  =================================================================================
row_lost           an acknowledged message was never done for a subscription
row_in_flight      two messages of a row were with listeners of one subscription at once
row_order          a message was offered before an earlier one of its row was done
=================  =================================================================================

A call that was in flight when its process was stopped or killed does not count from then on: the process can't call
the listener back. A call that the process *begins* after it goes on counts. A message whose put was not acknowledged may be
there or not.

The lines of several processes reach a history later than they were written, so they are judged by their times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from chaos.checkers.violations import Findings, Violation
from chaos.history import Operation

NAMES = ("row_lost", "row_in_flight", "row_order")
Kind = Literal["put", "begin", "end", "halted"]


class HistoryLine(NamedTuple):
    """A line of a history. ``process`` and ``time_ns`` are of all kinds; the rest of those it is about."""

    kind: Kind
    process: str
    time_ns: int
    row: str = ""
    seq: int = 0
    subscription: str = ""
    done: bool = False


class _Judge:
    """What is known up to a line of the history."""

    def __init__(self, put: dict[str, set[int]]) -> None:
        self.found: list[Violation] = []
        self.done: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._put = put
        self._flying: defaultdict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)

    def take(self, seen: HistoryLine) -> None:
        """Take the next line."""
        place = (seen.subscription, seen.row)
        if seen.kind == "halted":
            for those in self._flying.values():
                those -= {each for each in those if each[0] == seen.process}
        elif seen.kind == "begin":
            self._begin(seen, place)
        elif seen.kind == "end":
            self._flying[place].discard((seen.process, seen.seq))
            if seen.done:
                self.done[place].add(seen.seq)

    def _begin(self, seen: HistoryLine, place: tuple[str, str]) -> None:
        if beside := {seq for _, seq in self._flying[place]} - {seen.seq}:
            self._add("row_in_flight", f"{place} {seen.seq} beside {sorted(beside)}")
        earlier = {seq for seq in self._put.get(seen.row, ()) if seq < seen.seq}
        if missing := earlier - self.done[place]:
            self._add("row_order", f"{place} {seen.seq} before {sorted(missing)}")
        self._flying[place].add((seen.process, seen.seq))

    def _add(self, name: str, detail: str) -> None:
        self.found.append(Violation(name, detail))


def violations(history: Iterable[HistoryLine], subscriptions: Sequence[str]) -> list[Violation]:
    """Return what was broken; what is lost, of these subscriptions."""
    events = sorted(history, key=lambda each: each.time_ns)
    put: dict[str, set[int]] = {}
    for each in events:
        if each.kind == "put":
            put.setdefault(each.row, set()).add(each.seq)
    judge = _Judge(put)
    for each in events:
        judge.take(each)
    return judge.found + [
        Violation("row_lost", f"{name} never got {sorted(lost)} of {row}")
        for row, seqs in put.items()
        for name in subscriptions
        if (lost := seqs - judge.done[name, row])
    ]


class RowLogs:
    """Judges all rowlogs of a history, each when the history is over: see the lines in history.py."""

    names = NAMES

    def __init__(self, found: Findings) -> None:
        """Begin without a rowlog."""
        self._found = found
        self._seen: defaultdict[str, list[HistoryLine]] = defaultdict(list)
        self._halted: list[HistoryLine] = []
        self._ended: dict[str, list[str]] = {}
        """By rowlog that was waited for at the end: its subscriptions."""

    @property
    def is_known(self) -> bool:
        """Whether each rowlog was waited for at the end."""
        return self._seen.keys() <= self._ended.keys()

    def began(self, call: Operation) -> None:
        """Note that a listener was called."""
        if call.op == "row-offer":
            self._seen[call.asked["log"]].append(_offer(call, "begin", call.invoked_ns))

    def ended(self, call: Operation) -> None:
        """Note an answer."""
        if not call.is_ok:
            return
        asked, ended_ns = call.asked, call.ended_ns or 0
        if call.op == "row-put":
            put = HistoryLine("put", call.process, ended_ns, asked["row"], call.told["seq"])
            self._seen[asked["log"]].append(put)
        elif call.op == "row-offer":
            self._seen[asked["log"]].append(_offer(call, "end", ended_ns))
        elif call.op == "row-halt":
            self._halted.append(HistoryLine("halted", asked["processor"], call.invoked_ns))
        elif call.op == "row-final":
            self._ended[asked["log"]] = asked["subscriptions"]

    def over(self) -> None:
        """Judge all of them."""
        for name, seen in self._seen.items():
            for each in violations([*seen, *self._halted], self._ended.get(name, ())):
                self._found.add(each.name, f"{name}: {each.detail}")


def _offer(call: Operation, kind: Kind, time_ns: int) -> HistoryLine:
    asked = call.asked
    return HistoryLine(
        kind,
        asked["processor"],
        time_ns,
        asked["row"],
        asked["seq"],
        asked["subscription"],
        bool(call.told.get("done")),
    )

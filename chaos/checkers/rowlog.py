"""The checker of a rowlog compares its promises with the history of writers and listeners. It does no I/O.

=================  =================================================================================
row_lost           an acknowledged message was never done for a subscription
row_in_flight      listeners of one subscription had two messages of a row at once
row_order          a message was offered before an earlier one of its row was done
=================  =================================================================================

A process that was stopped or killed can't call the listener back, so its calls in flight do not count from
then on. A call that the process *begins* after it resumes counts. A message without an acknowledged put may
be there or not.

The lines of several processes reach the history later than they were written, so this checker goes by their
times.
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
    """A line about a rowlog. All kinds have ``process`` and ``time_ns``; the other fields depend on it."""

    kind: Kind
    process: str
    time_ns: int
    row: str = ""
    seq: int = 0
    subscription: str = ""
    done: bool = False


class _Judge:
    """Judges the lines of one rowlog, in order of time."""

    def __init__(self, put: dict[str, set[int]]) -> None:
        self.found: list[Violation] = []
        self.done: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._put = put
        self._in_flight: defaultdict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)

    def take(self, seen: HistoryLine) -> None:
        """Take the next line."""
        place = (seen.subscription, seen.row)
        if seen.kind == "halted":
            for those in self._in_flight.values():
                those -= {each for each in those if each[0] == seen.process}
        elif seen.kind == "begin":
            self._begin(seen, place)
        elif seen.kind == "end":
            self._in_flight[place].discard((seen.process, seen.seq))
            if seen.done:
                self.done[place].add(seen.seq)

    def _begin(self, seen: HistoryLine, place: tuple[str, str]) -> None:
        if beside := {seq for _, seq in self._in_flight[place]} - {seen.seq}:
            self._add("row_in_flight", f"{place} {seen.seq} beside {sorted(beside)}")
        earlier = {seq for seq in self._put.get(seen.row, ()) if seq < seen.seq}
        if missing := earlier - self.done[place]:
            self._add("row_order", f"{place} {seen.seq} before {sorted(missing)}")
        self._in_flight[place].add((seen.process, seen.seq))

    def _add(self, name: str, detail: str) -> None:
        self.found.append(Violation(name, detail))


def violations(history: Iterable[HistoryLine], subscriptions: Sequence[str]) -> list[Violation]:
    """Return the violations; look for lost messages in the given subscriptions."""
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


def overlaps(history: Iterable[HistoryLine]) -> list[Violation]:
    """Return the calls of two processes for one subscription that were in flight at once.

    Use it only if no process was cut off: a processor that lost contact still ends the calls that it began.
    """
    found: list[Violation] = []
    in_flight: defaultdict[str, set[tuple[str, str, int]]] = defaultdict(set)
    for each in sorted(history, key=lambda line: line.time_ns):
        call = (each.process, each.row, each.seq)
        if each.kind == "halted":
            for calls in in_flight.values():
                calls -= {other for other in calls if other[0] == each.process}
        elif each.kind == "begin":
            others = {other[0] for other in in_flight[each.subscription]} - {each.process}
            if others:
                detail = f"{each.subscription}: {each.process} beside {sorted(others)}"
                found.append(Violation("subscription_in_flight", detail))
            in_flight[each.subscription].add(call)
        elif each.kind == "end":
            in_flight[each.subscription].discard(call)
    return found


class RowLogs:
    """Judges all rowlogs at the end of a history. ``chaos.history`` lists their lines."""

    names = NAMES

    def __init__(self, found: Findings) -> None:
        """Begin without a rowlog."""
        self._found = found
        self._seen: defaultdict[str, list[HistoryLine]] = defaultdict(list)
        self._halted: list[HistoryLine] = []
        self._ended: dict[str, list[str]] = {}
        """The subscriptions of each rowlog that was waited for at the end."""

    @property
    def is_known(self) -> bool:
        """True if the run waited for each rowlog at the end."""
        return self._seen.keys() <= self._ended.keys()

    def began(self, call: Operation) -> None:
        """Note the call of a listener."""
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
        """Judge all rowlogs."""
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

"""What a rowlog promised, judged by what its writers and listeners saw. Pure.

=================  =================================================================================
lost               an acknowledged message was never done for a subscription
in flight          two messages of a row were with listeners of one subscription at once
order              a message was offered before an earlier one of its row was done
=================  =================================================================================

What a process had in flight when it was stopped or killed does not count from then on: nothing can call a listener
back that has been called. What it *begins* after it goes on counts. A message whose put was not acknowledged may be
there or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["put", "begin", "end", "halted"]


class Seen(NamedTuple):
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
        self.found: list[str] = []
        self.done: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._put = put
        self._flying: defaultdict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)

    def take(self, seen: Seen) -> None:
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

    def _begin(self, seen: Seen, place: tuple[str, str]) -> None:
        if beside := {seq for _, seq in self._flying[place]} - {seen.seq}:
            self.found.append(f"in flight: {place} {seen.seq} beside {sorted(beside)}")
        earlier = {seq for seq in self._put.get(seen.row, ()) if seq < seen.seq}
        if missing := earlier - self.done[place]:
            self.found.append(f"order: {place} {seen.seq} before {sorted(missing)}")
        self._flying[place].add((seen.process, seen.seq))


def violations(history: Iterable[Seen], subscriptions: Sequence[str]) -> list[str]:
    """Return what was broken, in words."""
    events = sorted(history, key=lambda each: each.time_ns)
    put: dict[str, set[int]] = {}
    for each in events:
        if each.kind == "put":
            put.setdefault(each.row, set()).add(each.seq)
    judge = _Judge(put)
    for each in events:
        judge.take(each)
    return judge.found + [
        f"lost: {name} never got {sorted(lost)} of {row}"
        for row, seqs in put.items()
        for name in subscriptions
        if (lost := seqs - judge.done[name, row])
    ]

"""What checkers find, and the facts about a history that several of them need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.testing.history import Call, of


class Violation(NamedTuple):
    """Something that must not happen. ``name`` is stable; ``detail`` is for people."""

    name: str
    detail: str


class Verdict(NamedTuple):
    """The judgement of a history."""

    violations: tuple[Violation, ...]
    is_known: bool
    """False if the history shows too little to call it valid."""

    @property
    def is_valid(self) -> bool:
        """Whether nothing is wrong, and enough was seen to say so."""
        return self.is_known and not self.violations

    @property
    def names(self) -> set[str]:
        """The names of what was found."""
        return {violation.name for violation in self.violations}


class Seen(NamedTuple):
    """A row as a read showed it."""

    id: str
    payload: str | None
    pointer: int | None


def rows_of(read: Call) -> list[Seen]:
    """Return the rows that a read was answered with."""
    return [Seen(*row) for row in read.told.get("rows", [])]


def reads_of(calls: Sequence[Call], generation: int | None = None) -> list[Call]:
    """Return the answered reads, of one generation or all."""
    return [
        call
        for call in of(calls, "read")
        if call.is_ok and generation in (None, call.asked["generation"])
    ]


def generations_of(calls: Sequence[Call]) -> list[int]:
    """Return the generations of a topic's history, in order."""
    return sorted({call.asked["generation"] for call in calls if "generation" in call.asked})


class Final(NamedTuple):
    """The log as a history ended."""

    rows: dict[str, Seen]
    floor: str
    generation: int


def final_of(calls: Sequence[Call]) -> Final | None:
    """Return the log as the reads of the process ``final`` show it; None if there are none.

    Several pages are one read; of several generations the newest counts.
    """
    reads = [read for read in reads_of(calls) if read.process == "final"]
    if not reads:
        return None
    generation = max(read.asked["generation"] for read in reads)
    rows: dict[str, Seen] = {}
    floor = ""
    for read in reads:
        if read.asked["generation"] == generation:
            rows.update((row.id, row) for row in rows_of(read))
            floor = max(floor, read.told["floor"])
    return Final(rows, floor, generation)


def spot(what: str, **facts: Any) -> str:
    """Return a line for people."""
    return f"{what}: " + ", ".join(f"{name}={fact!r}" for name, fact in facts.items())

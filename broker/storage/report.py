"""What a check of a store found, and what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PROBLEMS_MAX: Final = 1000


class StoreProblem(NamedTuple):
    """Something that is wrong: ``what`` is the same in every reading, ``seen`` may differ."""

    where: str
    what: str
    seen: str = ""

    def line(self) -> str:
        """Return it as one line."""
        return f"{self.where}: {self.what}" + (f" ({self.seen})" if self.seen else "")


@dataclass(slots=True)
class CheckReport:
    """What a check found. Without problems the store can be trusted."""

    topics: int = 0
    payload_logs: int = 0
    pages: int = 0
    entries: int = 0
    messages: int = 0
    """Messages in entries that were read; those that were rolled back count too."""
    marks: int = 0
    records: int = 0
    ignorable: int = 0
    """Rows that nothing reads any more, and that wait for a sweep or stay for ever: nothing is wrong with them."""
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """The first of them, PROBLEMS_MAX at most."""
    wrong: int = 0
    """How many problems there are."""

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.wrong

    def problem(self, problem: StoreProblem) -> None:
        """Note something that is wrong."""
        self.wrong += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem.line())

    def add(self, other: CheckReport) -> None:
        """Add what another check found."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems += other.problems[: PROBLEMS_MAX - len(self.problems)]


COUNTED: Final = (
    "topics",
    "payload_logs",
    "pages",
    "entries",
    "messages",
    "marks",
    "records",
    "ignorable",
    "bytes",
    "wrong",
)
"""The fields of a report that are numbers."""


class CheckProgress(NamedTuple):
    """How far a check has come."""

    topics: int
    topics_all: int
    bytes: int


Tell = Callable[[CheckProgress], None]

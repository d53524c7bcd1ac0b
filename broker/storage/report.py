"""The report of a check of a store: problems and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PROBLEMS_MAX: Final = 1000


class StoreProblem(NamedTuple):
    """A problem in a store. ``what`` is the same in every read; ``seen``, the values read, may differ."""

    where: str
    what: str
    seen: str = ""

    def line(self) -> str:
        """Return the problem as one line."""
        return f"{self.where}: {self.what}" + (f" ({self.seen})" if self.seen else "")


@dataclass(slots=True)
class CheckReport:
    """The result of a check. A store without problems can be trusted."""

    topics: int = 0
    payload_logs: int = 0
    pages: int = 0
    entries: int = 0
    messages: int = 0
    """Messages in entries that were read, including rolled-back ones."""
    marks: int = 0
    records: int = 0
    ignorable: int = 0
    """Rows that no part of the broker reads any more. They wait for the sweeper or stay; they are no problem."""
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """The first problems, at most PROBLEMS_MAX."""
    wrong: int = 0
    """How many problems there are in all."""
    lost: list[str] = field(default_factory=list)
    """After a repair: the ranges of messages that are gone."""

    @property
    def is_sound(self) -> bool:
        """True if there is no problem."""
        return not self.wrong

    def problem(self, problem: StoreProblem) -> None:
        """Add a problem."""
        self.wrong += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem.line())

    def add(self, other: CheckReport) -> None:
        """Add the result of another check."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems += other.problems[: PROBLEMS_MAX - len(self.problems)]
        self.lost += other.lost


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

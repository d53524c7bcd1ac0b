"""What a failure case is, and what playing it comes to.

::

    exit 0   its fault happened, and nothing is wrong
    exit 1   something is wrong: the violations name it
    exit 2   nothing is wrong, and its fault is not proven to have happened: that says nothing
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chaos.checkers import Violation

if TYPE_CHECKING:
    from chaos.cases.harness import Scene

VIOLATIONS_TOLD_MAX: Final = 20


class CaseTarget(enum.StrEnum):
    """What a case is played on."""

    CLUSTER = "cluster"
    """Nodes on ZooKeeper and HBase, every connection through a proxy."""
    ALONE = "alone"
    """A broker of its own, or its store, over LevelDB: processes that need no cluster."""
    INSIDE = "inside"
    """The logs of several nodes in this process, over a table that does on demand what real ones do rarely."""


Play = Callable[["Scene"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A way in which brokers were seen to fail.

    Attributes:
        number: Its place in the list.
        name: On the command line.
        title: In a few words.
        happens: What is done, and to what.
        protects: What keeps messages safe.
        mutant: Which clause is dropped to show that: its name in broker/testing/mutants.py.
        without: What goes wrong then.
        violations: The names of which one must be found then.
        where: What it is played on.
        settings: Of the nodes of its cluster.
        sets_clocks: Whether clocks of nodes of the cluster are set.
        play: Plays it.
    """

    number: int
    name: str
    title: str
    happens: str
    protects: str
    mutant: str
    without: str
    violations: frozenset[str]
    where: CaseTarget
    settings: Mapping[str, Any] = field(default_factory=dict)
    sets_clocks: bool = False
    play: Play

    def as_json(self) -> dict[str, Any]:
        """Return what ``cases --json`` tells of it."""
        return {
            "number": self.number,
            "name": self.name,
            "title": self.title,
            "happens": self.happens,
            "protects": self.protects,
            "mutant": self.mutant,
            "without": self.without,
            "violations": sorted(self.violations),
            "where": self.where.value,
        }


@dataclass(slots=True)
class Played:
    """What came of a case.

    Attributes:
        case: Which.
        mutant: Which clause was dropped; "" none.
        violations: What is wrong.
        faults: What was to happen, and whether it did, in order.
        evidence: Figures and lines that prove it.
        not_judged: What its history could not have shown, by name. That topics are silent for too long is
            one of them: a case tells of its faults when they are over.
        seconds: How long it took.
    """

    case: Case
    mutant: str = ""
    violations: list[Violation] = field(default_factory=list)
    faults: dict[str, bool] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    is_known: bool = True
    not_judged: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """See above."""
        if self.violations:
            return 1
        proven = bool(self.faults) and all(self.faults.values())
        return 0 if proven and self.is_known else 2

    @property
    def is_as_expected(self) -> bool:
        """Whether it passed, or failed under its mutant by a name that the table has."""
        if not self.mutant:
            return self.exit_code == 0
        return not self.case.violations.isdisjoint(self.names)

    @property
    def names(self) -> list[str]:
        """The names of what is wrong."""
        return sorted({violation.name for violation in self.violations})

    def as_json(self) -> dict[str, Any]:
        """Return the verdict."""
        return {
            "case": self.case.name,
            "verdict": {0: "valid", 1: "invalid", 2: "unknown"}[self.exit_code],
            "mutant": self.mutant,
            "violations": self.names,
            "as_expected": self.is_as_expected,
            "details": [
                {"name": one.name, "detail": one.detail}
                for one in self.violations[:VIOLATIONS_TOLD_MAX]
            ],
            "not_judged": self.not_judged,
            "faults": self.faults,
            "evidence": self.evidence,
            "seconds": round(self.seconds, 1),
        }

"""A failure case, and the result of playing it.

::

    exit 0   its fault happened, and there is no violation
    exit 1   there are violations
    exit 2   there is no violation, but no proof that its fault happened: the result is unknown
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
    """The place where a case is played."""

    CLUSTER = "cluster"
    """Nodes on ZooKeeper and HBase, with every connection through a proxy."""
    ALONE = "alone"
    """A standalone broker over LevelDB, or its store: processes without a cluster."""
    INSIDE = "inside"
    """The logs of several nodes in this process, over a table that fails at a chosen moment."""


Play = Callable[["Scene"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A failure that brokers have had.

    Attributes:
        number: Its place in the list.
        name: Its name on the command line.
        title: The failure in a few words.
        happens: The fault, step by step.
        protects: The guard that keeps messages safe.
        mutant: The mutant without the guard: its name in broker/testing/mutants.py.
        without: The failure under the mutant.
        violations: The checkers must find at least one of these under the mutant.
        where: The place where it is played.
        settings: Settings of the nodes of its cluster.
        sets_clocks: True if it sets clocks of the cluster's nodes.
        play: The function that plays it.
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
        """Return the output of ``cases --json`` for this case."""
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
    """The result of playing a case.

    Attributes:
        case: The case.
        mutant: The mutant in force; "" for none.
        violations: The violations that were found.
        faults: The faults of the case in order, and for each, True if it happened.
        evidence: Figures and log lines that prove the faults.
        is_known: True if the history shows enough to judge.
        not_judged: The violations that its history can't show. ``unavailable`` is always one of them,
            because a case reports its faults after they are over.
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
        """Return the exit code, see the module."""
        if self.violations:
            return 1
        proven = bool(self.faults) and all(self.faults.values())
        return 0 if proven and self.is_known else 2

    @property
    def is_as_expected(self) -> bool:
        """Return True if it passed, or, under its mutant, failed with an expected violation."""
        if not self.mutant:
            return self.exit_code == 0
        return not self.case.violations.isdisjoint(self.names)

    @property
    def names(self) -> list[str]:
        """Return the names of the violations."""
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

"""Violations, the verdicts that contain them, and the promises that they break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

KEPT_MAX: Final = 200
"""How many violations of one name a verdict keeps. It counts all of them."""
UNAVAILABLE: Final = "unavailable"
SAME_INSTANCE_ID: Final = "same_instance_id"
STORED_LATE: Final = "stored_late"


class Violation(NamedTuple):
    """One broken promise. ``name`` is stable; ``detail`` is for people."""

    name: str
    detail: str
    place: int = -1
    """The line of the history that shows it; -1 for the end of the history."""


class Verdict(NamedTuple):
    """The judgement of a history, or of a part of one."""

    violations: tuple[Violation, ...]
    is_known: bool
    """False if the history shows too little to call it valid."""
    counts: Mapping[str, int] = {}  # A mapping has no way to be changed.
    """Event counts by name. ``found.NAME`` counts all violations of a name."""
    unjudged: tuple[str, ...] = ()
    """The violations that could not be found: they have no promise, or the history can't show them."""

    @property
    def is_valid(self) -> bool:
        """True if there is no violation, and the history shows enough."""
        return self.is_known and not self.violations

    @property
    def names(self) -> set[str]:
        """Return the names of the violations."""
        return {violation.name for violation in self.violations}

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a value for ``json.dumps``."""
        return {
            "valid": self.is_valid if self.is_known or self.violations else "unknown",
            "violations": [violation._asdict() for violation in self.violations],
            "counts": dict(sorted(self.counts.items())),
            "unjudged": list(self.unjudged),
        }


@dataclass(frozen=True, slots=True)
class Promises:
    """The time limits that a run promises, beyond the promises that always hold.

    The checkers do not judge a limit of None.

    Attributes:
        early_ms: a message may go missing at most this long before the end of its life.
        late_ms: a read may show an expired message at most this long after the end of its life.
        stored_late_ms: the moment in an id is at most this long after its request's deadline
            (``until_ms``), if the request gave one. It covers the difference of clocks, and ids that are
            ahead of the clock.
        unavailable_ms: without a fault, each topic, register and rowlog with requests acknowledges one again
            within this time.
        healing_ms: this long after the end of a fault, a silence does not count.
    """

    early_ms: int | None = 0
    late_ms: int | None = None
    stored_late_ms: int | None = None
    unavailable_ms: int | None = None
    healing_ms: int = 0

    @property
    def unjudged(self) -> list[str]:
        """Return the names of the violations without a promise."""
        bounds = {
            "expired_early": self.early_ms,
            "expired_late": self.late_ms,
            STORED_LATE: self.stored_late_ms,
            UNAVAILABLE: self.unavailable_ms,
        }
        return [name for name, bound in bounds.items() if bound is None]


class Findings:
    """Collects violations and counts."""

    def __init__(self) -> None:
        """Begin without a violation."""
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()

    def add(self, name: str, detail: str, place: int | None = None) -> None:
        """Add a violation, at a line of the history."""
        self.counts[f"found.{name}"] += 1
        if self.counts[f"found.{name}"] <= KEPT_MAX:
            self.violations.append(Violation(name, detail, -1 if place is None else place))

    def longest(self, name: str, value: int) -> None:
        """Keep a value if it is the greatest of its name."""
        self.counts[name] = max(self.counts[name], value)

    def verdict(self, *, is_known: bool, unjudged: Sequence[str] = ()) -> Verdict:
        """Return the verdict of the history."""
        return Verdict(tuple(self.violations), is_known, dict(self.counts), tuple(sorted(unjudged)))


def spot(subject: str, **facts: Any) -> str:
    """Return a line for people: the subject, then its facts."""
    return f"{subject}: " + ", ".join(f"{name}={fact!r}" for name, fact in facts.items())

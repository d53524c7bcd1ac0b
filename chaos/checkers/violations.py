"""What checkers find, and the verdicts that are made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

KEPT_MAX: Final = 200
"""How many violations of one name are kept; all are counted."""
UNAVAILABLE: Final = "unavailable"
STORED_LATE: Final = "stored_late"


class Violation(NamedTuple):
    """Something that must not happen. ``name`` is stable; ``detail`` is for people."""

    name: str
    detail: str
    place: int = -1
    """The line of the history at which it shows; -1 if that is its end."""


class Verdict(NamedTuple):
    """The judgement of a history, or of a part of one."""

    violations: tuple[Violation, ...]
    is_known: bool
    """False if the history shows too little to call it valid."""
    counts: Mapping[str, int] = {}  # A mapping has no way to be changed.
    """What happened, by name; ``found.NAME`` counts all violations of a name, ``longest…`` are the
    longest of all, and everything else adds up."""
    unjudged: tuple[str, ...] = ()
    """What could not have been found: nothing was promised of it, or nothing in the history shows it."""

    @property
    def is_valid(self) -> bool:
        """Whether nothing is wrong, and enough was seen to say so."""
        return self.is_known and not self.violations

    @property
    def names(self) -> set[str]:
        """The names of what was found."""
        return {violation.name for violation in self.violations}

    def to_json(self) -> dict[str, Any]:
        """Return what ``json.dumps`` takes."""
        return {
            "valid": self.is_valid if self.is_known or self.violations else "unknown",
            "violations": [violation._asdict() for violation in self.violations],
            "counts": dict(sorted(self.counts.items())),
            "unjudged": list(self.unjudged),
        }


def total(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several: of the segments of a history, or of several histories.

    It is known only if each of them is, and if there is one; what one did not judge is unjudged.
    """
    several = list(verdicts)
    counts: Counter[str] = Counter()
    for verdict in several:
        for name, number in verdict.counts.items():
            longest = name.startswith("longest")
            counts[name] = max(counts[name], number) if longest else counts[name] + number
    return Verdict(
        tuple(violation for verdict in several for violation in verdict.violations),
        is_known=bool(several) and all(verdict.is_known for verdict in several),
        counts=dict(counts),
        unjudged=tuple(sorted({name for verdict in several for name in verdict.unjudged})),
    )


@dataclass(frozen=True, slots=True)
class Promises:
    """What is promised of a run beyond what always holds; None is not judged.

    Attributes:
        early_ms: a message that lives is shown until so long before the end of its life.
        late_ms: a message that has expired is shown at most for so long after the end of its life.
        stored_late_ms: an id is of a moment at most so long after that until which its request was to be
            done, where that was told (``until_ms``): what clocks may differ by, and ids be ahead of them.
        unavailable_ms: while nothing is broken, each topic that is asked acknowledges something again
            within this time; a fault may promise another one while it lasts.
        healing_ms: for how long after a fault that promises nothing was healed the time does not count.
    """

    early_ms: int | None = 0
    late_ms: int | None = None
    stored_late_ms: int | None = None
    unavailable_ms: int | None = None
    healing_ms: int = 0

    @property
    def unjudged(self) -> list[str]:
        """The names of what nothing is promised of."""
        bounds = {
            "expired_early": self.early_ms,
            "expired_late": self.late_ms,
            STORED_LATE: self.stored_late_ms,
            UNAVAILABLE: self.unavailable_ms,
        }
        return [name for name, bound in bounds.items() if bound is None]


class Findings:
    """Collects violations and counts of the segment that is being judged."""

    def __init__(self) -> None:
        """Begin a segment in which nothing was found."""
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()

    def add(self, name: str, detail: str, place: int | None = None) -> None:
        """Note a violation, at a line of the history."""
        self.counts[f"found.{name}"] += 1
        if self.counts[f"found.{name}"] <= KEPT_MAX:
            self.violations.append(Violation(name, detail, -1 if place is None else place))

    def longest(self, name: str, value: int) -> None:
        """Keep the greatest value."""
        self.counts[name] = max(self.counts[name], value)

    def taken(self, *, is_known: bool, unjudged: Sequence[str] = ()) -> Verdict:
        """Return the verdict of the segment, and begin the next one."""
        verdict = Verdict(
            tuple(self.violations), is_known, dict(self.counts), tuple(sorted(unjudged))
        )
        self.violations, self.counts = [], Counter()
        return verdict


def spot(what: str, **facts: Any) -> str:
    """Return a line for people."""
    return f"{what}: " + ", ".join(f"{name}={fact!r}" for name, fact in facts.items())

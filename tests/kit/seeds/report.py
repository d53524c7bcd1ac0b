"""Report runs as text: the totals of many seeds, and the events around the violation of a failing seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chaos.checkers import Violation
from chaos.history import Event
from tests.kit.seeds.run import Outcome

AROUND_S: Final = 8.0
"""The report shows this time before a violation."""
ROWS_MAX: Final = 60
VALUE_MAX: Final = 160
SHOWN_MAX: Final = 5
ADD_UP: Final = (
    "runs",
    "bad",
    "empty",
    "acknowledged",
    "unknown",
    "epochs",
    "leaders",
    "available",
    "seconds",
)


class RunSummary(NamedTuple):
    """The summary of a finished run, small enough to send between processes."""

    seed: int
    line: str
    report: str
    is_enough: bool
    names: tuple[str, ...]
    totals: Totals


@dataclass(slots=True)
class Totals:
    """The counts of all runs together."""

    runs: int = 0
    bad: int = 0
    empty: int = 0
    acknowledged: int = 0
    unknown: int = 0
    epochs: int = 0
    leaders: int = 0
    """The number of changes of a topic's leader."""
    available: int = 0
    """The number of runs in which the checkers judged availability."""
    silent_ms: int = 0
    """The longest time without an acknowledged publish and without a fault."""
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, other: Totals) -> None:
        """Add the runs of other totals."""
        for name in ADD_UP:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.silent_ms = max(self.silent_ms, other.silent_ms)
        self.faults += other.faults
        self.happened += other.happened

    def lines(self) -> Iterator[str]:
        """Yield the totals as lines of text."""
        yield (
            f"{self.runs} seeds, {self.bad} bad, {self.empty} empty: {self.acknowledged} messages "
            f"acknowledged, {self.unknown} unknown outcomes, {self.epochs} epochs, "
            f"{self.leaders} changes of leaders, "
            f"{self.seconds / 3600:.2f} simulated hours"
        )
        yield f"  faults: {_counts(self.faults)}"
        yield f"  storage and network: {_counts(self.happened)}"
        yield (
            f"  availability: judged in {self.available} of {self.runs}, "
            f"longest silence without a fault {self.silent_ms / 1000:g} s"
        )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def summary_of(outcome: Outcome, command: str) -> RunSummary:
    """Return the summary of a run; ``command`` repeats the run."""
    names = tuple(sorted(outcome.verdict.names))
    is_bad = not outcome.verdict.is_valid
    state = ", ".join(names) if names else "nothing to judge" if is_bad else "ok"
    is_judged = outcome.is_availability_judged
    line = (
        f"seed {outcome.plan.seed} {outcome.plan.workload}: {state}; "
        f"{outcome.acknowledged} acknowledged, {outcome.unknown} unknown, {outcome.epochs} epochs, "
        f"{sum(outcome.faults.values())} faults; "
        f"{'' if is_judged else 'availability not judged; '}history {outcome.digest}"
    )
    totals = Totals(
        1,
        int(is_bad),
        int(not outcome.is_enough),
        outcome.acknowledged,
        outcome.unknown,
        outcome.epochs,
        outcome.leaders,
        int(is_judged),
        outcome.verdict.counts.get("longest_unavailable_ms", 0) if is_judged else 0,
        outcome.seconds,
        outcome.faults,
        outcome.happened,
    )
    report = "\n".join(failure(outcome, command)) if is_bad else ""
    return RunSummary(outcome.plan.seed, line, report, outcome.is_enough, names, totals)


def failure(outcome: Outcome, command: str) -> Iterator[str]:
    """Yield the violations of a run, the events around the first, and the command that repeats the run."""
    violations = outcome.verdict.violations
    for violation in violations[:SHOWN_MAX]:
        yield f"{violation.name}: {violation.detail}"
    if len(violations) > SHOWN_MAX:
        yield f"... and {len(violations) - SHOWN_MAX} more"
    if violations:
        yield ""
        yield from around(outcome, violations[0])
    yield ""
    yield f"run it again: {command}"


def around(outcome: Outcome, violation: Violation) -> Iterator[str]:
    """Yield the requests, epochs and faults before a violation, in order."""
    events = outcome.events
    place = violation.place if 0 <= violation.place < len(events) else len(events) - 1
    until_s = events[place].time_ns / 1e9 + 0.5
    rows = [
        (event.time_ns / 1e9, _event(event, is_it=number == place))
        for number, event in enumerate(events)
        if until_s - AROUND_S <= event.time_ns / 1e9 <= until_s
    ]
    rows += [
        (line.time_s, f"{line.process or '-':<12} {line.event} {_short(dict(line.fields))}")
        for line in outcome.lines
        if until_s - AROUND_S <= line.time_s <= until_s
    ]
    rows.sort(key=lambda row: row[0])
    if len(rows) > ROWS_MAX:
        yield f"({len(rows) - ROWS_MAX} earlier ones left out)"
    for time_s, text in rows[-ROWS_MAX:]:
        yield f"{time_s:10.3f} {text}"


def _event(event: Event, *, is_it: bool) -> str:
    mark = ">>" if is_it else "  "
    where = "" if event.node is None else f" by {event.node} in epoch {event.epoch}"
    identifier = f" {event.id}" if event.id else ""
    value = _short(event.value)
    return f"{mark} {event.process} {event.op} {event.type}{identifier}{where} {value}"


def _short(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "..."

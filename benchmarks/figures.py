"""Figures, and the conclusions that they allow. Pure.

A *series* is the figures of one side in one question, run by run. Only kept runs count. A series alone is no result
if it has fewer kept runs than wanted, or fewer than half of all runs. It is no result, either, if the spread of its
kept runs is more than half their median.

A *ratio* compares two sides that took turns. It is the median of the ratios of all turns. A virtual machine may be
twice as fast as a minute ago, but then it is so for both sides of a turn, and their ratio stays the same. A ratio may
have a bound (``must``). If the middle half of the turns lies on both sides of the bound, and is wider than a quarter of
the median, the ratio is no result. The verdicts::

    met                        the ratio is at least its bound (or at most, if less is better)
    missed                     it is not
    no result, not measured    the figures allow no verdict; ``why`` says why
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SPREAD_MAX = 0.5
"""The largest spread of kept runs, as a part of their median, that is still a result."""

RATIO_SPREAD_MAX = 0.25
"""The largest width of the middle half of turns around a bound, as a part of the median, that is still a result."""

Verdict = Literal["met", "missed", "no result", "not measured", "for information"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One timed run. ``apart`` says why it does not count; it is empty if the run counts."""

    value: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    server_cpu_us: float | None = None
    apart: str = ""


@dataclass(slots=True, kw_only=True)
class Series:
    """All runs of one side; ``absent`` says why there are none."""

    name: str
    unit: str
    runs: list[Run] = field(default_factory=list)
    runs_wanted: int = 5
    absent: str = ""
    acks_per_sync: float | None = None

    @property
    def kept(self) -> list[Run]:
        """The runs that count."""
        return [run for run in self.runs if not run.apart]

    @property
    def median(self) -> float | None:
        """The median of the runs that count."""
        return statistics.median(run.value for run in self.kept) if self.kept else None

    @property
    def median_of_all(self) -> float | None:
        """The median of all runs, kept or not. It is shown, and never judged."""
        return statistics.median(run.value for run in self.runs) if self.runs else None

    @property
    def spread(self) -> float | None:
        """The spread of the kept runs, as a part of their median."""
        values = [run.value for run in self.kept]
        return (max(values) - min(values)) / statistics.median(values) if values else None

    def median_of(self, part: Literal["p50_ms", "p99_ms", "server_cpu_us"]) -> float | None:
        """The median of another figure of the kept runs, or of all if none was kept."""
        values = [getattr(run, part) for run in self.kept or self.runs]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    @property
    def missing(self) -> str:
        """Why there are too few kept runs; empty if there are enough."""
        if self.absent:
            return f"not measured: {self.name}: {self.absent}"
        if len(self.kept) < self.runs_wanted:
            return (
                f"no result: {self.name} has {len(self.kept)} kept runs, "
                f"{self.runs_wanted} are wanted"
            )
        if 2 * len(self.kept) < len(self.runs):
            return f"no result: more than half of the runs of {self.name} were kept apart"
        return ""

    @property
    def unusable(self) -> str:
        """Why this series alone allows no conclusion; empty if it does."""
        if self.missing:
            return self.missing
        if self.spread is not None and self.spread > SPREAD_MAX:
            return f"no result: the runs of {self.name} lie {self.spread:.0%} apart"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Return all figures, also those of runs that do not count."""
        return {
            "name": self.name,
            "unit": self.unit,
            "absent": self.absent,
            "median": self.median,
            "median_of_all_runs": self.median_of_all,
            "spread": self.spread,
            "p50_ms": self.median_of("p50_ms"),
            "p99_ms": self.median_of("p99_ms"),
            "server_cpu_us": self.median_of("server_cpu_us"),
            "acks_per_sync": self.acks_per_sync,
            "runs_kept": len(self.kept),
            "runs": [asdict(run) for run in self.runs],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The ratio of two figures, its bound, and the verdict."""

    text: str
    value: float | None
    verdict: Verdict
    must: float | None = None
    aim: float | None = None
    at_most: bool = False
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Question:
    """One question with its series and ratios."""

    letter: str
    title: str
    series: list[Series] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def named(self, name: str) -> Series:
        """Return one side's series."""
        return next(series for series in self.series if series.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return the question with all its figures."""
        return {
            "letter": self.letter,
            "title": self.title,
            "series": [series.as_json() for series in self.series],
            "ratios": [ratio.as_json() for ratio in self.ratios],
            "notes": self.notes,
        }


def compare(
    ours: Series,
    theirs: Series,
    *,
    must: float | None = None,
    aim: float | None = None,
    at_most: bool = False,
) -> Ratio:
    """Compare our series with theirs, turn by turn. A bound that can't be judged is neither met nor missed."""
    text = f"{ours.name} / {theirs.name}"
    ratios = _of_turns(ours, theirs)
    why = ours.missing or theirs.missing or _too_few_or_far_apart(ratios, ours.runs_wanted, must)
    if why:
        mine, other = ours.median_of_all, theirs.median_of_all
        shown = mine / other if mine and other else None
        verdict: Verdict = "not measured" if why.startswith("not measured") else "no result"
        return Ratio(
            text=text, value=shown, verdict=verdict, must=must, aim=aim, at_most=at_most, why=why
        )
    return judged(text, statistics.median(ratios), must=must, aim=aim, at_most=at_most)


def _of_turns(ours: Series, theirs: Series) -> list[float]:
    """Return the ratios of the turns in which both runs were kept."""
    turns = zip(ours.runs, theirs.runs, strict=False)
    return [mine.value / other.value for mine, other in turns if not mine.apart and not other.apart]


def _too_few_or_far_apart(ratios: Sequence[float], wanted: int, must: float | None) -> str:
    if len(ratios) < wanted:
        return f"no result: both were kept in {len(ratios)} turns, {wanted} are wanted"
    if len(ratios) == 1 or must is None:
        return ""
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    if low < must < high and (high - low) / median > RATIO_SPREAD_MAX:
        return f"no result: the middle half of the turns is {low:.2f} to {high:.2f}"
    return ""


def judged(
    text: str,
    value: float,
    *,
    must: float | None = None,
    aim: float | None = None,
    at_most: bool = False,
) -> Ratio:
    """Judge a value by its bound."""
    if must is None:
        verdict: Verdict = "for information"
    else:
        verdict = "met" if (value <= must if at_most else value >= must) else "missed"
    return Ratio(text=text, value=value, verdict=verdict, must=must, aim=aim, at_most=at_most)


def best(series: Sequence[Series]) -> Series | None:
    """Return the fastest of the measured series; prefer those with enough kept runs."""
    measured = [one for one in series if one.median_of_all is not None]
    usable = [one for one in measured if not one.missing]
    return max(usable or measured, key=lambda one: one.median_of_all or 0.0, default=None)


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return a percentile of sorted values; ``part`` is between 0 and 1."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

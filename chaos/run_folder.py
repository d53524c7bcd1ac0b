"""The results of runs, on disk and added up.

::

    chaos/store/20261121-071500-log/     one run; git ignores it
      verdict.json                       the verdict of the whole run, see ``Judged.as_json``
      001/ 002/ …                        one folder for each segment of five minutes
        history.jsonl                    the requests, answers and faults
        verdict.json                     the verdict of the segment
        rate.svg leaders.svg             rates, latency and leaders over time
      logs/                              the logs of the processes

Each segment has its own topics. It is healed and read to its end before the next one begins. So each segment
can be judged by itself, and a run may have any length.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from chaos.checkers import UNAVAILABLE, Promises, Verdict
from chaos.figures import RunFigures
from chaos.history import History
from chaos.promises import PROMISES

STORE: Final = Path("chaos") / "store"
VERDICT: Final = "verdict.json"
HISTORY: Final = "history.jsonl"
ACKNOWLEDGED_MIN: Final = 100
VIOLATIONS_TOLD_MAX: Final = 100
NOT_BACK: Final = (
    "unavailable was not judged: after the last fault, no request was acknowledged, "
    "or a topic was silent to the end"
)

Outcome = Literal["valid", "invalid", "unknown"]
EXIT_CODES: Final[Mapping[Outcome, int]] = {"valid": 0, "invalid": 1, "unknown": 2}


@dataclass(slots=True)
class Judged:
    """The judgement of a segment or of several.

    Attributes:
        figures: The counts of its histories.
        violations: Name and detail of violations; not all of them if there are many of one name.
        found: The number of violations of each name, all of them counted.
        unsure: The reasons why it is not valid although there is no violation.
        not_judged: The violations that could not be found: without a promise, or not visible in the history.
        facts: Other facts: the seed and the options of the run.
    """

    figures: RunFigures = field(default_factory=RunFigures)
    violations: list[tuple[str, str]] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    unsure: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Return the verdict as one word."""
        if self.violations:
            return "invalid"
        return "unknown" if self.unsure else "valid"

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``verdict.json``."""
        return {
            "verdict": self.outcome,
            **self.facts,
            **self.figures.as_json(),
            "violations": dict(sorted(self.found.items())),
            "details": [
                {"name": name, "detail": detail} for name, detail in _some_of_each(self.violations)
            ],
            "unsure": self.unsure,
            "not_judged": self.not_judged,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Judged:
        """Return the judgement in a value of ``as_json``. Raises KeyError."""
        details = [(one["name"], one["detail"]) for one in told["details"]]
        # Older runs did not judge availability, and have no ``not_judged``.
        not_judged = list(told.get("not_judged", [UNAVAILABLE]))
        found = Counter(told["violations"])
        return cls(RunFigures.from_json(told), details, found, list(told["unsure"]), not_judged)


def _some_of_each(violations: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return at most ``VIOLATIONS_TOLD_MAX`` violations: the first one of each name, then the second ones, and so on."""
    seen: Counter[str] = Counter()
    ranked = []
    for violation in violations:
        ranked.append((seen[violation[0]], violation))
        seen[violation[0]] += 1
    ranked.sort(key=lambda one: one[0])
    return [violation for _, violation in ranked[:VIOLATIONS_TOLD_MAX]]


def judge(
    figures: RunFigures,
    verdict: Verdict,
    *,
    promises: Promises = PROMISES,
) -> Judged:
    """Judge a segment.

    Args:
        figures: The counts of its history.
        verdict: The verdict of the checkers.
        promises: The promises by which its history was judged.
    """
    unsure = []
    if not verdict.is_known:
        unsure.append("no acknowledged write, or no read at the end")
    if figures.acknowledged < ACKNOWLEDGED_MIN:
        least = f"fewer than {ACKNOWLEDGED_MIN}"
        unsure.append(f"{figures.acknowledged} writes were acknowledged, {least}")
    if promises.unavailable_ms is not None and UNAVAILABLE in verdict.unjudged:
        unsure.append(NOT_BACK)
    violations = [(one.name, one.detail) for one in verdict.violations]
    found = Counter(name for name, _ in violations)
    found |= Counter({name: verdict.counts.get(f"found.{name}", 0) for name in found})
    return Judged(figures, violations, found, unsure, list(verdict.unjudged))


def together(parts: Sequence[Judged], wanted: Iterable[str] = ()) -> Judged:
    """Add segments or runs up. Each fault in ``wanted`` must have happened in one of them."""
    whole = Judged()
    for part in parts:
        whole.figures.add(part.figures)
        whole.violations += part.violations
        whole.found += part.found
        whole.unsure += part.unsure
        whole.not_judged = sorted({*whole.not_judged, *part.not_judged})
    if not parts:
        whole.unsure.append("there is nothing to judge")
    missing = [name for name in wanted if not whole.figures.happened[name]]
    if missing:
        whole.unsure.append(f"these faults did not happen: {', '.join(missing)}")
    return whole


class RunFolder:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        """Create the folder. Raises FileExistsError if it has a verdict already."""
        self.folder = folder
        if (folder / VERDICT).exists():
            raise FileExistsError(f"{folder} holds a run already")
        folder.mkdir(parents=True, exist_ok=True)

    def segment(self, number: int) -> Path:
        """Return the folder of a segment; the first segment is 1."""
        folder = self.folder / f"{number:03}"
        folder.mkdir(exist_ok=True)
        return folder

    def save_history(self, number: int, history: History) -> None:
        """Write the history of a segment."""
        history.save(self.segment(number) / HISTORY)

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of a cluster's processes."""
        if folder.is_dir():
            shutil.copytree(folder, self.folder / "logs", dirs_exist_ok=True)


def write_verdict(folder: Path, judged: Judged) -> None:
    """Write ``verdict.json``."""
    (folder / VERDICT).write_text(json.dumps(judged.as_json(), indent=2) + "\n")


def runs_below(folder: Path) -> list[Path]:
    """Return the verdict files of all runs in a folder; for a run's own folder, its verdict file."""
    if (folder / VERDICT).is_file():
        return [folder / VERDICT]
    return sorted(folder.glob(f"*/{VERDICT}"))


def read_verdict(file: Path) -> Judged:
    """Read a verdict. Raises OSError, ValueError, KeyError, TypeError, AttributeError."""
    return Judged.from_json(json.loads(file.read_text()))

"""The corpus: cases whose answers were new, and their file."""

from __future__ import annotations

import base64
import json
import random
import re
from pathlib import Path
from typing import NamedTuple

from tests.kit.fuzzing.grammar import Case

CASES_MAX = 3_000
TEXT_MAX = 100
_VARIES = re.compile(r"[0-9]+|'[^']*'|\"[^\"]*\"")


class Answer(NamedTuple):
    """The compared parts of an answer: status, error code, and the text of an error."""

    status: int
    error: str
    text: str


class Corpus:
    """Cases whose answers were new when they came."""

    def __init__(self) -> None:
        """Begin empty."""
        self.cases: list[Case] = []
        self.seen: set[tuple[str, int, str, str]] = set()

    def take(self, case: Case, answer: Answer) -> bool:
        """Keep a case if its answer is new; return whether it was kept."""
        text = _VARIES.sub("#", answer.text)[:TEXT_MAX]
        feature = (case.route, answer.status, answer.error, text)
        if feature in self.seen or len(self.seen) >= CASES_MAX:
            return False
        self.seen.add(feature)
        self.cases.append(case)
        return True

    def any(self, rng: random.Random) -> Case | None:
        """Return a case, None if there is none."""
        return rng.choice(self.cases) if self.cases else None


def load(path: Path) -> list[Case]:
    """Read the cases of a file: one JSON list in each line."""
    cases: list[Case] = []
    for line in path.read_text().splitlines():
        route, method, target, headers, body = json.loads(line)
        pairs = tuple((name, value) for name, value in headers)
        cases.append(Case(route, method, target, pairs, base64.b64decode(body)))
    return cases


def save(path: Path, cases: list[Case], bytes_max: int) -> None:
    """Write cases to a file, the smallest first, up to ``bytes_max``."""
    lines: list[str] = []
    size = 0
    for case in sorted(cases, key=lambda each: len(each.body)):
        body = base64.b64encode(case.body).decode()
        line = json.dumps([case.route, case.method, case.target, case.headers, body])
        size += len(line) + 1
        if size > bytes_max:
            break
        lines.append(line)
    path.write_text("".join(f"{line}\n" for line in sorted(lines)))

"""Rules about commits: the subject names a part, and fits into one line of every tool."""

import re
import subprocess

import pytest

from tests.tidy.sources import ROOT

SINCE = "7531c57ea82349bfaf5f42bfabccd9088e22e42a"
"""The last commit before the rule. A shallow clone may lack it."""
SUBJECT = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: \S.*")
SUBJECT_LENGTH_MAX = 72


def subjects() -> list[str] | None:
    """Return the subjects of all commits since the rule; None if the history does not reach back so far."""
    asked = ["git", "log", "--no-merges", "--format=%s", f"{SINCE}..HEAD"]
    told = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
    return told.stdout.splitlines() if told.returncode == 0 else None


def is_wrong(subject: str) -> bool:
    return len(subject) > SUBJECT_LENGTH_MAX or SUBJECT.fullmatch(subject) is None


def test_subjects_begin_with_a_part_and_are_short() -> None:
    found = subjects()
    if found is None:
        pytest.skip(f"the history does not reach back to {SINCE[:8]}")
    assert [each for each in found if is_wrong(each)] == []


@pytest.mark.parametrize(
    "subject",
    ["fix a bug", "Client: carry a deadline", "wire:", "wire: " + "x" * SUBJECT_LENGTH_MAX],
)
def test_the_rule_finds_a_wrong_subject(subject: str) -> None:
    assert is_wrong(subject)
    assert not is_wrong("client, sql: carry one deadline from the call on")

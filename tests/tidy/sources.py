"""The tracked files, and the findings of a rule in them."""

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> list[str]:
    """Return the tracked files that match and exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True
    )
    names = listed.stdout.decode().split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def offenders(names: Iterable[str], rule: Callable[[str], Iterable[object]]) -> list[str]:
    """Return the findings of a rule in all given files, so that one test lists them all."""
    return [f"{name}: {found}" for name in names for found in rule(text(name))]

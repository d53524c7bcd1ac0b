"""The files that the rules are about: what git tracks."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> list[str]:
    """Return the tracked files that match, and that are there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True
    )
    names = listed.stdout.decode().split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")

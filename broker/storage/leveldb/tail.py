"""The end of LevelDB's log and manifest after a power cut."""

from __future__ import annotations

from pathlib import Path


class Damaged(Exception):
    """A file can't be what LevelDB left."""


def mend(database: Path, *, may_cut: bool) -> None:
    """Cut what was never synced."""

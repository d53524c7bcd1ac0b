"""An export whose part is one file that grows: its end, and the check before it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import click

from broker.cli.transfer.sidecars import place


class GrowingFile:
    """Finishes or removes a part that is one file."""

    def finish(self, part: Path, position: int, file: Path) -> None:
        """Rename the part to ``file``, unless it has that name already."""
        if file.exists() and not part.exists():
            check_reaches(file, position)
            return
        check_reaches(part, position)
        os.truncate(part, position)  # A stopped export may have written more; it does not count.
        place(part, file)

    def discard(self, part: Path) -> None:
        """Remove the part."""
        part.unlink(missing_ok=True)


def check_reaches(path: Path, size: int) -> None:
    """Raise click.ClickException if a growing file is missing, or shorter than ``size``."""
    if size and (not path.exists() or path.stat().st_size < size):
        raise changed(path, f"it had {size:,} bytes")


def changed(part: Path, how: str) -> click.ClickException:
    """Return the error for an unfinished file that another program has changed."""
    return click.ClickException(
        f"{part} was changed or removed: {how}. Remove the .part and the .state of this export, and start again."
    )

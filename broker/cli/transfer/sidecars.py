"""Small files beside a big one: how far a transfer came, and what it contains. Each is seen whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click


def beside(file: Path, ending: str) -> Path:
    """Return the path of a file that lies beside another: its name and an ending."""
    return file.with_name(file.name + ending)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object, synced, in place of what was there."""
    new = beside(path, ".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    place(new, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, or None if there is no such file. Raises click.ClickException."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise click.ClickException(
            f"{path} is no JSON: {error}. Remove it, or see what wrote it."
        ) from error
    if not isinstance(found, dict):
        raise click.ClickException(f"{path} is no JSON object. Remove it, or see what wrote it.")
    return found


def place(new: Path, path: Path) -> None:
    """Give a synced file its name, for good."""
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_reaches(path: Path, size: int) -> None:
    """Raise click.ClickException if a file that grows has lost what was written up to ``size``."""
    if size and (not path.exists() or path.stat().st_size < size):
        raise click.ClickException(
            f"{path} was changed or removed since: it had {size:,} bytes. Remove what is left of this export, its "
            ".part and its .state, and begin anew."
        )

"""The small files beside an exported file: state and manifest. A reader sees each one whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from broker.cli import small_json


def beside(file: Path, ending: str) -> Path:
    """Return the path of a file in the same folder, with the same name plus an ending."""
    return file.with_name(file.name + ending)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object, synced; it replaces the former file."""
    new = beside(path, ".new")
    with small_json.writing(path), new.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    place(new, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file does not exist. Raises click.ClickException."""
    try:
        found = small_json.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise click.ClickException(
            f"{path} is not JSON: {error}. Remove it, or find out which program wrote it."
        ) from error
    if not isinstance(found, dict):
        raise click.ClickException(
            f"{path} is not a JSON object. Remove it, or find out which program wrote it."
        )
    return found


@contextmanager
def continued_by(advice: str) -> Iterator[None]:
    """Add advice to an error of this machine's files, such as of a full disk."""
    try:
        yield
    except OSError as error:
        error.add_note(advice)
        raise


def damaged(path: Path, *others: Path) -> click.ClickException:
    """Return the error for a file of a transfer that is not as the transfer has left it."""
    names = " and ".join(each.name for each in (path, *others))
    return click.ClickException(
        f"{path} is damaged, or not of this release. Remove {names} to start again."
    )


def place(new: Path, path: Path) -> None:
    """Rename a synced file to ``path``, and sync the folder."""
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""Files that commands read and write: bounded JSON and bounded lines, and JSON that a reader sees whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from broker.errors import TaskFailed

BYTES_MAX: Final = 1 << 20

Item = TypeVar("Item")


def read(file: Path) -> object:
    """Return the JSON value in a file, which is counted before it is held.

    Raises:
        ValueError: it is too large, too deep, or not JSON in UTF-8.
        OSError: it can't be read.
    """
    try:
        return json.loads(read_bytes(file))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_bytes(file: Path) -> bytes:
    """Return the bytes of a file, or of a pipe. Raises ValueError: there are too many; OSError."""
    with file.open("rb") as opened:
        found = opened.read(BYTES_MAX + 1)
    if len(found) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX:,} bytes")
    return found


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file does not exist. Raises TaskFailed."""
    try:
        found, wanted = read(path), "a JSON object"
    except FileNotFoundError:
        return None
    except ValueError as error:
        found, wanted = None, f"JSON: {error}"
    if not isinstance(found, dict):
        raise TaskFailed(f"{path} is not {wanted}. Remove it, or find out which program wrote it.")
    return found


def bounded_lines(file: IO[bytes], most: int) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends. Raises ValueError: a line has more than ``most`` bytes."""
    number = 0
    while line := file.readline(most + 2):
        number += 1
        if len(line.removesuffix(b"\n")) > most:
            raise ValueError(f"line {number:,}: it has more than {most:,} bytes")
        yield line


def chunked(
    items: Iterable[Item], size_of: Callable[[Item], int], items_max: int, bytes_max: int
) -> Iterator[list[Item]]:
    """Cut items into chunks of bounded number and size; a larger item is a chunk of its own.

    The same items give the same chunks, so the numbers and keys of their requests match.
    """
    chunk: list[Item] = []
    size = 0
    for item in items:
        if chunk and (len(chunk) >= items_max or size + size_of(item) > bytes_max):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += size_of(item)
    if chunk:
        yield chunk


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Name a file of this machine in the errors of its writing. Of a full disk the system names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(file)
        raise


def beside(file: Path, ending: str) -> Path:
    """Return the path of a file in the same folder, with the same name plus an ending."""
    return file.with_name(file.name + ending)


def write_beside(file: Path, new: Path, text: str) -> None:
    """Write the next text of ``file`` into the file ``new``, synced; errors name ``file``.

    Raises TaskFailed: ``file`` is a device or a pipe, whose place no file must take.
    """
    if file.exists() and not file.is_file():
        raise TaskFailed(f"{file} is no file: a file would take its place. Name a file.")
    with writing(file), new.open("w", encoding="utf-8") as out:
        out.write(text + "\n")
        out.flush()
        os.fsync(out.fileno())


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object, synced; it replaces the former file."""
    new = beside(path, ".new")
    write_beside(path, new, json.dumps(value, indent=1))
    place(new, path)


def place(new: Path, path: Path) -> None:
    """Rename a synced file to ``path``, and sync the folder."""
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def damaged(path: Path, *others: Path) -> TaskFailed:
    """Return the error for a file that is not as a command has left it."""
    names = " and ".join(each.name for each in (path, *others))
    return TaskFailed(f"{path} is damaged, or not of this release. Remove {names} to start again.")

"""Files that commands read and write: bounded JSON and bounded lines, and JSON that a reader sees whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from broker.errors import BadRequest
from broker.model import MessageId, message_id_from_hex

BYTES_MAX: Final = 1 << 20

Item = TypeVar("Item")


def read(file: Path) -> object:
    """Return the JSON value in a file, which is counted before it is held.

    Raises:
        ValueError: it is too large, too deep, or not JSON in UTF-8.
        OSError: it can't be read.
    """
    with file.open("rb") as opened:
        text = opened.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX:,} bytes")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file does not exist. Raises click.ClickException."""
    try:
        found, wanted = read(path), "a JSON object"
    except FileNotFoundError:
        return None
    except ValueError as error:
        found, wanted = None, f"JSON: {error}"
    if not isinstance(found, dict):
        raise click.ClickException(
            f"{path} is not {wanted}. Remove it, or find out which program wrote it."
        )
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

    Raises click.ClickException: ``file`` is a device or a pipe, whose place no file must take.
    """
    if file.exists() and not file.is_file():
        raise click.ClickException(f"{file} is no file: a file would take its place. Name a file.")
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


def damaged(path: Path, *others: Path) -> click.ClickException:
    """Return the error for a file that is not as a command has left it."""
    names = " and ".join(each.name for each in (path, *others))
    return click.ClickException(
        f"{path} is damaged, or not of this release. Remove {names} to start again."
    )


# --- Cursor files ----------------------------------------------------------------------------------

_LOOPBACK: Final = {"127.0.0.1", "::1", "localhost"}


class CursorLog(NamedTuple):
    """The log of a cursor: one generation of a topic, at a broker with these addresses.

    An id has no meaning in another topic, at another broker, or in a topic that was deleted and created again. A
    tail that continued there would skip messages without an error. So ``check_log`` refuses such a file.

    A broker has no name; its addresses identify it, and a cluster has several. So one common address is enough.
    Each run stores the addresses that it was given.
    """

    topic: str
    generation: int
    brokers: tuple[str, ...]


class FileCursor(NamedTuple):
    """A log and its last handled message: the contents of a cursor file, one line of JSON.

    ::

        {"topic": "jobs/states", "generation": 1, "brokers": ["http://127.0.0.1:8080"], "after": "0000…"}
    """

    log: CursorLog
    after: MessageId


def load_cursor(file: Path) -> FileCursor | None:
    """Read a cursor file; None if it does not exist yet. Raises click.ClickException, OSError."""
    try:
        return _parsed(read(file))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, BadRequest) as error:
        raise click.ClickException(
            f"{file} is not a cursor file. Name another file, or remove it to start again."
        ) from error


def _parsed(value: Any) -> FileCursor:
    return FileCursor(log_of(value), message_id_from_hex(value["after"]))


def log_of(value: Any) -> CursorLog:
    """Return the log that a JSON object names. Raises KeyError, TypeError, ValueError."""
    brokers = value["brokers"]
    if not isinstance(brokers, list) or not all(isinstance(one, str) for one in brokers):
        raise TypeError("brokers are a list of addresses")
    return CursorLog(str(value["topic"]), int(value["generation"]), tuple(brokers))


def save_cursor(file: Path, log: CursorLog, after: MessageId) -> None:
    """Write a cursor file; no reader ever sees it half written. Raises OSError."""
    new = beside(file, ".new")
    write_beside(file, new, json.dumps({**log._asdict(), "after": after.hex()}))
    new.replace(file)


def check_log(file: Path, of: CursorLog, log: CursorLog) -> None:
    """Refuse a file that keeps a place in another log. Raises click.ClickException with advice."""
    if of.topic != log.topic:
        raise click.ClickException(
            f"{file} belongs to {of.topic} at {', '.join(of.brokers)}, not to {log.topic}. "
            "Name another file."
        )
    if not {_normal(url) for url in of.brokers} & {_normal(url) for url in log.brokers}:
        both = ",".join((*log.brokers, *of.brokers))
        raise click.ClickException(
            f"{file} belongs to {of.topic} at {', '.join(of.brokers)}, "
            f"not at {', '.join(log.brokers)}. Name another file. "
            f"If the addresses belong to one cluster, give all of them once: --url {both}"
        )
    if of.generation != log.generation:
        raise click.ClickException(
            f"{file} belongs to an earlier {of.topic}, which was deleted and created again (generation "
            f"{of.generation}, now {log.generation}). Remove the file to start with the new topic."
        )


def _normal(url: str) -> str:
    """Return an address in a normal form, for comparison."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{'localhost' if host in _LOOPBACK else host}:{port}{parts.path.rstrip('/')}"

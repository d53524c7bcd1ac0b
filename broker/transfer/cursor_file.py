"""Cursor files: a place in a topic, with the log that it belongs to. Exports and imports keep the same beside their state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from broker import small_files as files
from broker.errors import BadRequest, TaskFailed
from broker.model import MessageId, message_id_from_hex

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
    """Read a cursor file; None if it does not exist yet. Raises TaskFailed, OSError."""
    try:
        return _parsed(files.read(file))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, BadRequest) as error:
        raise TaskFailed(
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
    new = files.beside(file, ".new")
    files.write_beside(file, new, json.dumps({**log._asdict(), "after": after.hex()}))
    new.replace(file)


def check_log(file: Path, of: CursorLog, log: CursorLog) -> None:
    """Refuse a file that keeps a place in another log. Raises TaskFailed with advice."""
    if of.topic != log.topic:
        raise TaskFailed(
            f"{file} belongs to {of.topic} at {', '.join(of.brokers)}, not to {log.topic}. "
            "Name another file."
        )
    if not {_normal(url) for url in of.brokers} & {_normal(url) for url in log.brokers}:
        both = ",".join((*log.brokers, *of.brokers))
        raise TaskFailed(
            f"{file} belongs to {of.topic} at {', '.join(of.brokers)}, "
            f"not at {', '.join(log.brokers)}. Name another file. "
            f"If the addresses belong to one cluster, give all of them once: --url {both}"
        )
    if of.generation != log.generation:
        raise TaskFailed(
            f"{file} belongs to an earlier {of.topic}, which was deleted and created again (generation "
            f"{of.generation}, now {log.generation}). Remove the file to start with the new topic."
        )


def _normal(url: str) -> str:
    """Return an address in a normal form, for comparison."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{'localhost' if host in _LOOPBACK else host}:{port}{parts.path.rstrip('/')}"

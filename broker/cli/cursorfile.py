"""Cursor files: how far a tail has come, in which topic of which broker.

A file of JSON on one line, written whole::

    {"topic": "jobs/states", "generation": 1, "brokers": ["http://127.0.0.1:8080"], "after": "0000…"}

An id says nothing in another topic, nor at another broker, nor in a topic that was deleted and created anew: a
tail that went on there would leave out messages in silence. So such a file is refused. A broker has no name but
its addresses, of which a cluster has many: one in common is enough, and each run keeps those that it was given.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from broker.errors import BadRequest
from broker.model import MessageId, message_id_from_hex

_LOOPBACK: Final = {"127.0.0.1", "::1", "localhost"}
_ID_DIGITS: Final = 40


class CursorLog(NamedTuple):
    """What a cursor is of: a topic as it was created once, at a broker with these addresses."""

    topic: str
    generation: int
    brokers: tuple[str, ...]


class FileCursor(NamedTuple):
    """A log and the last message of it that was handled; ``log`` None: a file of an earlier version."""

    log: CursorLog | None
    after: MessageId


def load(file: Path) -> FileCursor | None:
    """Read a cursor file, None if there is none yet. Raises click.ClickException, OSError."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        text = ""
    try:
        if len(text.strip()) == _ID_DIGITS:
            return FileCursor(None, message_id_from_hex(text.strip()))
        return _parsed(json.loads(text))
    except (ValueError, KeyError, TypeError, BadRequest) as error:
        raise click.ClickException(
            f"{file} is no cursor file. Name another, or remove it to begin anew."
        ) from error


def _parsed(told: dict[str, Any]) -> FileCursor:
    brokers = told["brokers"]
    if not isinstance(brokers, list) or not all(isinstance(one, str) for one in brokers):
        raise TypeError("brokers are a list of addresses")
    log = CursorLog(str(told["topic"]), int(told["generation"]), tuple(brokers))
    return FileCursor(log, message_id_from_hex(told["after"]))


def save(file: Path, log: CursorLog, after: MessageId) -> None:
    """Write a cursor file so that it is never seen half written. Raises OSError."""
    new = file.with_name(file.name + ".new")
    with new.open("w", encoding="utf-8") as out:
        out.write(json.dumps({**log._asdict(), "after": after.hex()}) + "\n")
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)


def check(file: Path, cursor: FileCursor, log: CursorLog) -> None:
    """Refuse a cursor that is of another log. Raises click.ClickException that says what to do."""
    of = cursor.log
    if of is None:
        return
    if of.topic != log.topic:
        raise click.ClickException(
            f"{file} is of {of.topic} at {', '.join(of.brokers)}; this is {log.topic}. "
            "Name another file for it."
        )
    if not {_name(url) for url in of.brokers} & {_name(url) for url in log.brokers}:
        both = ",".join((*log.brokers, *of.brokers))
        raise click.ClickException(
            f"{file} is of {of.topic} at {', '.join(of.brokers)}; "
            f"this is {log.topic} at {', '.join(log.brokers)}. "
            f"Name another file, or, if both are one cluster, give both addresses once: --url {both}"
        )
    if of.generation != log.generation:
        raise click.ClickException(
            f"{file} is of a {of.topic} that was deleted and created anew since (generation "
            f"{of.generation}, now {log.generation}). Remove the file to begin with the new one."
        )


def _name(url: str) -> str:
    """Return an address in the one form in which it is compared."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{'localhost' if host in _LOOPBACK else host}:{port}{parts.path.rstrip('/')}"

"""The file formats of export and import, chosen by the ending of the file's name.

An export writes a *part*, chunk by chunk. ``append`` makes a chunk durable and returns the position after it. The
caller stores this position. If the process is killed, data after the stored position is written again.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import click

from broker.cli.output import message_json
from broker.cli.small_files import bounded_lines
from broker.cli.transfer.avrofile import AvroFile
from broker.cli.transfer.file_records import NO_ID, GrowingFile, check_reaches
from broker.cli.transfer.parquetfile import ParquetFile
from broker.errors import BadRequest
from broker.model import NO_HEADERS, Message
from broker.wire.jsontext import encode_json


class Format(Protocol):
    """A file format."""

    name: str

    def check(self) -> None:
        """Raise click.ClickException if a package that it needs is missing."""

    def append(self, part: Path, position: int, messages: Sequence[Message]) -> int:
        """Write messages at a position, synced, and return the position after them."""

    def finish(self, part: Path, position: int, file: Path) -> None:
        """Turn a part whose end is at ``position`` into the finished file."""

    def discard(self, part: Path) -> None:
        """Remove a part, if it still exists."""

    def read(self, file: Path) -> Iterator[Message]:
        """Yield the messages of a file, in bounded memory. Raises click.ClickException with the place in the file."""


_KNOWN: Final = frozenset(
    ("id", "time", "timestamp_ms", "encoding", "payload", "value", "key", "headers")
)
LINE_BYTES_MAX: Final = 128 << 20
"""A message has 64 MiB at most, and more in base64."""


class JsonLines(GrowingFile):
    """The format ``jsonl``: one object on each line, as ``broker tail --json`` writes them.

    ::

        {"id": "…", "time": "…", "timestamp_ms": 0, "encoding": "text", "payload": "alice", "key": null, "headers": {}}

    If a payload is not UTF-8, it is in base64, and ``encoding`` says so. If a key or a header is not UTF-8, it is an
    object with ``base64``. ``read`` also accepts ``value`` instead of ``payload``: text, such an object, or
    ``{"json": …}``, as in JSON that is published over HTTP. The other fields are optional.
    """

    name = "jsonl"

    def check(self) -> None:
        """Do nothing: this format needs no package."""

    def append(self, part: Path, position: int, messages: Sequence[Message]) -> int:
        """Write lines at a position, which is a size in bytes."""
        check_reaches(part, position)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(position)
            file.seek(position)
            file.writelines(_line(message) for message in messages)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def read(self, file: Path) -> Iterator[Message]:
        """Yield the messages of a file."""
        with file.open("rb") as lines:
            try:
                for number, line in enumerate(bounded_lines(lines, LINE_BYTES_MAX), start=1):
                    if line.strip():
                        yield _read(number, line)
            except ValueError as error:
                raise click.ClickException(f"{file}, {error}") from error


def _read(number: int, line: bytes) -> Message:
    """Return the message of a line. Raises ValueError, with the line's number."""
    try:
        return _message(json.loads(line))
    except (ValueError, TypeError) as error:
        raise ValueError(f"line {number:,}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"line {number:,}: it is nested too deeply") from error


def _line(message: Message) -> bytes:
    record = json.dumps(message_json(message), ensure_ascii=False, separators=(",", ":"))
    return record.encode() + b"\n"


def _message(record: object) -> Message:
    """Return the message of a line. Raises ValueError with the reason if it is not a message."""
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - The value comes from a file.
    if unknown := sorted(set(record) - _KNOWN):
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(sorted(_KNOWN))}")
    if ("payload" in record) == ("value" in record):
        raise ValueError("needs either payload or value, not both")
    key = record.get("key")
    headers = {} if record.get("headers") is None else record["headers"]
    if not isinstance(headers, dict):
        raise ValueError("headers: is not a JSON object")  # noqa: TRY004
    return Message(
        NO_ID,
        _payload(record),
        None if key is None else _bytes("key", key),
        {name: _bytes(f"headers.{name}", value) for name, value in headers.items()} or NO_HEADERS,
    )


def _payload(record: dict[str, Any]) -> bytes:
    if "value" in record:
        value = record["value"]
        if isinstance(value, dict) and set(value) == {"json"}:
            return _json(value["json"])
        return _bytes("value", value)
    payload, encoding = record["payload"], record.get("encoding", "text")
    if encoding not in ("text", "base64"):
        raise ValueError(f"encoding: must be text or base64, not {encoding!r}")
    return _bytes("payload", payload if encoding == "text" else {"base64": payload})


def _json(value: object) -> bytes:
    try:
        return encode_json(value, "value.json")
    except BadRequest as error:
        raise ValueError(error.message) from error


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name}: {error}") from error
    raise ValueError(f'{name}: must be text, or {{"base64": "…"}}')


FORMATS: Final[dict[str, Format]] = {
    "jsonl": JsonLines(),
    "avro": AvroFile(),
    "parquet": ParquetFile(),
}
_ENDINGS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".avro": "avro", ".parquet": "parquet"}


def format_of(file: Path, name: str | None) -> Format:
    """Return the format ``name``; without a name, the format of the file's ending.

    Raises:
        click.UsageError: no format has that ending.
        click.ClickException: a package is missing.
    """
    name = name or _ENDINGS.get(file.suffix.lower())
    if name is None:
        raise click.UsageError(
            f"{file.name!r} ends with none of {', '.join(_ENDINGS)}: give --format."
        )
    found = FORMATS[name]
    found.check()
    return found

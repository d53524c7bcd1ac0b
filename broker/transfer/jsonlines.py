"""Messages as JSON, as commands write them for machines; and files of them, one on each line."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from typing_extensions import override

from broker.client import Browsed
from broker.errors import BadRequest, TaskFailed
from broker.model import Message
from broker.moments import time_text
from broker.small_files import bounded_lines
from broker.transfer.message_records import GrowingFile, message_from
from broker.wire.jsontext import encode_json, json_of, shown_long


def message_json(message: Message) -> dict[str, Any]:
    """Return a consumer's message as JSON, with the field names that browsing uses."""
    return {
        "id": message.id.hex(),
        "time": time_text(message.timestamp_ms),
        "timestamp_ms": message.timestamp_ms,
        **payload_json(message.payload),
        **attributes_json(message.key, message.headers),
    }


def browsed_json(row: Browsed) -> dict[str, Any]:
    """Return a browsed message as JSON."""
    payload = {"payload": None} if row.payload is None else payload_json(row.payload)
    attributes = attributes_json(row.key, row.headers)
    identity = {"id": row.id.hex(), "time": time_text(row.timestamp_ms)}
    pointer = {"write_pointer": shown_long(row.write_pointer)}
    known = {**row._asdict(), **identity, **pointer, **payload, **attributes}
    if row.consumable is None:
        del known["consumable"]
    return known


def payload_json(payload: bytes) -> dict[str, str]:
    """Return a payload as JSON: text if it is UTF-8, else base64."""
    try:
        return {"encoding": "text", "payload": payload.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "payload": base64.b64encode(payload).decode()}


def attributes_json(key: bytes | None, headers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a message's key and headers as JSON."""
    return {
        "key": None if key is None else bytes_json(key),
        "headers": {name: bytes_json(value) for name, value in headers.items()},
    }


def bytes_json(value: bytes) -> str | dict[str, str]:
    """Return bytes as JSON: text if they are UTF-8, else an object with base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


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

    @override
    def write(self, file: BinaryIO, messages: Iterable[Message], *, is_new: bool) -> None:
        """Write a line for each message."""
        file.writelines(map(_line, messages))

    def read(self, file: Path) -> Iterator[Message]:
        """Yield the messages of a file."""
        with file.open("rb") as lines:
            try:
                for number, line in enumerate(bounded_lines(lines, LINE_BYTES_MAX), start=1):
                    if line.strip():
                        yield _read(number, line)
            except ValueError as error:
                raise TaskFailed(f"{file}, {error}") from error


def _read(number: int, line: bytes) -> Message:
    """Return the message of a line. Raises ValueError, with the line's number."""
    try:
        return _message(json_of(line))
    except (ValueError, TypeError) as error:
        raise ValueError(f"line {number:,}: {error}") from error


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
    headers = {} if record.get("headers") is None else record["headers"]
    if not isinstance(headers, dict):
        raise ValueError("headers: is not a JSON object")  # noqa: TRY004
    return message_from(_payload(record), record.get("key"), headers, _bytes)


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

"""The parts that all formats and both directions share: messages as records, the contents of a file, a growing part, the progress."""

from __future__ import annotations

import hashlib
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol, Self

from broker.errors import TaskFailed
from broker.model import MESSAGE_ID_BYTES, NO_HEADERS, Message
from broker.small_files import place

NO_ID: Final = bytes(MESSAGE_ID_BYTES)
"""The id of a message from a file; the broker gives it a real id when it is published."""


def size_of(message: Message) -> int:
    """Return a message's approximate size in memory, in bytes."""
    attributes = sum(len(name) + len(value) for name, value in message.headers.items())
    return len(message.payload) + len(message.key or b"") + attributes


class Progress(Protocol):
    """Shows how far a transfer is, to the people who wait for it."""

    def counting(
        self, what: str, total: int | None
    ) -> AbstractContextManager[Callable[[int], object]]:
        """Show ``what`` is done with ``total`` messages, during a block that tells each number of further ones."""

    def say(self, text: str) -> None:
        """Show a line of text."""


def message_of(record: object) -> Message:
    """Return the message of a record; ``key`` and ``headers`` are optional. Raises ValueError."""
    if not isinstance(record, Mapping) or "payload" not in record:
        raise ValueError("has no field payload")
    headers = record.get("headers") or {}
    if isinstance(headers, list) and all(isinstance(each, tuple) for each in headers):
        headers = dict(headers)  # As Parquet's maps come.
    if not isinstance(headers, Mapping):
        raise ValueError("headers: is not a map of names and values")  # noqa: TRY004 - As for all values.
    return message_from(_bytes("payload", record["payload"]), record.get("key"), headers, _bytes)


def message_from(
    payload: bytes, key: object, headers: Mapping[str, object], read: Callable[[str, object], bytes]
) -> Message:
    """Return a message of a file; ``read`` makes bytes of a named value. Raises ValueError as ``read`` does."""
    return Message(
        NO_ID,
        payload,
        None if key is None else read("key", key),
        {name: read(f"headers.{name}", value) for name, value in headers.items()} or NO_HEADERS,
    )


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ValueError(f"{name}: is neither bytes nor text")


# --- Contents --------------------------------------------------------------------------------------

START: Final = bytes(32)
_LENGTH = struct.Struct(">Q")


class Contents(NamedTuple):
    """The number of messages, and their hash. Equal contents have equal counts and hashes.

    The hash is a chain of SHA-256 over the messages, in order; it starts with 32 zero bytes::

        hash after a message = SHA-256(hash before | payload | key | headers)

        payload, name, value    length as 8 bytes, big-endian, and the bytes
        key                     a byte 0 if there is no key; else a byte 1, and the key like a payload
        headers                 their number as 8 bytes; name and value of each, sorted by name

    Ids and times are not part of the hash, since an imported message gets new ones. The last hash of a chain can be
    stored and continued later; the inner state of one SHA-256 over everything can't.
    """

    messages: int = 0
    hash: bytes = START

    def with_message(self, message: Message) -> Contents:
        """Return the contents with one more message."""
        return Contents(self.messages + 1, hashlib.sha256(self.hash + _canonical(message)).digest())

    def with_all(self, messages: list[Message]) -> Contents:
        """Return the contents with more messages."""
        contents = self
        for message in messages:
            contents = contents.with_message(message)
        return contents

    def as_json(self) -> dict[str, int | str]:
        """Return the contents as JSON."""
        return {"messages": self.messages, "sha256": self.hash.hex()}

    @classmethod
    def of(cls, value: dict[str, object]) -> Self:
        """Return the contents that ``as_json`` has written. Raises KeyError, TypeError, ValueError."""
        messages, digest = value["messages"], value["sha256"]
        if not isinstance(messages, int) or not isinstance(digest, str):
            raise TypeError("a count and a hash were expected")
        contents = cls(messages, bytes.fromhex(digest))
        if messages < 0 or len(contents.hash) != len(START):
            raise ValueError("a count and a hash were expected")
        return contents


def _canonical(message: Message) -> bytes:
    key = b"\0" if message.key is None else b"\1" + _sized(message.key)
    headers = [
        _sized(name.encode()) + _sized(value) for name, value in sorted(message.headers.items())
    ]
    return b"".join((_sized(message.payload), key, _LENGTH.pack(len(headers)), *headers))


def _sized(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


# --- Parts -----------------------------------------------------------------------------------------


class GrowingFile(ABC):
    """A format whose part is one file, which grows to the finished file; a position is a size in bytes."""

    def append(self, part: Path, position: int, messages: Sequence[Message]) -> int:
        """Write messages at a position, synced, and return the position after them."""
        check_reaches(part, position)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(position)
            file.seek(position)
            self.write(file, messages, is_new=not position)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    @abstractmethod
    def write(self, file: BinaryIO, messages: Iterable[Message], *, is_new: bool) -> None:
        """Write messages at the end of a file; ``is_new`` if it is empty."""

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
    """Raise TaskFailed if a growing file is missing, or shorter than ``size``."""
    if size and (not path.exists() or path.stat().st_size < size):
        raise changed(path, f"it had {size:,} bytes")


def changed(part: Path, how: str) -> TaskFailed:
    """Return the error for an unfinished file that another program has changed."""
    return TaskFailed(
        f"{part} was changed or removed: {how}. Remove the .part and the .state of this export, and start again."
    )

"""The contents of a file or of a topic's range, as a count and a hash. Equal contents have equal counts and hashes.

The hash is a chain of SHA-256 over the messages, in order; it starts with 32 zero bytes::

    hash after a message = SHA-256(hash before | payload | key | headers)

    payload, name, value    length as 8 bytes, big-endian, and the bytes
    key                     a byte 0 if there is no key; else a byte 1, and the key like a payload
    headers                 their number as 8 bytes; name and value of each, sorted by name

Ids and times are not part of the hash, since an imported message gets new ones. The last hash of a chain can be
stored and continued later; the inner state of one SHA-256 over everything can't.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple, Self

from broker.model import Message

START: Final = bytes(32)
_LENGTH = struct.Struct(">Q")


class Contents(NamedTuple):
    """The number of messages, and their hash."""

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
    key = b"\0" if message.key is None else b"\1" + _bytes(message.key)
    headers = [
        _bytes(name.encode()) + _bytes(value) for name, value in sorted(message.headers.items())
    ]
    return b"".join((_bytes(message.payload), key, _LENGTH.pack(len(headers)), *headers))


def _bytes(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value

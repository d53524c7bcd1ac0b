"""What a file or a range of a topic contains, as a count and a hash: equal contents have equal ones.

The hash is a chain of SHA-256 over the messages, in their order; it begins with 32 zero bytes::

    hash after a message = SHA-256(hash before | payload | key | headers)

    payload, name, value    length as 8 bytes, big-endian, and the bytes
    key                     one byte, 0 if there is none; else 1, and as a payload
    headers                 how many as 8 bytes; name and value of each, sorted by name

Ids and times are no part of it, since a message that is imported gets new ones. A chain, unlike the state of
one SHA-256 over everything, can be written down and gone on with.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple, Self

from broker.model import Message

START: Final = bytes(32)
_LENGTH = struct.Struct(">Q")


class Contents(NamedTuple):
    """How many messages, and their hash."""

    messages: int = 0
    hash: bytes = START

    def with_message(self, message: Message) -> Contents:
        """Return the contents with one more message."""
        return Contents(self.messages + 1, hashlib.sha256(self.hash + _canonical(message)).digest())

    def with_all(self, messages: list[Message]) -> Contents:
        """Return the contents with some more messages."""
        contents = self
        for message in messages:
            contents = contents.with_message(message)
        return contents

    def told(self) -> dict[str, int | str]:
        """Return them as JSON can hold them."""
        return {"messages": self.messages, "sha256": self.hash.hex()}

    @classmethod
    def of(cls, told: dict[str, object]) -> Self:
        """Return what ``told`` gave. Raises KeyError, TypeError, ValueError if it is none."""
        messages, digest = told["messages"], told["sha256"]
        if not isinstance(messages, int) or not isinstance(digest, str):
            raise TypeError("a count and a hash were expected")
        return cls(messages, bytes.fromhex(digest))


def _canonical(message: Message) -> bytes:
    key = b"\0" if message.key is None else b"\1" + _bytes(message.key)
    headers = [
        _bytes(name.encode()) + _bytes(value) for name, value in sorted(message.headers.items())
    ]
    return b"".join((_bytes(message.payload), key, _LENGTH.pack(len(headers)), *headers))


def _bytes(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value

"""The message of a reference: how many messages of its payload log it stands for, and the last hash of that log."""

from __future__ import annotations

import struct

from broker.storage.entry import DIGEST_BYTES, Entry

_NUMBER = struct.Struct(">q")


def encode_count(messages: int, chain: bytes = b"") -> bytes:
    """Return the payload of a reference's own message: how many messages it stands for.

    ``chain``: the hash at the end of the payload log, if that has a hash chain.
    """
    return _NUMBER.pack(messages) + chain


def messages_of(entry: Entry) -> int:
    """Return how many messages an entry stands for. A reference stands for those of its payload log."""
    if entry.is_reference and not entry.is_stub:
        (count,) = _NUMBER.unpack_from(entry.payload(0))
        return int(count)
    return entry.count


def payload_chain(entry: Entry) -> bytes:
    """Return the hash at the end of a reference's payload log; b"" if that has no hash chain."""
    chain = entry.payload(0)[_NUMBER.size :]
    return chain if len(chain) == DIGEST_BYTES else b""

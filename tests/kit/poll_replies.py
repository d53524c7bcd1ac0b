"""Replies to polls in Avro: the blocks of the original's form, and the pages of ours."""

from __future__ import annotations

from collections.abc import Sequence

from broker.model import Message
from broker.wire import messages as pages
from broker.wire.varint import encode_bytes, encode_long


def items(messages: Sequence[Message]) -> bytes:
    """Return messages as the items of a block."""
    return b"".join(encode_bytes(each.id) + encode_bytes(each.payload) for each in messages)


def block(messages: Sequence[Message]) -> bytes:
    """Return messages as one block of a reply. Without messages it returns no bytes: a count of 0 ends the array."""
    return encode_long(len(messages)) + items(messages) if messages else b""


def page_of(messages: Sequence[Message]) -> bytes:
    """Return messages without attributes as one page of a reply. Without messages it returns no bytes."""
    return b"".join(pages.page(len(messages), [items(messages)], [])) if messages else b""

"""Messages with keys, headers and lifetimes: ``avro/message``, in addition to the original's ``avro/binary``.

The client and the nodes use it with each other. A publish or a store is the original's record, but its messages are
records. The reply to a poll is an array of pages, one page in each block::

    page       02 | messages | attributes                      one page in this block
    messages   count | item | item | … | 00                    the original's reply: a copy of the stored form
    attributes count | place | key | headers | … | 00          only for messages that have any; none: 00
    reply      page page … 00                                  an empty reply is 00 alone

``place`` is the index of the message in the page, from 0. A page of messages without attributes adds three bytes in
all. The body of the poll itself stays ``avro/binary``. A client asks for this form of the reply by ``Accept``, and
decodes the reply by its ``Content-Type``.

The original's reply to a poll is an Avro array of messages, written and read block by block::

    block    count | item | item | ...             count > 0
             -count | size in bytes | item | ...   the other legal form; the reader accepts it, the writer never uses it
    item     28 | id (20 bytes) | length of the payload | payload
    reply    block ... block 00                    an empty reply is 00 alone

An array may be split into blocks anywhere. So the messages of a topic are encoded once, and any page of them is a count
and a slice. A reply without the final zero was cut off. The reader treats this as an error, never as the end of the
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.errors import BadRequest, OutcomeUnknown, Unavailable
from broker.model import MESSAGE_ID_BYTES, NO_HEADERS, Message, PublishRequest
from broker.operations.media_types import MESSAGES
from broker.wire import Take, attributes, avro, free
from broker.wire.varint import (
    END,
    Malformed,
    encode_bytes,
    encode_long,
    read_bytes,
    read_int,
    read_long,
)

CONTENT_TYPE: Final = MESSAGES

_ONE_PAGE: Final = encode_long(1)
_NO_ATTRIBUTES: Final = b"\0\0"
_NO_TTL: Final = b"\0"
_TTL: Final = b"\x02"
_ID_LENGTH_BYTE: Final = encode_long(MESSAGE_ID_BYTES)[0]


# --- Publish and store ---------------------------------------------------------------------------


def encode_publish_request(request: PublishRequest) -> bytes:
    """Return the body of a publish or a store."""
    parts = [avro.encode_pointer(request.pointer)]
    if request.payloads:
        count = len(request.payloads)
        parts.append(encode_long(count))
        beside = request.attributes or [b""] * count
        ttls_s = request.ttls_s or [None] * count
        for payload, each, ttl_s in zip(request.payloads, beside, ttls_s, strict=True):
            ttl = _NO_TTL if ttl_s is None else _TTL + encode_long(ttl_s)
            parts += (encode_bytes(payload), each or _NO_ATTRIBUTES, ttl)
    parts.append(END)
    return b"".join(parts)


def decode_publish_request(body: bytes, *, messages_max: int, take: Take = free) -> PublishRequest:
    """Read the body of a publish or a store. It calls ``take`` for each block of messages.

    Raises:
        BadRequest: the body is malformed, or a message has too many headers.
        TooManyMessages: it has more than ``messages_max`` messages; the reader stopped before the excess ones.
    """
    found: list[bytes] = []
    ttls_s: list[int | None] = []

    def read_block(body: bytes, at: int, count: int, payloads: list[bytes]) -> int:
        for _ in range(count):
            payload, at = read_bytes(body, at)
            beside, at = attributes.read(body, at)
            ttl_s, at = avro.read_optional(body, at, read_int, null=0)
            payloads.append(payload)
            found.append(attributes.encode(*beside))
            ttls_s.append(ttl_s)
        return at

    return avro.decode_publish_request(
        body, messages_max=messages_max, take=take, read_block=read_block
    )._replace(
        attributes=found if any(found) else (),
        ttls_s=ttls_s if any(ttl_s is not None for ttl_s in ttls_s) else (),
    )


def _read_count(body: bytes, at: int) -> tuple[int, int]:
    """Return the count of an array's block, in either of its legal forms, and the position after it."""
    count, at = read_long(body, at)
    if count < 0:
        _, at = read_long(body, at)
    return abs(count), at


# --- The reply of a poll -------------------------------------------------------------------------


def page(
    count: int, items: Sequence[bytes | memoryview], found: Sequence[tuple[int, bytes]]
) -> list[bytes | memoryview]:
    """Return one page of a reply, in parts.

    Args:
        count: the number of its messages, at least one.
        items: runs of encoded items, in the original's form.
        found: the attributes of the messages that have any, each with its index, in order.
    """
    beside = [encode_long(len(found))] if found else []
    for place, each in found:
        beside += (encode_long(place), each)
    return [_ONE_PAGE, encode_long(count), *items, END, *beside, END]


def add_attributes(messages: list[Message], found: Sequence[tuple[int, bytes]]) -> None:
    """Set the attributes of messages. Each has the index of its message."""
    for place, encoded in found:
        messages[place] = Message(*messages[place][:2], *attributes.decode(encoded))


def _check_end(ended: bool) -> None:
    """Raise Unavailable if a reply was cut off. Reading has no effect, so repeating it is safe."""
    if not ended:
        raise Unavailable("The reply of a poll was cut off before its end.")


class PollDecoder:
    """Reads a poll's reply as it arrives, in pieces of any size.

    Between calls it keeps only the beginning of an incomplete item. It reads that again only when all bytes
    known to be missing have arrived. So a large payload in many small pieces is joined once.
    """

    __slots__ = ("_at", "_buffer", "_left", "_missing", "_pieces", "ended")

    def __init__(self) -> None:
        """Start before the first block."""
        self._buffer = b""
        self._pieces: list[bytes] = []
        self._missing = 1
        self._at = 0
        self._left = 0
        self.ended = False
        """True if the final zero block was read. Bytes after it are ignored."""

    @property
    def rest(self) -> bytes:
        """The bytes behind the final zero block, in the piece that contained it."""
        return self._buffer

    def feed(self, data: bytes) -> list[Message]:
        """Take a piece of the reply and return the messages that it completes.

        Raises:
            OutcomeUnknown: these bytes are not a reply to a poll.
        """
        if self.ended:
            return []
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return []
        self._buffer = b"".join((self._buffer, *self._pieces))
        self._pieces.clear()
        messages: list[Message] = []
        try:
            self._read_all(messages)
        except IndexError:
            # The bytes end within an item. Unless a length said more, one more byte may complete it.
            self._missing = max(self._missing, 1)
        except Malformed as error:
            raise OutcomeUnknown(f"The answer is not a reply to a poll: {error}.") from None
        self._buffer = self._buffer[self._at :]
        self._at = 0
        return messages

    def finish(self) -> None:
        """Check at the end of the input that the reply is complete. Raises Unavailable."""
        _check_end(self.ended)

    def _read_all(self, messages: list[Message]) -> None:
        """Read blocks until the final one. Raises IndexError where the received bytes end."""
        self._missing = 0
        while True:
            self._read_items(messages)
            count, at = read_long(self._buffer, self._at)
            if count < 0:
                _, at = read_long(self._buffer, at)
            self._at = at
            self._left = abs(count)
            if count == 0:
                self.ended = True
                return

    def _read_items(self, messages: list[Message]) -> None:
        """Read the rest of a block. ``_at`` and ``_left`` always refer to the end of a complete item."""
        buffer, at, before, available = self._buffer, self._at, len(messages), len(self._buffer)
        append, new = messages.append, tuple.__new__
        try:
            for _ in range(self._left):
                if buffer[at] != _ID_LENGTH_BYTE:
                    raise Malformed(f"a message id does not have {MESSAGE_ID_BYTES} bytes")
                id_end = at + 1 + MESSAGE_ID_BYTES
                low = buffer[id_end]
                if low & 1:
                    raise Malformed("the length of a payload is negative")
                if low < 0x80:
                    start = id_end + 1
                    end = start + (low >> 1)
                elif (high := buffer[id_end + 1]) < 0x80:
                    start = id_end + 2
                    end = start + (high << 6) + (low >> 1) - 0x40
                else:
                    size, start = read_long(buffer, id_end)
                    end = start + size
                if end > available:
                    self._missing = end - available
                    break
                append(new(Message, (buffer[at + 1 : id_end], buffer[start:end], None, NO_HEADERS)))
                at = end
        finally:
            self._at = at
            self._left -= len(messages) - before
        if self._left:
            raise IndexError


class PagesDecoder:
    """Reads a reply as it arrives, in pieces of any size. It returns the messages of a page when the page is complete."""

    __slots__ = ("_buffer", "_in_page", "_inner", "_left", "_messages", "_pages_left", "ended")

    def __init__(self) -> None:
        """Start before the first page."""
        self._buffer = b""
        """Received bytes that were not read: less than the attributes of one message."""
        self._inner: PollDecoder | None = None
        """Reads the messages of the present page while they arrive."""
        self._messages: list[Message] = []
        """The messages of the present page."""
        self._in_page = False
        self._pages_left = 0
        self._left = 0
        """The number of unread attributes in the present block of attributes."""
        self.ended = False
        """True if the final zero was read. Bytes after it are ignored."""

    def feed(self, data: bytes) -> list[Message]:
        """Take a piece of the reply and return the messages of the pages that it completes.

        Raises:
            OutcomeUnknown: these bytes are not such a reply.
        """
        found: list[Message] = []
        try:
            while data and not self.ended:
                data = (
                    self._read_between(data, found)
                    if self._inner is None
                    else self._read_messages(data, self._inner)
                )
        except (Malformed, BadRequest) as error:
            raise OutcomeUnknown(f"The answer is not a reply to a poll: {error}.") from None
        return found

    def finish(self) -> None:
        """Check at the end of the input that the reply is complete. Raises Unavailable."""
        _check_end(self.ended)

    def _read_messages(self, data: bytes, inner: PollDecoder) -> bytes:
        """Read messages of a page; return the unread rest of the piece."""
        self._messages += inner.feed(data)
        if not inner.ended:
            return b""
        self._inner = None
        return inner.rest

    def _read_between(self, data: bytes, found: list[Message]) -> bytes:
        """Read the bytes between the messages of two pages; return the unread rest of the piece."""
        self._buffer += data
        at = 0
        try:
            while self._inner is None and not self.ended:
                at = self._read_attributes(at, found) if self._in_page else self._read_pages(at)
        except _Short as short:
            self._buffer = self._buffer[short.at :]
            return b""
        data, self._buffer = self._buffer[at:], b""
        return data

    def _read_pages(self, at: int) -> int:
        """Read the beginning of a page. Raises _Short."""
        if not self._pages_left:
            try:
                self._pages_left, at = _read_count(self._buffer, at)
            except IndexError:
                raise _Short(at) from None
        if not self._pages_left:
            self.ended = True
            return at
        self._pages_left -= 1
        self._in_page, self._inner = True, PollDecoder()
        return at

    def _read_attributes(self, at: int, found: list[Message]) -> int:
        """Read the attributes of a page; after the last, add the page's messages to ``found``. Raises _Short."""
        try:
            while True:
                while self._left:
                    place, behind = read_int(self._buffer, at)
                    beside, behind = attributes.read(self._buffer, behind)
                    if not 0 <= place < len(self._messages):
                        raise Malformed(f"the page has no message {place}")
                    message = self._messages[place]
                    self._messages[place] = Message(message.id, message.payload, *beside)
                    at, self._left = behind, self._left - 1
                self._left, at = _read_count(self._buffer, at)
                if not self._left:
                    break
        except IndexError:
            raise _Short(at) from None
        found += self._messages
        self._messages, self._in_page = [], False
        return at


def decoder(content_type: str) -> PagesDecoder | PollDecoder | None:
    """Return a decoder for a content type: pages, or the original's own form. None: no broker sends this type."""
    if content_type == CONTENT_TYPE:
        return PagesDecoder()
    return PollDecoder() if content_type == avro.CONTENT_TYPE else None


class _Short(Exception):
    """The received bytes end within the part that begins at ``at``."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

"""The reply of a poll: an Avro array of messages, written and read block by block.

::

    block    count | item | item | ...             count > 0
             -count | size in bytes | item | ...   the other legal form; the reader accepts it, the writer never uses it
    item     28 | id (20 bytes) | length of the payload | payload
    reply    block ... block 00                    an empty reply is 00 alone

An array may be split into blocks anywhere. So the messages of a topic are encoded once, and any page of them is a count
and a slice. A reply without the final zero was cut off. The reader treats this as an error, never as the end of the
data.
"""

from __future__ import annotations

from typing import Final

from broker.errors import OutcomeUnknown, Unavailable
from broker.model import MESSAGE_ID_BYTES, NO_HEADERS, Message
from broker.wire.varint import Malformed, encode_long, read_long

END: Final = b"\x00"

_ID_LENGTH_BYTE: Final = encode_long(MESSAGE_ID_BYTES)[0]


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
        """Check at the end of the input that the reply is complete.

        Raises:
            Unavailable: the reply was cut off. Reading has no effect, so repeating it is safe.
        """
        if not self.ended:
            raise Unavailable("The reply of a poll was cut off before its end.")

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

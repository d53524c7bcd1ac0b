"""Write messages as a JSON list, in pieces, while the list is being sent.

The list may be long, and one message may be large. Small messages are encoded several at a time. A large message is
encoded alone, part by part. So each step is short, no piece is large, and at most one piece is in memory beside the
messages::

    [{…},{…},{…}   ,{…"payload":"aaaa   aaaa   aaaa",…}   ,{…},{…}   ]
    └ together ─┘  └────────── apart ────────────────┘   └together┘
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from broker.wire.avrojson import PART_BYTES

MESSAGES_AT_ONCE: Final = 128


class HasPayload(Protocol):
    """A message in any form. Its payload is None if it has none of its own."""

    @property
    def payload(self) -> bytes | memoryview | None:
        """Its payload."""


Item = TypeVar("Item", bound=HasPayload)


class ItemForm(NamedTuple, Generic[Item]):
    """How to encode the messages of a list.

    ``together`` encodes several messages, with commas between them. ``apart`` encodes one message in pieces.
    """

    together: Callable[[Sequence[Item]], bytes]
    apart: Callable[[Item], AsyncIterator[bytes]]


class JsonList(Generic[Item]):
    """A list that is encoded piece by piece."""

    def __init__(self, form: ItemForm[Item]) -> None:
        """Begin an empty list of messages in this form."""
        self._form = form
        self._before = b"["

    async def pieces(self, messages: Sequence[Item]) -> AsyncIterator[bytes]:
        """Yield the pieces of more messages."""
        first = size = 0
        for place, message in enumerate(messages):
            size += len(message.payload or b"")
            if size > PART_BYTES or place - first == MESSAGES_AT_ONCE:
                if first < place:
                    yield self._together(messages[first:place])
                first, size = place, len(message.payload or b"")
                if size > PART_BYTES:
                    yield self._separator()
                    async for piece in self._form.apart(message):
                        yield piece
                    first, size = place + 1, 0
        if first < len(messages):
            yield self._together(messages[first:])

    def end(self) -> bytes:
        """Return the end of the list."""
        return b"[]" if self._before == b"[" else b"]"

    def _together(self, messages: Sequence[Item]) -> bytes:
        return self._separator() + self._form.together(messages)

    def _separator(self) -> bytes:
        before, self._before = self._before, b","
        return before

"""Messages as a list in JSON, made in pieces while it is sent.

A list may be long, and so may one message. Small messages become JSON some at a time, a large one by itself, part
by part. So each step is short, no more than a piece is held beside the messages, and no piece is large::

    [{…},{…},{…}   ,{…"payload":"aaaa   aaaa   aaaa",…}   ,{…},{…}   ]
    └ together ─┘  └────────── apart ────────────────┘   └together┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from broker.api.payload_text import PART_BYTES

MESSAGES_AT_ONCE: Final = 128


class HasPayload(Protocol):
    """A message, in whatever form; None: it has no payload of its own."""

    @property
    def payload(self) -> bytes | memoryview | None:
        """Its payload."""


Item = TypeVar("Item", bound=HasPayload)


class ItemForm(NamedTuple, Generic[Item]):
    """How messages look in a list.

    ``together`` gives several with commas between them. ``apart`` gives one in pieces; empty ones are steps at
    which other work may go on.
    """

    together: Callable[[Sequence[Item]], bytes]
    apart: Callable[[Item], Iterator[bytes]]


class JsonList(Generic[Item]):
    """A list that is written piece by piece."""

    def __init__(self, form: ItemForm[Item]) -> None:
        """Begin; messages look as ``form`` has them."""
        self._form = form
        self._before = b"["

    def pieces(self, messages: Sequence[Item]) -> Iterator[bytes]:
        """Yield what some more messages add; empty pieces are steps at which other work may go on."""
        first = size = 0
        for place, message in enumerate(messages):
            size += len(message.payload or b"")
            if size > PART_BYTES or place - first == MESSAGES_AT_ONCE:
                yield from self._together(messages[first:place])
                first, size = place, len(message.payload or b"")
                if size > PART_BYTES:
                    yield self._separator()
                    yield from self._form.apart(message)
                    first, size = place + 1, 0
        yield from self._together(messages[first:])

    def end(self) -> bytes:
        """Return what ends the list."""
        return b"[]" if self._before == b"[" else b"]"

    def _together(self, messages: Sequence[Item]) -> Iterator[bytes]:
        if messages:
            yield self._separator() + self._form.together(messages)

    def _separator(self) -> bytes:
        before, self._before = self._before, b","
        return before

"""Write messages as a JSON list, in pieces, while the list is being sent.

The list may be long, and one message may be large. Small messages are encoded several at a time. A large message is
encoded alone, part by part. So each step is short, no piece is large, and at most one piece is in memory beside the
messages::

    [{…},{…},{…}   ,{…"payload":"aaaa   aaaa   aaaa",…}   ,{…},{…}   ]
    └ together ─┘  └────────── apart ────────────────┘   └together┘
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import orjson

from broker.long_work import aside
from broker.model import ShownMessage
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


# --- Payloads, keys and headers: as text if they are UTF-8, else in base64 ------------------------


class ShownPayload(NamedTuple):
    """A payload as the JSON shows it."""

    encoding: str
    text: str


_UTF8 = codecs.getincrementaldecoder("utf-8")


def shown(payload: bytes | memoryview, bytes_max: int | None = None) -> ShownPayload:
    """Return at most ``bytes_max`` bytes of a payload: as text if they are UTF-8, else as base64.

    The text never ends in the middle of a character.
    """
    truncated = bytes_max is not None and len(payload) > bytes_max
    part = payload[:bytes_max] if truncated else payload
    try:
        text = _UTF8().decode(part, final=not truncated)
    except UnicodeDecodeError:
        return ShownPayload("base64", base64.b64encode(part).decode("ascii"))
    return ShownPayload("text", text)


class ShownParts(NamedTuple):
    """A message as JSON shows it: the fields before its payload, the payload, and the fields behind it, of which there is one."""

    before: dict[str, Any]
    payload: bytes | memoryview | None
    behind: dict[str, Any]


def form_of(parts_of: Callable[[Item], ShownParts], bytes_max: int | None = None) -> ItemForm[Item]:
    """Return the form of messages with these parts. It shows at most ``bytes_max`` bytes of each payload."""

    def together(items: Sequence[Item]) -> bytes:
        return orjson.dumps([_whole(parts_of(item), bytes_max) for item in items])[1:-1]

    return ItemForm(together, lambda item: _in_pieces(parts_of(item)))


def _whole(parts: ShownParts, bytes_max: int | None) -> dict[str, Any]:
    encoding, text = "text", None
    if parts.payload is not None:
        encoding, text = shown(parts.payload, bytes_max)
    return {**parts.before, "encoding": encoding, "payload": text, **parts.behind}


async def _in_pieces(parts: ShownParts) -> AsyncIterator[bytes]:
    """Yield the same JSON object in pieces. Each has a part of the payload."""
    payload = parts.payload or b""
    encoding = "text" if await aside(partial(_is_text, payload)) else "base64"
    yield orjson.dumps({**parts.before, "encoding": encoding})[:-1] + b',"payload":"'
    if encoding == "text":
        for text in _decoded(payload):
            yield orjson.dumps(text)[1:-1]
    else:
        for at in range(0, len(payload), PART_BYTES):
            yield base64.b64encode(payload[at : at + PART_BYTES])
    yield b'",' + orjson.dumps(parts.behind)[1:]


def _is_text(payload: bytes | memoryview) -> bool:
    try:
        for _ in _decoded(payload):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _decoded(payload: bytes | memoryview) -> Iterator[str]:
    """Yield the parts of a payload as text. Raises UnicodeDecodeError at the first part that is not UTF-8."""
    decoder = _UTF8()
    for at in range(0, len(payload), PART_BYTES):
        yield decoder.decode(payload[at : at + PART_BYTES], final=at + PART_BYTES >= len(payload))


def shown_beside(key: bytes | None, headers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields ``key`` (null if there is none) and ``headers`` of a message."""
    return {
        "key": None if key is None else _value(key),
        "headers": {name: _value(value) for name, value in headers.items()},
    }


def parts_of_message(place: dict[str, Any], message: ShownMessage) -> ShownParts:
    """Return the parts of a message for consumers; ``place`` are the fields that tell its place."""
    return ShownParts(place, message.payload, shown_beside(message.key, message.headers))


def _value(value: bytes) -> str | dict[str, str]:
    """Return bytes as text if they are UTF-8, else as ``{"base64": …}``."""
    whole = shown(value)
    return whole.text if whole.encoding == "text" else {"base64": whole.text}

"""Places in a topic that know their generation: how many times a topic of this name was created.

A message id alone has no meaning in another generation of its topic. So whatever keeps a place keeps the generation with
it, and the broker refuses a request whose generation is not the topic's (TopicRecreated).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from typing_extensions import override

from broker.errors import BadRequest
from broker.model import MESSAGE_ID_BYTES, MessageId, message_id_from_hex
from broker.moments import moment_of

GENERATION_HEADER: Final = "Broker-Generation"
"""In a reply: the topic's generation. In a request: the generation to which its places and stored messages belong."""


_HEX_DIGITS: Final = 2 * MESSAGE_ID_BYTES


class Place(NamedTuple):
    """A message id as a place in a topic, with the generation to which it belongs; None: any generation.

    As text it is ``<40 hex digits>@<generation>``, or the digits alone.
    """

    id: MessageId
    generation: int | None = None

    @override
    def __str__(self) -> str:
        """Return the text, as ``of`` reads it."""
        return self.id.hex() if self.generation is None else f"{self.id.hex()}@{self.generation}"

    @classmethod
    def of(cls, text: str) -> Place:
        """Read the text of a place. Raises BadRequest."""
        digits, at, generation = text.partition("@")
        identifier = message_id_from_hex(digits)
        return cls(identifier, generation_of(generation)) if at else cls(identifier)


def generation_of(text: str) -> int:
    """Read the number of a generation. Raises BadRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10) or not int(text):
        raise BadRequest(f"A generation is a whole number from 1, not {text!r:.80}.")
    return int(text)


def place_of(text: str) -> Place | int:
    """Read a place in a topic: a message id, maybe with its generation, or a moment in ms since 1970.

    40 hex digits are an id, a whole number is ms, and any other text must be a moment (see ``moments``). Raises
    BadRequest.
    """
    if len(text) == _HEX_DIGITS or "@" in text:
        return Place.of(text)
    try:
        return moment_of(text)
    except ValueError as error:
        if text.isdecimal():
            raise BadRequest(str(error)) from None
        raise BadRequest(
            f"{text!a:.80} is neither a message id (40 hex digits), ms since 1970, nor a moment such as "
            "2026-11-20T12:34:56.789Z."
        ) from None

"""Places in a topic that know their generation: how many times a topic of this name was created.

A message id alone has no meaning in another generation of its topic. So whatever keeps a place keeps the generation with
it, and the broker refuses a request whose generation is not the topic's (TopicRecreated).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from typing_extensions import override

from broker.errors import BadRequest
from broker.model import MessageId, message_id_from_hex

GENERATION_HEADER: Final = "Broker-Generation"
"""In a reply: the topic's generation. In a request: the generation to which its places and stored messages belong."""


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

"""The count of tries at the message behind a place, and the data of a subscriber's cursor, which has it (pure).

::

    {"holder": "host 71 5ca1…", "takeover_s": 10.0, "messages": 100,        the holder; a released cursor has none
     "tried": {"id": "…", "messages": 1, "tries": 3}}                       the tries at the next message, if any failed

The cursor has the count before a try begins, from the second try on. So a new process goes on with the count of the
former one. The first try is not written, as that would cost a request for each message. Yet a message may end the
process at its first try. The next holder notices that the former one never released the cursor. As it can't know which
message was in work, it writes the count before the first try, too, until it is past all messages that may have been.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.model import Message, MessageId


class TryCount(NamedTuple):
    """The tries at a message, or at a batch that begins with it and has so many ``messages``."""

    id: MessageId
    messages: int
    tries: int

    @classmethod
    def of(cls, batch: Sequence[Message], tries: int) -> TryCount | None:
        """Return the count of the tries at a batch; None for no try."""
        return cls(batch[0].id, len(batch), tries) if tries else None

    def at(self, batch: Sequence[Message]) -> int:
        """Return the number of tries at a batch. The tries of a batch do not count for its single messages."""
        same = batch[0].id == self.id and (len(batch) > 1) == (self.messages > 1)
        return self.tries if same else 0


class KeptPlace(NamedTuple):
    """The place of a subscriber: the last handled message, and the tries at the next one."""

    after: MessageId | None
    tried: TryCount | None = None


class Taken(NamedTuple):
    """A cursor that was taken: its place, the topic's generation, and the number of suspects.

    These are the messages behind the place that may have ended the former holder's process.
    """

    place: KeptPlace
    generation: int
    suspects: int


TAKEOVER_S_MAX: Final = 1e9
"""A cursor with a longer time than any subscriber has was not written by one."""


class HolderData(NamedTuple):
    """The data of a cursor.

    A holder that does not write for ``takeover_s`` loses it; 0: there is no holder. ``messages`` is the largest number of
    messages that the holder handles between two writes of its place.
    """

    holder: str = ""
    takeover_s: float = 0.0
    messages: int = 0
    tried: TryCount | None = None

    def text(self) -> str:
        """Return the data as the cursor has it."""
        told: dict[str, Any] = {}
        if self.takeover_s:
            told = {
                "holder": self.holder,
                "takeover_s": self.takeover_s,
                "messages": self.messages,
            }
        if self.tried is not None:
            identifier, messages, tries = self.tried
            told["tried"] = {"id": identifier.hex(), "messages": messages, "tries": tries}
        return json.dumps(told) if told else ""


def read_data(text: str) -> HolderData:
    """Return the data of a cursor. Data that no subscriber has written counts as none."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return HolderData()
    if not isinstance(told, Mapping):
        return HolderData()
    holder, takeover_s, messages = told.get("holder"), told.get("takeover_s"), told.get("messages")
    tried = _tried(told.get("tried"))
    if not isinstance(takeover_s, int | float) or not 0 < takeover_s <= TAKEOVER_S_MAX:
        return HolderData(tried=tried)
    return HolderData(
        holder if isinstance(holder, str) else "",
        float(takeover_s),
        messages if isinstance(messages, int) and messages > 0 else 1,
        tried,
    )


def _tried(told: Any) -> TryCount | None:
    try:
        made = TryCount(bytes.fromhex(told["id"]), int(told["messages"]), int(told["tries"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return made if made.tries > 0 else None

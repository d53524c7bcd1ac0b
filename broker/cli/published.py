"""The output of ``broker publish``.

Standard output has only the ids, one on each line, so that another program can read them. With ``--lines`` it
has nothing, since a file may have millions of lines. Text for people goes to standard error. With ``--json``
standard output has one object with everything.
"""

from __future__ import annotations

from broker.cli.output import write_json, write_line
from broker.client import Published
from broker.client.acknowledgements import ids_of
from broker.model import MessageId, TopicId


class Tally:
    """The messages that the requests of one command published, in order."""

    def __init__(self, topic: TopicId) -> None:
        """Start an empty tally of a topic."""
        self._name = f"{topic.namespace}/{topic.topic}"
        self._first: MessageId | None = None
        self._last: MessageId | None = None
        self.messages = 0
        self.already = 0
        """The number of them that were published before, with the same idempotency key."""

    def add(self, published: Published, messages: int, *, is_keyed: bool) -> None:
        """Count an acknowledged request; ``is_keyed`` if the user gave an idempotency key."""
        if not self.messages:
            self._first = published.first_id
        self._last = published.last_id
        self.messages += messages
        if is_keyed and published.replayed:
            self.already += messages

    def write(self, *, as_json: bool, ids: bool) -> None:
        """Write the tally; with ``ids``, for a single request, also the id of each message."""
        listed = self._ids() if ids else None
        if as_json:
            self._write_json(listed)
            return
        for identifier in listed or ():
            write_line(identifier.hex())
        if listed is None or self.already:
            write_line(self._sentence(), err=True)

    def _ids(self) -> list[MessageId] | None:
        if self._first is None or self._last is None:
            return None
        return ids_of(self._first, self._last, self.messages)

    def _write_json(self, listed: list[MessageId] | None) -> None:
        value: dict[str, object] = {
            "topic": self._name,
            "published": self.messages,
            "already_published": self.already,
            "first_id": None if self._first is None else self._first.hex(),
            "last_id": None if self._last is None else self._last.hex(),
        }
        if listed is not None:
            value["ids"] = [identifier.hex() for identifier in listed]
        write_json(value)

    def _sentence(self) -> str:
        count = f"{self.messages:,} message" + ("" if self.messages == 1 else "s")
        text = f"published {count} to {self._name}"
        if self.already == self.messages > 0:
            text = f"already published with the same idempotency key: {count} to {self._name}"
        elif self.already:
            text += f", {self.already:,} of them already before, with the same idempotency key"
        if self._first is None or self._last is None:
            return text
        first, last = self._first.hex(), self._last.hex()
        return f"{text}: {first}" + ("" if first == last else f" … {last}")

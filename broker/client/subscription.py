"""How a subscriber works, what it did, and how far it has come; when its place is to be written (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from broker.client.values import Start, TopicName
from broker.model import Message, MessageId


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """How a subscriber works.

    Attributes:
        start: where a name begins that has no place yet: behind a message id, with a moment (a datetime with a time
            zone, or ms since 1970), with what is published from now on (``"now"``), or None for the oldest message.
        batch_messages_max: None: the handler gets one message at a time. A number: a list of at most so many.
        page_messages_max: how many messages one poll may bring; so many are in memory.
        place_interval_s: after so long the place is written, if it has changed.
        place_messages_max: after so many messages, too. 1 writes it after each message, or batch.
        tries_max: how often a message, or a batch, is handed over before it is given up.
        retry_delay_min_s, retry_delay_max_s: the pauses between tries: twice as long each time, with jitter.
        dead_letters: where messages go that were given up; None: the topic's name and ``-dead-letters``.
        create_dead_letters: whether a topic that ``dead_letters`` names is made if it is missing.
        takeover_s: how long the holder of a named cursor may be silent until another takes it.
        transactional: whether each page is polled as a transaction sees it that begins then, by a snapshot of the
            broker's transaction service: messages of an open transaction, and those behind them, wait for its end.
        wait_s: how long one poll may wait for new messages (0 to 60).
    """

    start: Start | Literal["now"] = None
    batch_messages_max: int | None = None
    page_messages_max: int = 100
    place_interval_s: float = 0.5
    place_messages_max: int = 100
    tries_max: int = 5
    retry_delay_min_s: float = 0.1
    retry_delay_max_s: float = 10.0
    dead_letters: TopicName | None = None
    create_dead_letters: bool = False
    takeover_s: float = 10.0
    transactional: bool = False
    wait_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError if a number can't be meant."""
        for name, least in (
            ("page_messages_max", 1),
            ("place_messages_max", 1),
            ("tries_max", 1),
            ("place_interval_s", 0),
            ("retry_delay_min_s", 0),
            ("retry_delay_max_s", 0),
            ("takeover_s", 0.01),
        ):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is at least {least}, not {getattr(self, name)!r}.")
        if self.batch_messages_max is not None and self.batch_messages_max < 1:
            raise ValueError("batch_messages_max is at least 1, or None for one message at a time.")


@dataclass(slots=True)
class SubscriberCounts:
    """What a subscriber did: messages handled, calls of the handler that failed, dead letters, places lost."""

    handled: int = 0
    failed: int = 0
    dead_letters: int = 0
    lost: int = 0


class SubscriberProgress:
    """How far a subscriber has come, and how far of that is written."""

    def __init__(self, after: MessageId | None, now_s: float) -> None:
        """Begin at a place that is written."""
        self.after = after
        self._messages = 0
        self._written_s = now_s

    @property
    def is_written(self) -> bool:
        """Return whether the place is written as it is."""
        return not self._messages

    def handled(self, messages: Sequence[Message]) -> None:
        """Note that messages were handled."""
        self.after = messages[-1].id
        self._messages += len(messages)

    def is_due(self, options: SubscriberOptions, now_s: float) -> bool:
        """Return whether the place must be written, so that no more than was promised comes again."""
        if not self._messages:
            return False
        return (
            self._messages >= options.place_messages_max
            or now_s - self._written_s >= options.place_interval_s
        )

    def written(self, now_s: float) -> None:
        """Note that the place is written."""
        self._messages, self._written_s = 0, now_s

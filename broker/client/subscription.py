"""A subscriber's options, counts and progress, and its decisions when to write its place and when to poll (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from broker.client import typed_options
from broker.client.tries import TAKEOVER_S_MAX, KeptPlace, Taken
from broker.client.values import Start, TopicName
from broker.model import Message
from broker.places import Place

WAIT_S_MAX: Final = 60
"""The broker refuses to wait longer."""
_MAY_BE_NONE: Final = ("tries_max", "batch_messages_max", "handler_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """The options of a subscriber.

    Attributes:
        start: where a subscriber with a new name begins: behind a message id, at a moment (a datetime with a time
            zone, or ms since 1970), with messages published from now on (``"now"``), or None for the oldest message.
        batch_messages_max: None: the handler gets one message at a time. A number: it gets a list of at most so many.
        page_messages_max: the maximum number of messages of one poll; so many are in memory.
        place_interval_s: the place is written after so many seconds, if it has changed.
        place_messages_max: the place is also written after so many messages; 1: after each message or batch.
        tries_max: how often the handler is called with a message, or a batch, before the subscriber gives it up. None:
            it is called until it is done, or raises ``Reject``. The broker keeps the count, also when the process ends.
        retry_delay_min_s, retry_delay_max_s: the bounds of the pauses between tries, which double, with jitter.
        handler_timeout_s: how long one call of the handler may take; longer is a failed try. None: without a limit. An
            asynchronous handler is cancelled then. A handler that goes on in spite of that, such as a function that is
            not asynchronous, loses the place to a standby.
        dead_letters: the topic for messages that were given up; None: the topic's name and ``-dead-letters``.
        create_dead_letters: whether to create the topic that ``dead_letters`` names if it is missing.
        takeover_s: how long the holder of a named cursor may be silent before another subscriber takes it.
        transactional: whether to poll each page with a new snapshot of the broker's transaction service. Then
            messages of an open transaction, and those behind them, wait for its end.
        wait_s: how long one poll may wait for new messages (0 to 60).
    """

    start: Start | Literal["now"] = None
    batch_messages_max: int | None = None
    page_messages_max: int = 100
    place_interval_s: float = 0.5
    place_messages_max: int = 100
    tries_max: int | None = None
    retry_delay_min_s: float = 0.1
    retry_delay_max_s: float = 10.0
    handler_timeout_s: float | None = None
    dead_letters: TopicName | None = None
    create_dead_letters: bool = False
    takeover_s: float = 10.0
    transactional: bool = False
    wait_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise TypeError for a value of another type, ValueError for a number that is out of range."""
        typed_options.check_types(self)
        for name, least, most in (
            ("page_messages_max", 1, math.inf),
            ("place_messages_max", 1, math.inf),
            ("tries_max", 1, math.inf),
            ("batch_messages_max", 1, math.inf),
            ("handler_timeout_s", 0.001, math.inf),
            ("place_interval_s", 0, math.inf),
            ("retry_delay_min_s", 0, math.inf),
            ("retry_delay_max_s", 0, math.inf),
            ("takeover_s", 0.01, TAKEOVER_S_MAX),
            ("wait_s", 0, WAIT_S_MAX),
        ):
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            if not least <= value <= most or value == math.inf:
                bounds = f"at least {least}" if most == math.inf else f"{least} to {most:g}"
                raise ValueError(f"{name} is {bounds}, not {value!r}.")


@dataclass(slots=True)
class SubscriberCounts:
    """Counts of handled messages, failed calls of the handler, dead letters, and losses of the place."""

    handled: int = 0
    failed: int = 0
    dead_letters: int = 0
    lost: int = 0


class SubscriberProgress:
    """How far a subscriber has come, and how much of that is written.

    ``tried`` counts the tries at the next message. ``suspects`` is the number of next messages that may have ended the
    process of the former holder.
    """

    def __init__(self, taken: Taken, now_s: float) -> None:
        """Begin at a place that is written already."""
        self.after, tried = taken.place
        self.tried = self.tried_written = tried
        self.suspects = taken.suspects
        self.generation = taken.generation
        self._messages = 0
        self._written_s = now_s

    @property
    def place(self) -> KeptPlace:
        """The place to write."""
        return KeptPlace(self.after, self.tried)

    @property
    def read_from(self) -> Place | None:
        """The place to read behind; None: the beginning."""
        return None if self.after is None else Place(self.after, self.generation)

    @property
    def is_written(self) -> bool:
        """True if the present place is written."""
        return not self._messages

    def handled(self, messages: Sequence[Message]) -> None:
        """Record that messages were handled."""
        self.after, self.tried = messages[-1].id, None
        self.suspects -= len(messages)
        self._messages += len(messages)

    def is_due(self, options: SubscriberOptions, now_s: float) -> bool:
        """Return whether the place must be written now, to bound the messages that a crash repeats."""
        if not self._messages:
            return False
        return (
            self._messages >= options.place_messages_max
            or now_s - self._written_s >= options.place_interval_s
        )

    def written(self, now_s: float) -> None:
        """Record that the place is written."""
        self._messages, self._written_s, self.tried_written = 0, now_s, self.tried


EMPTY_PAUSE_S_MIN: Final = 0.005
EMPTY_PAUSE_S_MAX: Final = 0.5
EMPTY_PAUSE_SHARE: Final = 0.125
"""The pause after a poll that returned no message at once, as a share of the time since the first such poll."""


class EmptyPolls:
    """Computes the pause between polls that return no message without waiting.

    An open transaction holds the messages back, or the broker does not wait. The pause grows with the time for which
    that has lasted. So a message is late by a small share of its transaction's time, and a transaction that stays open
    costs little.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None

    def pause_s(self, now_s: float, *, waited: bool) -> float:
        """Return the pause after an empty poll; 0 if the broker ``waited``, since new messages may have arrived."""
        if waited:
            self._since_s = None
            return 0.0
        if self._since_s is None:
            self._since_s = now_s
        pause_s = EMPTY_PAUSE_SHARE * (now_s - self._since_s)
        return min(max(pause_s, EMPTY_PAUSE_S_MIN), EMPTY_PAUSE_S_MAX)

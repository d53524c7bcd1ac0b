"""Log once that ids are ahead of the clock, or that a reader passes lost messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from broker import logs
from broker.model import LogKey, TopicId
from broker.storage.entry import Entry
from broker.storage.gaps import LOST_MS
from broker.storage.keys import LogId
from broker.topics.reserved import TRANSACTIONS

log = logs.get_logger()

KNOWN_MAX: Final = 10_000
"""The most gaps that this node remembers to have told. A forgotten one is told again."""
AHEAD_MS: Final = 60_000
"""From which lead on ids are told to be ahead. Ids of a busy topic run ahead by a second at most."""

_OF_MESSAGES: Final = (
    "new messages get a time in the future: the topic's last id is ahead of this clock",
    "New messages have a time in the future",
)
_OF_JOURNAL: Final = (
    "new transactions get a number of the future: the last one is ahead of this clock",
    "New transactions have a number of the future",
)
"""The event and the section of the guide. The clock that gives a journal's ids gives the transactions their numbers."""


class GapsPassed:
    """Counts how often a reader passed messages that a repair of the store did not find; logs each gap once."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._told: OrderedDict[tuple[TopicId, LogKey], None] = OrderedDict()

    def note(self, topic: TopicId, entry: Entry) -> None:
        """Note that a reader passes this entry, if it stands for lost messages (storage/gaps.py)."""
        if not entry.is_stub or entry.lifetime_ms != LOST_MS:
            return
        self.count += 1
        if (topic, entry.last) in self._told:
            return
        self._told[topic, entry.last] = None
        if len(self._told) > KNOWN_MAX:
            self._told.popitem(last=False)
        log.warning(
            "a reader passes messages that are lost: a repair of the store did not find them",
            topic=str(topic),
            first=entry.first.hex(),
            last=entry.last.hex(),
            advice="docs/guides/troubleshooting.md, 'A reader passes messages that are lost'",
        )


class IdsAhead:
    """The logs that this node writes, and whose ids are ahead of its clock.

    Ids rise strictly. So after a message whose id is ahead, because a clock was once wrong, every later one is ahead
    too, until the clock has caught up. No call sets this back. Only a topic with another name begins with the clock's
    time.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._logs: set[LogId] = set()

    def __len__(self) -> int:
        """Return how many logs there are."""
        return len(self._logs)

    def note(self, written: LogId, ahead_ms: int) -> None:
        """Note the lead of a log's ids at a batch. The first batch ahead is logged."""
        if ahead_ms < AHEAD_MS:
            self._logs.discard(written)
        elif written not in self._logs:
            self._logs.add(written)
            event, section = _OF_JOURNAL if written.topic == TRANSACTIONS else _OF_MESSAGES
            log.warning(
                event,
                topic=str(written.topic),
                ahead_s=ahead_ms // 1000,
                advice=f"docs/guides/troubleshooting.md, '{section}'",
            )

    def forget(self, written: LogId) -> None:
        """Forget a log that this node writes no more."""
        self._logs.discard(written)

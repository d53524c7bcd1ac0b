"""Tell that a reader passes messages that a repair of the store did not find again (storage/gaps.py)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from broker import logs
from broker.model import RowId, TopicId
from broker.storage.entry import Entry
from broker.storage.gaps import LOST_MS

log = logs.get_logger()

KNOWN_MAX: Final = 10_000
"""The most gaps that this node remembers to have told. A forgotten one is told again."""


class GapsPassed:
    """Counts how often a reader passed a gap, and logs each gap once."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._told: OrderedDict[tuple[TopicId, RowId], None] = OrderedDict()

    def note(self, topic: TopicId, entry: Entry) -> None:
        """Note that a reader passes this entry, if it stands for lost messages."""
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

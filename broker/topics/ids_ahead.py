"""Tell that a topic's ids are ahead of the clock: messages get a time in the future, and expire too late.

Ids rise strictly. So after a message whose id is ahead, because a clock was once wrong, every later one is ahead too,
until the clock has caught up. No call sets this back. Only a topic with another name begins with the clock's time.
"""

from __future__ import annotations

from typing import Final

from broker import logs
from broker.storage.keys import LogId

log = logs.get_logger()

TOLD_MS: Final = 60_000
"""From which lead on ids are told to be ahead. Ids of a busy topic run ahead by a second at most."""


class IdsAhead:
    """The logs that this node writes, and whose ids are ahead of its clock."""

    def __init__(self) -> None:
        """Begin with none."""
        self._logs: set[LogId] = set()

    def __len__(self) -> int:
        """Return how many logs there are."""
        return len(self._logs)

    def note(self, written: LogId, ahead_ms: int) -> None:
        """Note the lead of a log's ids at a batch. The first batch ahead is logged."""
        if ahead_ms < TOLD_MS:
            self._logs.discard(written)
        elif written not in self._logs:
            self._logs.add(written)
            log.warning(
                "new messages get a time in the future: the topic's last id is ahead of this clock",
                topic=str(written.topic),
                ahead_s=ahead_ms // 1000,
                advice="docs/guides/troubleshooting.md, 'New messages have a time in the future'",
            )

    def forget(self, written: LogId) -> None:
        """Forget a log that this node writes no more."""
        self._logs.discard(written)

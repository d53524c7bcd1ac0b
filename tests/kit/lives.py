"""What readers are shown of messages with a short life: none that has expired, each that has not.

A simulation knows the clock that its node goes by. Whoever polls tells when it asked and when it was
answered; what had expired by both must not be there. What was there before, and still lives by both,
must be: unless it stands at the end, since a reader may be behind and be shown less of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.model import MessageId, timestamp_of
from chaos.checkers import Violation


class Lives:
    """The messages of one topic, as polls from its beginning show them."""

    def __init__(self, ttl_ms: int) -> None:
        """Begin with none."""
        self._ttl_ms = ttl_ms
        self._seen: set[MessageId] = set()

    def expired(self, shown: Sequence[MessageId], now_ms: int) -> list[Violation]:
        """Find messages in a poll's answer that had expired at ``now_ms``."""
        return [
            self._violation("expired_late", identifier, now_ms)
            for identifier in shown
            if now_ms - timestamp_of(identifier) > self._ttl_ms
        ]

    def removed(self, shown: Sequence[MessageId], now_ms: int) -> list[Violation]:
        """Find messages that an earlier answer had, this one has not, and that live at ``now_ms``."""
        newest = max(shown, default=b"")
        return [
            self._violation("expired_early", identifier, now_ms)
            for identifier in sorted(self._seen.difference(shown))
            if identifier < newest and now_ms - timestamp_of(identifier) <= self._ttl_ms
        ]

    def note(self, shown: Sequence[MessageId]) -> None:
        """Remember what was there."""
        self._seen.update(shown)

    @staticmethod
    def _violation(name: str, identifier: MessageId, now_ms: int) -> Violation:
        age_ms = now_ms - timestamp_of(identifier)
        return Violation(name, f"{identifier.hex()} at an age of {age_ms} ms")

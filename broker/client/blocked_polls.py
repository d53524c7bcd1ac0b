"""Tell when polls wait for an open transaction: once it has lasted, and then from time to time."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.escapes import escaping_logger
from broker.model import POINTERS_PER_MS, TopicId
from broker.moments import rfc3339_or_none
from broker.operations.parameters import BLOCKED_BY_HEADER

BLOCKED_BY: Final = BLOCKED_BY_HEADER.lower()
TOLD_AFTER_S: Final = 1.0
"""Shorter waits are usual: most transactions are open for some milliseconds."""
TOLD_AGAIN_S: Final = 30.0
TOPICS_MAX: Final = 1_000

log: Final = escaping_logger(__name__)


class BlockedWait(NamedTuple):
    """A topic's polls wait for a write pointer since a time of the loop. ``told_s``: the next time to tell it."""

    pointer: str
    since_s: float
    told_s: float


class BlockedPolls:
    """The waits of one client, by topic."""

    def __init__(self) -> None:
        self._waits: dict[TopicId, BlockedWait] = {}

    def note(self, topic: TopicId, pointer: str | None, now_s: float) -> None:
        """Note the answer of a poll: ``pointer`` holds it back, or None does."""
        if pointer is None:
            self._waits.pop(topic, None)
            return
        known = self._waits.get(topic)
        if known is None or known.pointer != pointer:
            if len(self._waits) >= TOPICS_MAX:
                del self._waits[next(iter(self._waits))]
            known = BlockedWait(pointer, now_s, now_s + TOLD_AFTER_S)
        elif now_s >= known.told_s:
            log.warning(
                "polls of %s/%s wait for transaction %s, which began at %s: since %.0f s. See: broker tx blockers %s/%s",
                *topic,
                pointer,
                _began_at(pointer),
                now_s - known.since_s,
                *topic,
            )
            known = known._replace(told_s=now_s + TOLD_AGAIN_S)
        self._waits[topic] = known


def _began_at(pointer: str) -> str:
    """Return the moment in a write pointer, in RFC 3339; unknown if it has none."""
    began_ms = int(pointer) // POINTERS_PER_MS if pointer.isdecimal() and len(pointer) < 20 else 0
    return (began_ms and rfc3339_or_none(began_ms)) or "an unknown moment"

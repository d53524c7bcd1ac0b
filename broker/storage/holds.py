"""What a leader holds in a table store: a chain of changes, and the order of its rows.

Rows of the next batch are sent only when those of the one before are confirmed (its compare-and-set may
still be under way). So whatever state of the table a reader meets, it holds whole batches up to some id
and nothing beyond but the beginning of one: a scan that met a row has missed nothing below it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from broker.errors import Fenced
from broker.storage.chain import Chain, Tokens
from broker.storage.control import Control, adopted
from broker.storage.keys import LogId
from broker.storage.lives import Lives

PAYLOAD_HOLDS_MAX = 4096
"""Payload holds that are remembered; an idle one is opened again with one read."""


class TableHold:
    """A Hold. A payload log's stands and falls with its topic's."""

    def __init__(
        self, log: LogId, chain: Chain, tokens: Tokens, topic_hold: TableHold | None = None
    ) -> None:
        """Hold ``log`` through ``chain``, whose confirmed value is known."""
        self.log = log
        self.chain = chain
        self.tokens = tokens
        self.topic_hold = topic_hold
        self.rows_lock = asyncio.Lock()
        """Held while rows are sent, so that batches are confirmed in order."""
        self.lives = Lives()
        """What sweeping knows of rows that live shorter than the topic."""
        self.released = False
        self.before_server_ms: int | None = None
        self.claimed_server_ms: int | None = None
        self.sides_swept_to: bytes = b""
        """Up to which key the present round of sweeping has looked at side rows."""
        self._payloads: OrderedDict[int, TableHold] = OrderedDict()

    @property
    def control(self) -> Control:
        """The control row as last confirmed; a payload log's as its first write would claim it."""
        return self.adopted(self.chain.confirmed)

    def adopted(self, current: Control | None) -> Control:
        """Return ``current`` under this hold's epoch: a payload log is claimed by its first write."""
        if self.topic_hold is None:
            assert current is not None, "a message log that is held has a control row"
            return current
        topic = self.topic_hold.control
        return adopted(
            current, epoch=topic.epoch, owner=topic.owner, generation=self.log.generation
        )

    @property
    def epoch(self) -> int:
        """The epoch of this hold."""
        return self.control.epoch

    @property
    def done(self) -> bool:
        """Whether every further change is refused."""
        over = self.chain.ended or self.released
        return over or (self.topic_hold is not None and self.topic_hold.done)

    def end(self) -> None:
        """Give up: the topic must be claimed again before the next write."""
        self.chain.end()
        if self.topic_hold is not None:
            self.topic_hold.end()

    def check(self) -> None:
        """Raise Fenced if the hold is done."""
        if self.done:
            raise Fenced(f"The hold of epoch {self.epoch} on {self.log.topic} is over.")

    def payloads(self, number: int) -> TableHold | None:
        """Return the remembered hold on a payload log."""
        found = self._payloads.get(number)
        if found is not None:
            self._payloads.move_to_end(number)
        return found

    def remember(self, hold: TableHold) -> TableHold:
        """Remember the hold on a payload log; one that came first stays."""
        assert hold.log.number is not None
        kept = self._payloads.setdefault(hold.log.number, hold)
        while len(self._payloads) > PAYLOAD_HOLDS_MAX and self._forget_oldest():
            pass
        return kept

    def _forget_oldest(self) -> bool:
        number, oldest = next(iter(self._payloads.items()))
        if oldest.is_busy:
            return False
        del self._payloads[number]
        return True

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return self.rows_lock.locked() or self.chain.is_busy

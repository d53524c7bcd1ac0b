"""Comparing this node's clock with the storage's, before anything goes by it.

A clock that is ahead leaves out messages that live, and a consumer that went on behind them never comes back
for them. So a clock is compared at each claim and each sweep; and before a page is read, unless it was compared
before and has gone on since as the boot clock does. A node that leads nothing claims nothing: it writes a record
of its own instead, and looks at when that was by the storage's clock::

    clock/007    record: which incarnation compared last; only the time of its cell counts
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.clock import JUMP_MS_MIN
from broker.errors import ClockSkew, OutcomeUnknown, Unavailable
from broker.leading.claims import ahead_ms
from broker.storage.records import RecordStore
from broker.topics.surroundings import Surroundings

PREFIX: Final = b"clock/"
COMPARED_S: Final = 60.0
"""How long a comparison does for a reading of what another node leads: clocks drift."""


class ClockComparison:
    """Compares the clock of one node."""

    def __init__(self, around: Surroundings, records: RecordStore) -> None:
        """Begin without a comparison."""
        self.skew_ms: int | None = None
        """How far this clock was ahead of the storage's when they were compared last."""
        self._around = around
        self._clock = around.clock
        self._records = records
        self._key = PREFIX + b"%03d" % (around.instance or 0)
        self._compared_s: float | None = None
        self._offset_ms: float | None = None
        self._comparing = asyncio.Lock()

    def judge(self, skew_ms: int) -> None:
        """Note how far this clock is ahead of the storage's; too far, and the node leads nothing more.

        Raises:
            ClockSkew: it is too far off.
        """
        self.skew_ms = skew_ms
        if abs(skew_ms) <= self._around.settings.clock_skew_ms_max:
            self._note()
            return
        self._around.skewed(skew_ms)
        raise ClockSkew(
            f"This node's clock is {abs(skew_ms)} ms {'ahead' if skew_ms > 0 else 'behind'} "
            "of the storage's: it leads nothing until that is mended."
        )

    def claimed(self) -> None:
        """Note a claim that gave no time to compare with: only a jump after it is looked into."""
        if self._offset_ms is None:
            self._offset_ms = self._offset_now_ms()

    async def compare(self, *, is_led_here: bool) -> None:
        """Return once a page may be read by this clock.

        Raises:
            ClockSkew: it is too far off.
            Unavailable: it can't be compared now.
        """
        if not self._around.is_clustered or self._is_compared(is_led_here):
            return
        async with self._comparing:
            if not self._is_compared(is_led_here):
                await self._compare()

    def _is_compared(self, is_led_here: bool) -> bool:
        """Whether the clock has gone on as the boot clock since it was compared."""
        if self._offset_ms is None or abs(self._offset_now_ms() - self._offset_ms) >= JUMP_MS_MIN:
            return False
        if is_led_here:
            return True
        compared_s = self._compared_s
        return compared_s is not None and self._clock.monotonic() - compared_s < COMPARED_S

    def _note(self) -> None:
        self._compared_s, self._offset_ms = self._clock.monotonic(), self._offset_now_ms()

    def _offset_now_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000

    async def _compare(self) -> None:
        before = await self._records.get(self._key)
        sent_ms = self._clock.now_ms()
        try:
            version = await self._records.put_if(
                self._key, None if before is None else before.version, self._around.owner.encode()
            )
        except OutcomeUnknown as error:
            raise Unavailable(
                f"This node's clock can't be compared with the storage's: {error.message}"
            ) from error
        answered_ms = self._clock.now_ms()
        after = await self._records.get(self._key)
        if version is None or after is None or after.version != version:
            raise Unavailable("Another node has this instance id, or storage answers from before.")
        before_ms = None if before is None else before.server_ms
        if after.server_ms is None or (before_ms is not None and after.server_ms <= before_ms):
            # No clock tells: HBase never lets a cell's time fall.
            self._note()
        else:
            self.judge(ahead_ms(after.server_ms, sent_ms, answered_ms))

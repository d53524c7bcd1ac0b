"""Compare this node's clock with the storage's, before the node relies on its clock.

A clock that is ahead makes live messages look expired. A consumer that read on behind them never comes back
for them. So a node compares its clock at each claim and each sweep. It also compares it before each read, unless it
has compared it before and the clock has kept pace with the boot clock since. A node that leads nothing makes no
claim. Instead it writes a record of its own, and reads the time that the storage's clock gave to that write::

    clock/007    record: which incarnation compared last; only the time of its cell counts

One write is one *witness*. The wrong clock may be that of the one server that made the write. So this node asks a
second witness before it takes its own clock for wrong. These are the other nodes. If no node answers, a claim asks
another region, the one that stores the record; a read takes a jump of this clock since the last comparison as its
second witness::

    first witness    second witness    write to a topic's log              write of the record, before a read
    off              off               the node leads nothing more (Surroundings.skewed)
    off              right             only that topic is refused          reads: the nodes agree
    off              none              only that topic is refused          refused

A comparison tells little if the write took long, and nothing if the clock jumped meanwhile. Then it is repeated.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.clock import JUMP_MS_MIN
from broker.coordination.claims import SendTime, Written, read_clock
from broker.errors import ClockSkew, OutcomeUnknown, Unavailable
from broker.shield import begin, result_of
from broker.storage.records import RecordStore
from broker.topics.surroundings import Surroundings

PREFIX: Final = b"clock/"
COMPARED_S: Final = 60.0
"""For this long a comparison allows reads of topics that other nodes lead: clocks drift."""
UNTIL_CORRECTED: Final = "until the clock is corrected"
SHARP_MS: Final = 1000
"""The longest time that the write of a comparison may take."""


class ClockComparison:
    """Compares the clock of one node."""

    def __init__(self, around: Surroundings, records: RecordStore) -> None:
        """Begin without a comparison."""
        self.skew_ms: int | None = None
        """The least distance by which this clock was ahead of the storage's at the last comparison."""
        self.is_wrong = False
        """True if two witnesses found this clock off, and no later comparison found it right."""
        self._around = around
        self._clock = around.clock
        self._records = records
        self._key = PREFIX + b"%03d" % (around.instance or 0)
        self._compared_s = 0.0
        self._offset_ms: float | None = None
        self._comparing: asyncio.Task[None] | None = None

    async def judge(self, written: Written) -> bool:
        """Judge this clock by a write of this node to a topic's log. If the clock is off, refuse the topic.

        If a second witness also finds the clock off, the node leads nothing more. Return whether the write
        was fast enough to prove something.

        Raises:
            ClockSkew: the clock is too far off.
        """
        self.skew_ms = written.ahead_ms
        if self._is_off(written):
            confirmed = await self._ask_nodes(written)
            if await self._ask_record_region(written) if confirmed is None else confirmed:
                self._report_wrong(written)
                raise _refusal(
                    written.ahead_ms, f"leads nothing {UNTIL_CORRECTED} and it is started again"
                )
            raise _refusal(written.ahead_ms, f"does not lead this topic {UNTIL_CORRECTED}")
        return self._note_if_sharp(written)

    def _report_wrong(self, written: Written) -> None:
        self.is_wrong = True
        self._around.skewed(written.ahead_ms)

    def _note_if_sharp(self, written: Written) -> bool:
        self.is_wrong = False
        is_sharp = written.answered_ms - written.sent.now_ms <= SHARP_MS
        if not is_sharp or self._has_jumped(written.sent.offset_ms):
            return False
        self._note(written.sent)
        return True

    def _is_off(self, written: Written) -> bool:
        return abs(written.ahead_ms) > self._around.settings.clock_skew_ms_max

    def _is_off_as(self, written: Written, first: Written) -> bool:
        return self._is_off(written) and (written.ahead_ms > 0) == (first.ahead_ms > 0)

    async def _ask_nodes(self, first: Written) -> bool | None:
        """Return whether at least half of the other nodes also find this clock off; None if no node answers."""
        others = await self._around.other_clocks()
        off = sum(self._is_off_as(each, first) for each in others)
        return 2 * off >= len(others) if others else None

    async def _ask_record_region(self, first: Written) -> bool:
        """Return whether the region that stores the record also finds this clock off."""
        try:
            written = await self._write()
        except (Unavailable, OutcomeUnknown):
            return False  # The region proves nothing.
        return written is not None and self._is_off_as(written, first)

    def _note(self, sent: SendTime) -> None:
        self._compared_s, self._offset_ms = self._clock.monotonic(), sent.offset_ms

    def _has_jumped(self, offset_ms: float) -> bool:
        return abs(read_clock(self._clock).offset_ms - offset_ms) >= JUMP_MS_MIN

    async def compare(self, *, is_led_here: bool) -> None:
        """Return once reads may rely on this clock.

        Raises:
            ClockSkew: the clock is too far off.
            Unavailable: the clock can't be compared now.
        """
        if self._around.is_alone or self._is_compared(is_led_here=is_led_here):
            return
        if self._comparing is None:
            self._comparing = begin(self._compare(), self._comparison_ended)
        await result_of(self._comparing)

    def _comparison_ended(self) -> None:
        self._comparing = None

    def _is_compared(self, *, is_led_here: bool) -> bool:
        """Return whether the clock has kept pace with the boot clock since a comparison that still counts."""
        if self._offset_ms is None or self._has_jumped(self._offset_ms):
            return False
        return is_led_here or self._clock.monotonic() - self._compared_s < COMPARED_S

    async def _compare(self) -> None:
        sent = read_clock(self._clock)
        written = await self._write()
        if written is None:
            self._note(sent)  # The table has no clock.
        else:
            await self._judge_reading(written)

    async def _write(self) -> Written | None:
        """Write this node's record; return the time of the write by the storage's clock, None if it has no clock.

        Raises:
            Unavailable: the time of the write is unknown.
        """
        before = await self._records.get(self._key)
        sent = read_clock(self._clock)
        try:
            version = await self._records.put_if(
                self._key, None if before is None else before.version, self._around.owner.encode()
            )
        except OutcomeUnknown as error:
            raise _no_comparison(error.message) from error
        answered_ms = self._clock.now_ms()
        after = await self._records.get(self._key)
        if version is None or after is None or after.version != version:
            raise _no_comparison("another incarnation wrote its record, or the read is stale.")
        if after.server_ms is None:
            return None
        before_ms = None if before is None else before.server_ms
        if before_ms is not None and after.server_ms <= before_ms:
            raise _no_comparison("the time of a cell only rises, and this one did not.")
        return Written(sent, after.server_ms, answered_ms)

    async def _judge_reading(self, written: Written) -> None:
        """Refuse to read by a clock that is off."""
        self.skew_ms = written.ahead_ms
        if self._is_off(written):
            jumped = self._offset_ms is not None and self._has_jumped(self._offset_ms)
            confirmed = await self._ask_nodes(written)
            if jumped if confirmed is None else confirmed:
                self._report_wrong(written)
            if confirmed is not False:
                raise _refusal(written.ahead_ms, f"reads nothing {UNTIL_CORRECTED}")
        if not self._note_if_sharp(written):
            raise _no_comparison("the write took too long, or the clock jumped.")


def _refusal(skew_ms: int, does: str) -> ClockSkew:
    return ClockSkew(
        f"This node's clock is {abs(skew_ms)} ms {'ahead' if skew_ms > 0 else 'behind'} "
        f"of the storage's: the node {does}."
    )


def _no_comparison(why: str) -> Unavailable:
    return Unavailable(f"This node's clock can't be compared with the storage's just now: {why}")

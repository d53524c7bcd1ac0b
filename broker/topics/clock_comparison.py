"""Comparing this node's clock with the storage's, before anything goes by it.

A clock that is ahead leaves out messages that live, and a consumer that went on behind them never comes back
for them. So a clock is compared at each claim and each sweep; and before anything is read, unless it was compared
before and has gone on since as the boot clock does. A node that leads nothing claims nothing: it writes a record
of its own instead, and looks at when that was by the storage's clock::

    clock/007    record: which incarnation compared last; only the time of its cell counts

One write is one *witness*, and the clock that is wrong may be that of the one server that made it. So a second one
is asked before this node takes its own clock for wrong: the other nodes; where none of them answers, another region;
for readings then that the clock has jumped since it was compared last::

    first witness    second witness    a topic's log                       the record, before a reading
    off              off               the node leads nothing more (Surroundings.skewed)
    off              right             that topic alone is refused         reads: the nodes agree
    off              none              that topic alone is refused         refused

A comparison tells little if the write took long, and nothing if the clock jumped meanwhile: then it is made again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.clock import JUMP_MS_MIN
from broker.coordination.claims import SendTime, Written, read_clock
from broker.errors import ClockSkew, OutcomeUnknown, Unavailable
from broker.storage.records import RecordStore
from broker.topics.surroundings import Surroundings

PREFIX: Final = b"clock/"
COMPARED_S: Final = 60.0
"""How long a comparison does for a reading of what another node leads: clocks drift."""
SHARP_MS: Final = 1000
"""How long the write of a comparison may take."""


class ClockComparison:
    """Compares the clock of one node."""

    def __init__(self, around: Surroundings, records: RecordStore) -> None:
        """Begin without a comparison."""
        self.skew_ms: int | None = None
        """How far this clock was ahead of the storage's, at least, when they were compared last."""
        self.is_wrong = False
        """Whether two witnesses said that this clock is off, and none has said otherwise since."""
        self._around = around
        self._clock = around.clock
        self._records = records
        self._key = PREFIX + b"%03d" % (around.instance or 0)
        self._compared_s = 0.0
        self._offset_ms: float | None = None
        self._comparing: asyncio.Task[None] | None = None

    async def judge(self, written: Written) -> bool:
        """Note a write of this node to a topic's log; by a clock that is off the topic is not led.

        If a second witness says so, too, the node leads nothing more. Returns whether the write was sharp
        enough to tell.

        Raises:
            ClockSkew: the clock is too far off.
        """
        self.skew_ms = written.ahead_ms
        if self._is_off(written):
            told = await self._told_by_nodes(written)
            if await self._told_by_record(written) if told is None else told:
                self._found_wrong(written)
                raise _refusal(written.ahead_ms, "leads nothing")
            raise _refusal(written.ahead_ms, "does not lead this topic")
        return self._noted(written)

    def _found_wrong(self, written: Written) -> None:
        self.is_wrong = True
        self._around.skewed(written.ahead_ms)

    def _noted(self, written: Written) -> bool:
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

    async def _told_by_nodes(self, first: Written) -> bool | None:
        """Return whether other nodes say, too, that this clock is off: half of them at least; None: none answers."""
        others = await self._around.other_clocks()
        off = sum(self._is_off_as(each, first) for each in others)
        return 2 * off >= len(others) if others else None

    async def _told_by_record(self, first: Written) -> bool:
        """Return whether the region of the records says, too, that this clock is off."""
        try:
            written = await self._write()
        except (Unavailable, OutcomeUnknown):
            return False  # It says nothing.
        return written is not None and self._is_off_as(written, first)

    def _note(self, sent: SendTime) -> None:
        self._compared_s, self._offset_ms = self._clock.monotonic(), sent.offset_ms

    def _has_jumped(self, offset_ms: float) -> bool:
        return abs(read_clock(self._clock).offset_ms - offset_ms) >= JUMP_MS_MIN

    async def compare(self, *, is_led_here: bool) -> None:
        """Return once this clock may be read by.

        Raises:
            ClockSkew: it is too far off.
            Unavailable: it can't be compared now.
        """
        if not self._around.is_clustered or self._is_compared(is_led_here=is_led_here):
            return
        if self._comparing is None:
            self._comparing = asyncio.ensure_future(self._compare())
            self._comparing.add_done_callback(self._compared)
        await asyncio.shield(self._comparing)

    def _compared(self, done: asyncio.Task[None]) -> None:
        self._comparing = None
        if not done.cancelled():
            done.exception()  # Looked at here, since its callers may all be gone.

    def _is_compared(self, *, is_led_here: bool) -> bool:
        """Whether the clock has gone on as the boot clock since it was compared."""
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
        """Write this node's record; return when, by the storage's clock, None if it has none.

        Raises:
            Unavailable: that is not known.
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
            raise _no_comparison("its record is another's, or from before.")
        if after.server_ms is None:
            return None
        before_ms = None if before is None else before.server_ms
        if before_ms is not None and after.server_ms <= before_ms:
            raise _no_comparison("the time of a cell never falls, and did not rise.")
        return Written(sent, after.server_ms, answered_ms)

    async def _judge_reading(self, written: Written) -> None:
        """Refuse to read by a clock that is off."""
        self.skew_ms = written.ahead_ms
        if self._is_off(written):
            jumped = self._offset_ms is not None and self._has_jumped(self._offset_ms)
            told = await self._told_by_nodes(written)
            if jumped if told is None else told:
                self._found_wrong(written)
            if told is not False:
                raise _refusal(written.ahead_ms, "reads nothing")
        if not self._noted(written):
            raise _no_comparison("that took too long.")


def _refusal(skew_ms: int, does: str) -> ClockSkew:
    return ClockSkew(
        f"This node's clock is {abs(skew_ms)} ms {'ahead' if skew_ms > 0 else 'behind'} "
        f"of the storage's: it {does} until that is mended."
    )


def _no_comparison(why: str) -> Unavailable:
    return Unavailable(f"This node's clock can't be compared with the storage's just now: {why}")

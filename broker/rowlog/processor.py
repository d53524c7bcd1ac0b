"""The processor of one subscription: it scans the index, reads rows, and offers their first open messages.

::

    index ──scan──▶ work (rows) ──▶ workers ──▶ row: read ─▶ choose ─▶ attempt ─▶ again, until nothing is open
      ▲ wake-up, poll                                             │ must wait: the row waits, others go on
      └──────────────────────────── entry removed ◀── done ───────┘

A scan begins at the time of the scan before, less a margin for clock skew and late puts. After a wake-up the margin is
short; at each poll it is the whole one. Earlier scans have seen all older entries: each is settled or in ``work``. The
first scan, and one now and then, covers the whole index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from broker import logs
from broker.errors import BrokerError, Fenced, StorageCorrupt
from broker.rowlog.attempt import Attempts, Tools
from broker.rowlog.cell_keys import Entry, MessageId
from broker.rowlog.election import Leading
from broker.rowlog.entries import Entries
from broker.rowlog.execution_state import (
    Busy,
    Gone,
    NextStep,
    Standing,
    State,
    choose,
    unknown,
    without,
)
from broker.rowlog.first_seen import steady_ms, wall_ms
from broker.rowlog.listeners import Offers
from broker.rowlog.row_table import TableError
from broker.rowlog.rows import Found
from broker.rowlog.setup import Setup, Subscription
from broker.rowlog.wakeups import FULL, Wakeups
from broker.rowlog.worklist import Work

log = logs.get_logger()

NEAR_MS: Final = 2_000
"""The margin of a scan after a wake-up."""
BUSY_MS: Final = 500
"""After how long a row is read again whose message another has claimed, if no wake-up comes."""
CORRUPT_MS: Final = 60_000
"""After how long a row is read again that is corrupt, or that met a bug."""
PAUSE_S: Final = 0.2
MESSAGES_MAX: Final = 1_000
"""How many messages of one row a worker processes before it takes another row."""


@dataclass
class Means:
    """The parts of a rowlog that processors use."""

    tools: Tools
    entries: Entries
    offers: Offers
    wakeups: Wakeups
    settled: Callable[[str, bytes], None]
    """Called with a subscription and a row when a message of it is settled: later subscriptions may wait for that."""


class _Again(NamedTuple):
    """When to read a row again: ``due``, ms since 1970; 0: only after a new entry."""

    due: int
    until_offered: bool = False
    """True if a scan that finds an entry again ends the wait: its put may have been in flight, and be done now."""


class Processor:
    """Processes one subscription under one epoch."""

    def __init__(self, means: Means, subscription: Subscription, leading: Leading) -> None:
        """Process nothing yet."""
        self._means = means
        self._tools = means.tools
        self._name = subscription.id
        self._subscription = subscription
        self._leading = leading
        self._attempts = Attempts(means.tools)
        self.work = Work()
        self._woken = asyncio.Event()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._done: set[Entry] = set()
        """Entries of messages done since the last scan began: the current scan may still show them."""
        self._scanned_at = 0
        self._full_at = 0.0
        self._polled_at = 0.0

    async def run(self) -> None:
        """Process until cancelled. Raises Fenced."""
        unlisten = self._means.wakeups.listen(self._name, self._wake)
        unlisten_full = self._means.wakeups.listen(FULL + self._name, self._wake_for_all)
        tasks = [asyncio.create_task(self._scan_for_ever())]
        tasks += [
            asyncio.create_task(self._work_for_ever()) for _ in range(self._subscription.parallel)
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            unlisten()
            unlisten_full()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(TableError):
                await self._means.entries.index.flush()

    def _wake(self) -> None:
        self._tools.figures.add("wakeups", self._name)
        self._woken.set()

    def _wake_for_all(self) -> None:
        self._full_at = 0.0
        self._woken.set()

    def look(self, row: bytes) -> None:
        """Read a row again that may have waited for another subscription."""
        self.work.wake(row)
        self._ready.set()

    # Scanning.

    async def _scan_for_ever(self) -> None:
        while True:
            setup = await self._tools.meta.setup()
            if not self._means.offers.has(self._name):
                await self._tools.clock.sleep(PAUSE_S)
                continue
            await self._leading.until_it_may()
            self._woken.clear()
            try:
                await self._leading.check(self._tools.meta)
                await self._scan(setup)
            except TableError as error:
                log.info("rowlog scan failed", subscription=self._name, reason=str(error))
                await self._tools.clock.sleep(PAUSE_S)
                continue
            await self._wait(setup.settings.wakeup_timeout_ms / 1000)

    async def _wait(self, seconds: float) -> None:
        """Wait for a wake-up, or until the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _since(self, setup: Setup, monotonic: float) -> int:
        settings = setup.settings
        if self.work.overflowed or monotonic >= self._full_at:
            self.work.overflowed = False
            self._full_at = monotonic + settings.full_scan_ms / 1000
            self._polled_at = monotonic
            return 0
        if monotonic >= self._polled_at + settings.wakeup_timeout_ms / 1000:
            self._polled_at = monotonic
            return max(self._scanned_at - settings.scan_margin_ms, 1)
        return max(self._scanned_at - min(NEAR_MS, settings.scan_margin_ms), 1)

    async def _scan(self, setup: Setup) -> None:
        tools = self._tools
        began, now = tools.clock.monotonic(), tools.clock.now_ms()
        since = self._since(setup, began)
        try:
            await self._offer(since)
        except TableError:
            # The next scan must cover what this one may have left out.
            self._polled_at = 0.0
            if since == 0:
                self._full_at = 0.0
            raise
        self._done.clear()
        self._scanned_at = now
        figures = tools.figures
        figures.add("scans", self._name)
        figures.add("scan_seconds", self._name, tools.clock.monotonic() - began)
        figures.set("rows_in_work", self._name, len(self.work))
        oldest = self.work.oldest
        age_ms = max(now - oldest, 0) if oldest else 0  # The writer's clock may be fast.
        figures.set("oldest_open_seconds", self._name, age_ms / 1000)

    async def _offer(self, since: int) -> None:
        """Offer the entries from a time on to ``work``. Raises TableError."""
        await self._means.entries.index.flush()
        async for page in self._means.entries.index.pages(self._name, since):
            for entry in page:
                if entry not in self._done:
                    self.work.offer(entry)
            self._ready.set()
            while self.work.is_full:
                self._room.clear()
                await self._room.wait()

    # Working.

    async def _work_for_ever(self) -> None:
        while True:
            await self._leading.until_it_may()
            row = self.work.take(int(self._tools.clock.monotonic() * 1000))
            if row is None:
                await self._until_ready()
                continue
            self._room.set()
            again = _Again(self._tools.clock.now_ms() + BUSY_MS)
            try:
                again = await self._visit(row)
            except Fenced:
                raise
            except StorageCorrupt as error:
                log.error("rowlog row put off", row=row.hex(), reason=str(error))  # noqa: TRY400
                again = _Again(self._tools.clock.now_ms() + CORRUPT_MS)
            except (TableError, BrokerError) as error:
                log.info("rowlog row put off", subscription=self._name, reason=str(error))
            except Exception:  # A bug at one row must not hold up the others.
                log.exception("rowlog row put off", subscription=self._name, row=row.hex())
                again = _Again(self._tools.clock.now_ms() + CORRUPT_MS)
            finally:
                due = steady_ms(self._tools.clock, again.due)
                self.work.finish(row, due, until_offered=again.until_offered)

    async def _until_ready(self) -> None:
        self._ready.clear()
        due = self.work.next_due
        wait_s = None if due is None else max(due / 1000 - self._tools.clock.monotonic(), 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ready.wait()

    async def _visit(self, row: bytes) -> _Again:
        """Process a row; return when to read it again."""
        tools = self._tools
        found, due = await self._read(row)
        for _ in range(MESSAGES_MAX):
            now, setup = tools.clock.now_ms(), await tools.meta.setup()
            subscription = setup.named(self._name) or self._subscription
            if subscription.paused:
                return _Again(now + setup.settings.wakeup_timeout_ms)
            messages = [(each.id, each.state) for each in found]
            choice = choose(messages, subscription, setup, now, partial(self._seen_at, row))
            if choice.step is NextStep.NOTHING:
                return _Again(due, until_offered=True)
            if choice.step is NextStep.WAIT:
                return _Again(choice.until)
            head = next(each for each in found if each.id == choice.message)
            try:
                outcome = await self._attempts.attempt(
                    row,
                    head,
                    self._name,
                    self._means.offers,
                    self._leading,
                )
            except Gone:
                found, due = await self._read(row)
                continue
            except Busy as busy:
                tools.figures.add("contentions", self._name)
                return _Again(busy.until or now + BUSY_MS)
            await self._after(row, head, outcome.state)
            # The messages behind it were read, too. If another has changed one since, its claim finds out.
            found = [each._replace(state=outcome.state) if each is head else each for each in found]
        return _Again(tools.clock.now_ms())

    def _seen_at(self, row: bytes, message: MessageId, tries: int = 0) -> int:
        """Return when this process first saw a message after so many tries, ms since 1970 by its own clock."""
        clock = self._tools.clock
        return wall_ms(clock, self.work.seen_at(row, message, tries, clock.monotonic()))

    async def _read(self, row: bytes) -> tuple[list[Found], int]:
        """Return a row's messages, and when to read the row again if no message is open."""
        now = self._tools.clock.now_ms()
        entries = self.work.entries(row)
        found = await self._tools.rows.open(row)
        setup = await self._known(found)
        found = await self._without_removed(row, found, setup)
        return found, await self._heal(row, entries, found, setup, now)

    async def _known(self, found: Sequence[Found]) -> Setup:
        """Return a setup that has all subscriptions of these messages, except removed ones."""
        setup = await self._tools.meta.setup()
        if any(unknown(each.state, setup) for each in found):
            return await self._tools.meta.fresh()
        return setup

    async def _without_removed(
        self, row: bytes, found: Sequence[Found], setup: Setup
    ) -> list[Found]:
        """Count messages as done for removed subscriptions, and delete those that are then finished."""
        left = []
        for each in found:
            removed = unknown(each.state, setup)
            state = without(each.state, removed)
            if removed:
                with suppress(Gone):
                    await self._tools.rows.change(row, each.id, lambda now: without(now, removed))  # noqa: B023
            if state.is_finished:
                await self._tools.rows.remove(row, [each.id])
            else:
                left.append(each)
        return left

    async def _heal(
        self,
        row: bytes,
        entries: Sequence[Entry],
        found: Sequence[Found],
        setup: Setup,
        now: int,
    ) -> int:
        """Remove entries that contradict the row; return when to look at young ones again, 0: there are none."""
        states = {each.id: each.state for each in found}
        self.work.keep_seen(row, states)
        due = 0
        stale: list[Entry] = []
        for entry in entries:
            state = states.get(entry.message)
            if state is None:
                old_at = (
                    self._seen_at(row, entry.message) + setup.settings.orphaned_message_delay_ms
                )
                if old_at > now:  # Its put may be in flight.
                    due = min(due or old_at, old_at, now + setup.settings.wakeup_timeout_ms)
                    continue
                self._tools.figures.add("orphans_removed", self._name)
            elif state.is_open(self._name):
                continue
            elif (part := state.parts.get(self._name)) is None:
                # ``subscribe`` adds the entry, and then opens the message.
                wait = now + setup.settings.wakeup_timeout_ms
                due = min(due or wait, wait)
                continue
            elif part.standing is not Standing.DONE:
                await self._means.entries.bury(row, [entry])
                self.work.settle(row, entry)
                continue
            stale.append(entry)
        await self._means.entries.index.remove(stale)
        for entry in stale:
            self.work.settle(row, entry)
        return due

    async def _after(self, row: bytes, head: Found, state: State) -> None:
        """Remove the entries of a message that is done or dead, and tell other subscriptions."""
        if state.is_open(self._name):
            return
        mine = [each for each in self.work.entries(row) if each.message == head.id]
        if state.parts[self._name].standing is Standing.DONE:
            await self._means.entries.index.remove(mine)
            self._done.update(mine)
        else:
            await self._means.entries.bury(row, mine)
        for entry in mine:
            self.work.settle(row, entry)
        self._means.settled(self._name, row)

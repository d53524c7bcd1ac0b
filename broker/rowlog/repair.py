"""Compare the rows with the index, and the index with the rows. Report the differences, and repair them if asked to.

=====================================  ==============================================================
index entry without a message          removed by a process that has seen it for ``orphaned_message_delay_ms``, by its
                                       own clock: before that, its put may be in flight
index entry of a done message          removed by the processor at once: an earlier removal was lost
open message without an index entry    a sweep of the user's table adds the entry again
dead message that is not listed        a sweep of the user's table lists it again
finished message with its cells        the sweep deletes the cells
held message with nothing to hold it   the sweep opens it
message of a removed subscription      counts as done for it, by the processor and the sweep
=====================================  ==============================================================

A sweep may add an entry for a message that a processor is done with meanwhile. That entry is stale, and is removed as
any stale entry is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

from broker import logs
from broker.clock import Clock
from broker.errors import StorageCorrupt
from broker.rowlog.cell_keys import DEAD_END, OPEN_END, Entry
from broker.rowlog.counters import Figures
from broker.rowlog.entries import Entries
from broker.rowlog.execution_state import Gone, Standing, State, freed, unknown, without
from broker.rowlog.index import Index, entries_for
from broker.rowlog.listeners import reason_of
from broker.rowlog.meta import Meta
from broker.rowlog.ring import Ring
from broker.rowlog.row_table import TableError
from broker.rowlog.rows import Found, Rows
from broker.rowlog.setup import Setup

log = logs.get_logger()

ROWS: Final = 200
"""How many rows of the user's table one step of a sweep reads."""
REGIONS_AT_ONCE: Final = 4
"""How many regions of the user's table are swept side by side: fewer than a rowlog's calls that run at once."""
ALONE_MAX: Final = 50_000
"""How many entries without a message are looked at again together."""
FIRST_LOOK_S: Final = 1.0
"""After how long they are looked at again first."""


@dataclass
class Report:
    """The result of a comparison. ``mend`` repaired what it counts as wrong."""

    rows: int = 0
    messages: int = 0
    open: int = 0
    dead: int = 0
    entries: int = 0
    without_entry: int = 0
    """Open or dead messages without an index entry, counted for each subscription."""
    orphans: int = 0
    """Entries that had no message, and still have none ``orphaned_message_delay_ms`` later."""
    stale: int = 0
    """Entries of messages that are done, or in the wrong list: open or dead."""
    finished: int = 0
    """Messages that are done for all subscriptions, but still have their cells."""
    unreadable: int = 0
    """Rows with a state that can't be decoded. All messages in them are left as they are."""
    of_removed: int = 0
    """Messages that are not done for a subscription that is removed."""
    held: int = 0
    """Messages that are held although no earlier subscription has a dead letter of them."""

    @property
    def is_sound(self) -> bool:
        """True if nothing has to be repaired."""
        wrong = self.without_entry + self.orphans + self.stale + self.finished + self.unreadable
        return not (wrong or self.held)

    def as_dict(self) -> dict[str, int]:
        """Return all figures by name."""
        return asdict(self)


class Repair:
    """Compares and repairs one rowlog."""

    def __init__(
        self,
        rows: Rows,
        index: Index,
        meta: Meta,
        clock: Clock,
        figures: Figures,
        entries: Entries,
    ) -> None:
        """Use the parts of a rowlog."""
        self._rows = rows
        self._index = index
        self._meta = meta
        self._clock = clock
        self._figures = figures
        self._entries = entries

    async def sweep(self, report: Report, *, mend: bool) -> None:
        """Read the states of all rows of the user's table, and compare them with the index.

        A region that hangs, and a row that fails, hold up no others. Raises the first error behind all rows.
        """
        places, failed = asyncio.Semaphore(REGIONS_AT_ONCE), list[Exception]()

        async def swept(start: bytes, stop: bytes) -> None:
            async with places:
                try:
                    await self._region(start, stop, report, failed, mend=mend)
                except Exception as error:  # noqa: BLE001 - It is raised behind the other regions.
                    log.warning(
                        "rowlog region not swept", start=start.hex(), reason=reason_of(error)
                    )
                    failed.append(error)

        starts = await self._rows.region_starts()
        await asyncio.gather(*(swept(*each) for each in pairwise([*starts, b""])))
        try:
            if failed:
                raise failed[0]
        finally:
            failed.clear()  # The traceback of an error keeps this frame.

    async def _region(
        self, start: bytes, stop: bytes, report: Report, failed: list[Exception], *, mend: bool
    ) -> None:
        """Sweep the rows of ``[start, stop)``. ``failed`` gets the first error of a row. Raises TableError."""
        while True:
            setup = await self._meta.setup()
            rows = await self._rows.sweep(start, ROWS, stop)
            if any(unknown(each.state, setup) for _, found in rows for each in found or ()):
                setup = await self._meta.fresh()
            for row, found in rows:
                report.rows += 1
                if found is None:
                    report.unreadable += 1
                    log.error("rowlog state can't be read", row=row.hex())
                    continue
                try:
                    await self._row(row, found, setup, report, mend=mend)
                except TableError:
                    raise
                except Exception as error:  # noqa: BLE001 - It is raised behind the other rows.
                    log.warning("rowlog row not swept", row=row.hex(), reason=reason_of(error))
                    if not failed:
                        failed.append(error)
            if len(rows) < ROWS:
                return
            start = rows[-1][0] + b"\0"

    async def _row(
        self,
        row: bytes,
        found: Sequence[Found],
        setup: Setup,
        report: Report,
        *,
        mend: bool,
    ) -> None:
        ring = Ring(setup.writable)
        open_, dead = set[Entry](), set[Entry]()
        for each in found:
            report.messages += 1
            removed = unknown(each.state, setup)
            state = without(each.state, removed)
            report.of_removed += bool(removed)
            if state.is_finished:
                report.finished += 1
                if mend:
                    await self._finish(row, each, removed)
                continue
            if (opened := freed(state, setup)) != state:
                report.held += 1
                if mend:
                    await self._free(row, each, setup)
                    state = opened
            for name, part in state.parts.items():
                entry = entries_for(ring, [name], row, each.id, b"")[0]
                if part.standing is Standing.OPEN:
                    open_.add(entry)
                elif part.standing is not Standing.DONE:
                    dead.add(entry)
        report.open += len(open_)
        report.dead += len(dead)
        lost_open = await self._index.lacks(open_)
        lost_dead = await self._index.lacks(dead, DEAD_END)
        report.without_entry += len(lost_open) + len(lost_dead)
        if mend and (lost_open or lost_dead):
            await self._restore(row, lost_open, lost_dead)

    async def _free(self, row: bytes, found: Found, setup: Setup) -> None:
        data = (await self._rows.data(row, [found.id])).get(found.id, b"")
        with suppress(Gone):
            _, names = await self._entries.reopened(
                row, found._replace(data=data), lambda now: freed(now, setup)
            )
            for name in names:
                self._entries.wake_for_all(name)

    async def _finish(self, row: bytes, found: Found, removed: set[str]) -> None:
        with suppress(Gone):
            state = await self._rows.change(row, found.id, lambda now: without(now, removed))
            if state.is_finished:
                await self._rows.remove(row, [found.id])

    async def _restore(self, row: bytes, lost_open: set[Entry], lost_dead: set[Entry]) -> None:
        """Add the entries of a row to the index and to the list of dead letters again."""
        data = await self._rows.data(row, [entry.message for entry in lost_open | lost_dead])

        def whole(entries: set[Entry]) -> list[Entry]:
            return [each._replace(data=data.get(each.message, b"")) for each in entries]

        await self._entries.bury(row, whole(lost_dead))
        if lost_open:
            await self._index.add(whole(lost_open))
        for entry in lost_open:
            self._figures.add("entries_restored", entry.subscription)
            self._entries.wake_for_all(entry.subscription)

    async def entries(self, report: Report, *, mend: bool) -> None:
        """Read the whole index table, and compare it with the rows. Raises TableError."""
        setup = await self._meta.fresh()
        alone: list[tuple[Entry, bytes]] = []
        for shard in setup.shards:
            start = b""
            while found := await self._index.all(shard.id, start, ROWS):
                for _, entry, end in found:
                    report.entries += 1
                    if await self._is_alone(entry, end, setup, report, mend=mend):
                        alone.append((entry, end))
                if len(alone) >= ALONE_MAX:
                    await self._orphans(alone, setup, report, mend=mend)
                if len(found) < ROWS:
                    break
                start = found[-1][0] + b"\0"
        await self._orphans(alone, setup, report, mend=mend)
        await self._index.flush()

    async def _orphans(
        self, alone: list[tuple[Entry, bytes]], setup: Setup, report: Report, *, mend: bool
    ) -> None:
        """Look again, ever more rarely, until no put of an entry can be in flight; empty the list.

        On a busy rowlog most of them are of messages that have just been done: they go within a second.
        """
        left_s = setup.settings.orphaned_message_delay_ms / 1000
        pause_s = FIRST_LOOK_S
        while alone and left_s > 0:
            await self._clock.sleep(min(pause_s, left_s))
            left_s -= pause_s
            pause_s *= 2
            alone[:] = [each for each in alone if await self._is_orphan(*each)]
        for entry, end in alone:
            report.orphans += 1
            if mend:
                await self._remove(entry, end)
        alone.clear()

    async def _is_orphan(self, entry: Entry, end: bytes) -> bool:
        """Whether an entry is still there, and its message still is not."""
        if await self._index.lacks([entry], end):
            return False
        return await self._rows.one(entry.row, entry.message) is None

    async def _remove(self, entry: Entry, end: bytes) -> None:
        await (self._index.remove([entry]) if end == OPEN_END else self._index.unbury([entry]))

    async def _is_alone(
        self, entry: Entry, end: bytes, setup: Setup, report: Report, *, mend: bool
    ) -> bool:
        """Compare an entry with its row. Return True if the row does not have the message."""
        try:
            found = await self._rows.one(entry.row, entry.message)
        except StorageCorrupt:
            return False  # The sweep reports this row.
        if found is None:
            return True
        part = found.state.parts.get(entry.subscription)
        known = {each.id for each in setup.subscriptions}
        if part is None or part.standing is Standing.DONE or entry.subscription not in known:
            report.stale += 1
        elif (part.standing is Standing.OPEN) != (end == OPEN_END):
            report.stale += 1
            if mend and end == OPEN_END:
                await self._entries.bury(entry.row, [entry])
                return False
            if mend:
                await self._index.add([entry])
                self._entries.wake_for_all(entry.subscription)
        else:
            return False
        if mend:
            await self._remove(entry, end)
        return False

    async def purge(self, name: str) -> int:
        """Count all messages as done for a subscription that is being removed, and remove its entries.

        Return how many messages were not done for it. Messages without an entry are left to the sweep.
        Raises TableError.
        """
        count = 0
        setup = await self._meta.fresh()
        async for page in self._index.pages(name, 0):
            for entry in page:
                count += await self._let_go(entry, setup)
            await self._index.remove(page)
        while dead := await self._index.dead(name, ROWS):
            for entry in dead:
                count += await self._let_go(entry, setup)
            await self._index.unbury(dead)
        await self._index.flush()
        return count

    async def _let_go(self, entry: Entry, setup: Setup) -> bool:
        """Count a message as done for the entry's subscription. Return whether it was not done before.

        Later subscriptions get the message if it was held for them.
        """
        waited = False

        def let_go(now: State) -> State:
            nonlocal waited
            part = now.parts.get(entry.subscription)
            waited = part is not None and part.standing is not Standing.DONE
            return freed(without(now, [entry.subscription]), setup)

        found = await self._rows.one(entry.row, entry.message)
        if found is None:
            return False
        try:
            state, names = await self._entries.reopened(entry.row, found, let_go)
        except Gone:
            return False
        for name in names:
            self._entries.wake_for_all(name)
        if state.is_finished:
            await self._rows.remove(entry.row, [entry.message])
        return waited

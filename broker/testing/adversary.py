"""Storage at its worst: tables that do all that real gateways and region servers were seen to do.

Over plain tables in memory, each of these with a probability of its own, from one seed:

    partial_put    a multi-put writes some of its rows and is reported as an error
    lost_answer    a write is done and reported as an error
    late_write     a write is reported as an error and done at any later moment
    again          a write is done, and once more at any later moment
    lie            a compare-and-set is done and says False
    refused        a call is not sent and says so
    old_answer     a get or a scan shows an earlier state
    move           the region moves: what was not synced is gone
    no_answer      a read fails

Whoever waits for a call may be killed meanwhile: the call was sent, and may be done or not. Control row
and rows are read at different moments anyway, since every call takes its time.

What an old answer is: the state of one table at an earlier moment, as a region server shows it that has
lost the region and does not know it. Two kinds of earlier state are left out, because nothing that the
protocol stores could tell a reader: a moment between two parts of one multi-put, which a server takes
as one; and, for rows, one before the latest change of a row in place (a rollback's mark), and side rows,
which have no row after them by which an answer could prove itself.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker.storage.cells import CellsError, CellsRefused, Columns, RowCells, Scanned, Table
from broker.storage.memory_cells import UNBOUNDED, MemoryTable

_SIDE_ROW_MARK = b":\0\0\0\0"
"""Generation 0 in a key: what is not a message."""


@dataclass(frozen=True, slots=True)
class Bias:
    """How probable each behaviour is, and how long things take (mean, ms)."""

    partial_put: float = 0.03
    lost_answer: float = 0.03
    late_write: float = 0.04
    again: float = 0.06
    lie: float = 0.04
    refused: float = 0.01
    old_answer: float = 0.06
    move: float = 0.02
    no_answer: float = 0.01
    delay_ms: float = 4.0
    late_ms: float = 150.0


CALM = Bias(0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class _Step:
    """One change of a table: what to do to it, and whether it is on disk."""

    apply: Callable[[MemoryTable], object]
    synced: bool


@dataclass(slots=True)
class _Region:
    """A table with all its past, so that any earlier state can be shown."""

    now: MemoryTable = field(default_factory=MemoryTable)
    past: list[_Step] = field(default_factory=list)
    torn: list[tuple[int, set[bytes]]] = field(default_factory=list)
    """Multi-puts done in part: since which step, and the keys that lack."""
    untellable: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of the past between two parts of one multi-put."""
    edited_at: int = 0
    unsynced: int = 0


class AdversaryCells:
    """Cells that misbehave. ``happened`` counts what really happened, by name."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        chance: random.Random,
        bias: Bias,
        *,
        put_bytes_max: int = UNBOUNDED,
        server_ms: Callable[[], int] | None = None,
    ) -> None:
        """Misbehave as ``bias`` says and ``chance`` decides.

        ``server_ms`` is the servers' clock; with one the tags of control cells are times.
        """
        self.tags_are_times = server_ms is not None
        self._server_ms = server_ms or _no_time
        self.bias = bias
        self.happened: Counter[str] = Counter()
        self.row_bytes_max = UNBOUNDED
        self.put_bytes_max = put_bytes_max
        self._loop = loop
        self._chance = chance
        self._regions = {table: _Region() for table in Table}
        self._late = 0

    def heal(self) -> None:
        """Misbehave no more; what is late already still comes."""
        self.bias = CALM

    @property
    def still_to_come(self) -> int:
        """How many late writes are under way."""
        return self._late

    # Writing.

    async def put(self, table: Table, rows: Sequence[RowCells], *, synced: bool = True) -> None:
        """Write rows, more or less."""
        await self._travel(lambda: self._put(table, rows, synced))
        if self._happens("refused"):
            raise CellsRefused("the gateway refused the connection")
        if self._happens("late_write"):
            self._later("late_writes", lambda: self._put(table, rows, synced))
            raise CellsError("time-out")
        if len(rows) > 1 and self._happens("partial_put"):
            self._put_part(table, rows, synced)
            raise CellsError("some rows failed")
        self._put(table, rows, synced)
        if self._happens("again"):
            self._later("late_writes", lambda: self._put(table, rows, synced))
        self._move(table)
        await self._answer()

    async def check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> bool:
        """Compare and set, more or less."""
        await self._travel(lambda: self._check_and_put(table, key, expected, value))
        if self._happens("refused"):
            raise CellsRefused("the gateway refused the connection")
        if self._happens("late_write"):
            self._later("late_writes", lambda: self._check_and_put(table, key, expected, value))
            raise CellsError("time-out")
        applied = self._check_and_put(table, key, expected, value)
        if applied and self._happens("lie"):
            self.happened["lies"] += 1
            applied = False
        if self._happens("again"):
            self._later("late_writes", lambda: self._check_and_put(table, key, expected, value))
        await self._answer()
        return applied

    async def delete(self, table: Table, keys: Sequence[bytes]) -> None:
        """Remove rows, now or later."""
        await self._travel(lambda: self._delete(table, keys))
        if self._happens("late_write"):
            self._later("late_writes", lambda: self._delete(table, keys))
            raise CellsError("time-out")
        self._delete(table, keys)
        await self._answer()

    def _put(self, table: Table, rows: Sequence[RowCells], synced: bool) -> None:
        region = self._regions[table]
        for row in rows:
            self._edit(region, row)
        self._step(table, lambda target: target.put_all(rows), synced=synced)
        self._mend(region, {row.key for row in rows})

    def _put_part(self, table: Table, rows: Sequence[RowCells], synced: bool) -> None:
        self.happened["partial_puts"] += 1
        part = self._chance.sample(rows, self._chance.randrange(1, len(rows)))
        region = self._regions[table]
        lacking = {row.key for row in rows} - {row.key for row in part}
        region.torn.append((len(region.past) + 1, lacking))
        self._put(table, part, synced)

    @staticmethod
    def _edit(region: _Region, row: RowCells) -> None:
        known = region.now.get(row.key)
        if known is not None and any(known.get(name) != cell for name, cell in row.columns.items()):
            region.edited_at = len(region.past) + 1

    @staticmethod
    def _mend(region: _Region, keys: set[bytes]) -> None:
        left = []
        for since, lacking in region.torn:
            still = lacking - keys
            if still:
                left.append((since, still))
            else:
                region.untellable.append((since, len(region.past)))
        region.torn = left

    def _check_and_put(
        self, table: Table, key: bytes, expected: bytes | None, value: bytes
    ) -> bool:
        tag_min = self._server_ms()
        applied = self._regions[table].now.check_and_put(key, expected, value, tag_min)
        if applied:
            # Done already: what is kept is how to do it again over an earlier state.
            region = self._regions[table]
            region.past.append(
                _Step(lambda t: t.check_and_put(key, expected, value, tag_min), synced=True)
            )
        return applied

    def _delete(self, table: Table, keys: Sequence[bytes]) -> None:
        self._step(table, lambda target: target.delete(keys), synced=True)

    def _step(self, table: Table, apply: Callable[[MemoryTable], object], *, synced: bool) -> None:
        region = self._regions[table]
        apply(region.now)
        region.past.append(_Step(apply, synced))
        region.unsynced += not synced

    def _move(self, table: Table) -> None:
        """Move the region: what was not synced is gone."""
        region = self._regions[table]
        if not self._happens("move"):
            return
        self.happened["moves"] += 1
        if region.unsynced:
            self.happened["unsynced_lost"] += 1
            # Steps stay numbered, so that what is known of the past stays right.
            region.past = [
                step if step.synced else _Step(lambda _: None, synced=True) for step in region.past
            ]
            region.now = self._state(region, len(region.past))
            region.unsynced = 0

    # Reading.

    async def get(self, table: Table, key: bytes) -> Columns | None:
        """Return a row's cells, of now or before."""
        await self._travel(None)
        self._may_fail()
        region = self._regions[table]
        if self._happens("old_answer") and region.past:
            self.happened["old_answers"] += 1
            return self._state(region, self._chance.randrange(len(region.past))).get(key)
        return region.now.get(key)

    async def scan(  # noqa: PLR0913  As the port.
        self,
        table: Table,
        start: bytes,
        stop: bytes,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool = False,
        columns: Sequence[bytes] | None = None,
    ) -> Scanned:
        """Return rows of a range, of now or before."""
        state = await self._shown(table, start)
        return state.page(
            start, stop, rows_max=rows_max, bytes_max=bytes_max, reverse=reverse, columns=columns
        )

    async def keys(
        self, table: Table, start: bytes, stop: bytes, *, rows_max: int, reverse: bool = False
    ) -> list[bytes]:
        """Return keys of a range, of now or before."""
        state = await self._shown(table, start)
        return state.keys(start, stop, rows_max, reverse=reverse)

    async def _shown(self, table: Table, start: bytes) -> MemoryTable:
        await self._travel(None)
        self._may_fail()
        region = self._regions[table]
        if _SIDE_ROW_MARK not in start and self._happens("old_answer"):
            return self._old_rows(region)
        return region.now

    def _old_rows(self, region: _Region) -> MemoryTable:
        if region.edited_at >= len(region.past):
            return region.now
        moment = self._chance.randrange(region.edited_at, len(region.past))
        if any(since <= moment < until for since, until in region.untellable):
            return region.now
        self.happened["old_answers"] += 1
        return self._state(region, moment)

    @staticmethod
    def _state(region: _Region, steps: int) -> MemoryTable:
        state = MemoryTable()
        for step in region.past[:steps]:
            step.apply(state)
        return state

    async def weigh(self, table: Table, start: bytes, stop: bytes) -> tuple[int, int]:
        """Return how many rows and bytes lie in a range."""
        return self._regions[table].now.weigh(start, stop)

    async def compact(self, table: Table, start: bytes, stop: bytes) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    # Chance and time.

    def _happens(self, name: str) -> bool:
        probability: float = getattr(self.bias, name)
        return self._chance.random() < probability

    async def _travel(self, write: Callable[[], object] | None) -> None:
        """Take the way to the server. Whoever is killed on it has sent the call all the same."""
        try:
            await asyncio.sleep(self._delay_s(self.bias.delay_ms))
        except asyncio.CancelledError:
            if write is not None and self._chance.random() < 0.5:
                self._later("late_writes", write)
            raise

    async def _answer(self) -> None:
        await asyncio.sleep(self._delay_s(self.bias.delay_ms) / 2)
        if self._happens("lost_answer"):
            self.happened["lost_answers"] += 1
            raise CellsError("connection reset")

    def _may_fail(self) -> None:
        if self._happens("no_answer"):
            raise CellsError("no answer")

    def _later(self, name: str, write: Callable[[], object]) -> None:
        self._late += 1

        def land() -> None:
            self._late -= 1
            self.happened[name] += 1
            write()

        self._loop.call_later(self._delay_s(self.bias.late_ms), land)

    def _delay_s(self, mean_ms: float) -> float:
        return self._chance.expovariate(1 / mean_ms) / 1000 if mean_ms > 0 else 0.0


def _no_time() -> int:
    """Servers whose time nobody asks for."""
    return 0

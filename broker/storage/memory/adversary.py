"""Storage at its worst: a table that does all that gateways and region servers were seen to do.

Over a table in memory, each of these with a probability of its own (``Bias``), from one seed::

    a write     refused       it is not sent, and says so
                slow          it is made late, and answered after that
                late_write    an error; it is made at any later moment
                never         an error; it is never made
                lost_answer   it is made; an error
                again         it is made, and once more at any later moment
                lie           it is made, and False said
                old_false     it is not made: a server that knows an older head says False
                partial       some rows of a put or a delete are done; an error
    a reading   refused, no_answer
                old_answer    rows are shown in an older state, each row on its own
                short         fewer cells than asked for, and ``more``: a page is read in pieces

A caller that is cancelled has sent its write or not; a write that was sent may land at any later moment. A make
of a page (absent expected) comes much later than other changes: also after its page is gone. Errors are
followed by success, since each call is decided on its own. Servers' clocks may be wrong from the start.
Nothing that was written is lost: every write is on disk (FSYNC_WAL).

What is current. The protocol assumes that some readings show the present, as HBase promises but for a
server that was cut off: proofs of leading, marks, references, what a leader takes into its cache. The port
has no flag for it, so the kind of a reading decides:

- A ``get`` of the head alone is current (``current_gets``): so proofs are, and readings of roots and records.
- A ``get`` of head and entries may be old: so the leader that resolves a change must tell a stale answer
  from a final one.
- A ``scan`` over rows of generation 0 (marks, roots) and over records is current (``current_indexes``).
- All else may be old: ``cells``, ``columns``, scans over heads of pages. A reader compares such an answer
  with the head, which says how far the page goes.

An older state is one of the row's last few, never from before its last rollback (past.py): a mark of a
rollback lies below the pointer, where no head could tell that it is missing. In a table that a process has
to itself (``is_alone``) every reading is current.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from zlib import crc32

from broker.storage.memory.past import Past
from broker.storage.memory.row_space import MemoryRow, Undo
from broker.storage.memory.table import MemoryTable, topic_of
from broker.storage.table import HEAD, Cell, Cells, NotWritten, Space, WriteUnknown

OLD_ROW: Final = 0.7
"""How probably each row of an old answer is shown in an older state."""
_GENERATION_0: Final = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Bias:
    """How probable each behaviour is, and how long things take (mean, ms of the loop's time)."""

    refused: float = 0.01
    slow: float = 0.02
    late_write: float = 0.04
    never: float = 0.01
    lost_answer: float = 0.03
    again: float = 0.06
    lie: float = 0.04
    old_false: float = 0.02
    partial: float = 0.03
    no_answer: float = 0.01
    old_answer: float = 0.06
    short: float = 0.06
    delay_ms: float = 4.0
    late_ms: float = 150.0
    late_make_ms: float = 1500.0


CALM: Final = Bias(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class AdversaryTable:
    """A Table that misbehaves.

    Attributes:
        bias: how; it may be replaced at any time.
        clocks_ms: how far off the servers' clocks are; they may be set at any time.
        happened: counts what really happened, by name.
        slow_s: how much longer a write takes, by space, beyond what the bias says.
    """

    def __init__(  # noqa: PLR0913 - What is assumed of a store.
        self,
        loop: asyncio.AbstractEventLoop,
        chance: random.Random,
        bias: Bias,
        table: MemoryTable | None = None,
        *,
        clocks_ms: Sequence[int] = (0,),
        current_gets: bool = True,
        current_indexes: bool = True,
    ) -> None:
        """Stand before ``table`` (None: an empty one of several processes, without a clock).

        ``clocks_ms``: how far off the servers' clocks are, from the start. Each topic has one of them.
        """
        self.table = MemoryTable(is_alone=False) if table is None else table
        self.bias = bias
        self.happened: Counter[str] = Counter()
        self.slow_s = dict.fromkeys(Space, 0.0)
        self._loop = loop
        self._chance = chance
        self.clocks_ms = clocks_ms
        self._current_gets = current_gets
        self._current_indexes = current_indexes
        self._past = Past()
        self._late = 0

    @property
    def is_alone(self) -> bool:
        """As the table behind."""
        return self.table.is_alone

    @property
    def keeps_order(self) -> bool:
        """False: calls are late, and come twice."""
        return False

    @property
    def checks_values(self) -> bool:
        """As the table behind."""
        return self.table.checks_values

    @property
    def cell_bytes_max(self) -> int:
        """As the table behind."""
        return self.table.cell_bytes_max

    @property
    def change_bytes_max(self) -> int:
        """As the table behind."""
        return self.table.change_bytes_max

    def heal(self) -> None:
        """Misbehave no more; what is late already still comes."""
        self.bias = CALM
        self.slow_s = dict.fromkeys(Space, 0.0)

    @property
    def still_to_come(self) -> int:
        """How many late writes are under way."""
        return self._late

    # Writing.

    async def change(
        self,
        space: Space,
        row: bytes,
        expected: bytes | None,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes] = (),
        *,
        clear: bool = False,
    ) -> bool:
        """Change cells of a row together, more or less."""
        self.table.check_change(expected, puts, deletes)
        make = partial(self._change, space, row, expected, dict(puts), list(deletes), clear=clear)
        is_make = expected is None
        await self._arrive(space, make, is_make=is_make)
        if self._knows_another_head(space, row, expected) and self._happens("old_false"):
            self.happened["old_falses"] += 1
            is_made = False
        else:
            is_made = make()
            if self._happens("again"):
                self._later("again", make, is_make=is_make)
            if is_made and self._happens("lie"):
                self.happened["lies"] += 1
                is_made = False
        await self._answer()
        return is_made

    async def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        """Put heads of rows, more or less."""
        self.table.check_put(space, heads)
        await self._write_rows(space, partial(self._put, space, dict(heads)), list(heads))

    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        """Remove rows wholly, more or less."""
        self.table.check_rows(space, rows)
        await self._write_rows(space, partial(self._delete, space), list(rows))

    async def _write_rows(
        self, space: Space, write: Callable[[Sequence[bytes]], None], rows: Sequence[bytes]
    ) -> None:
        whole = partial(write, rows)
        await self._arrive(space, whole)
        if len(rows) > 1 and self._happens("partial"):
            self.happened["partial"] += 1
            write(self._chance.sample(rows, self._chance.randrange(1, len(rows))))
            raise WriteUnknown("some rows failed")
        whole()
        if self._happens("again"):
            self._later("again", whole)
        await self._answer()

    def _change(
        self,
        space: Space,
        row: bytes,
        expected: bytes | None,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        *,
        clear: bool,
    ) -> bool:
        now_ms = self._now_ms(space, row)
        rows = self.table.spaces[space]
        undo = rows.change(row, expected, puts, deletes, now_ms, clear=clear)
        if undo is not None:
            self._past.note(space, row, undo, puts)
        return undo is not None

    def _put(self, space: Space, heads: Mapping[bytes, bytes], rows: Sequence[bytes]) -> None:
        for row in rows:
            undo = self.table.spaces[space].put(row, heads[row], self._now_ms(space, row))
            self._note_index(space, row, undo)

    def _delete(self, space: Space, rows: Sequence[bytes]) -> None:
        for row in rows:
            self._note_index(space, row, self.table.spaces[space].delete(row))

    def _note_index(self, space: Space, row: bytes, undo: Undo) -> None:
        # Thousands of marks would push the pages out, and none is read in an older state.
        is_read_old = not (self._current_indexes and _is_index(space, row))
        if is_read_old or self._past.knows(space, row):
            self._past.note(space, row, undo)

    def _now_ms(self, space: Space, row: bytes) -> int | None:
        if self.table.server_ms is None:
            return None
        region = crc32(row if space is Space.RECORDS else topic_of(row))
        off_ms = self.clocks_ms[region % len(self.clocks_ms)]
        self.happened["wrong_clocks"] += off_ms != 0
        return self.table.server_ms() + off_ms

    def _knows_another_head(self, space: Space, row: bytes, expected: bytes | None) -> bool:
        return not self.is_alone and any(head != expected for head in self._past.heads(space, row))

    # Reading.

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        """Return those of the named cells that a row has, or had."""
        await self._ask()
        is_current = self._current_gets and set(columns) == {HEAD}
        return self._shown(space, row, is_current=is_current).get(columns)

    async def cells(  # noqa: PLR0913 - As the port.
        self,
        space: Space,
        row: bytes,
        first: bytes,
        last: bytes,
        *,
        cells_max: int,
        bytes_max: int,
        reverse: bool = False,
    ) -> Cells:
        """Return cells of a row of now or before, perhaps not as many as there could be."""
        await self._ask()
        found = self._shown(space, row).cells(
            first, last, cells_max=cells_max, bytes_max=bytes_max, reverse=reverse
        )
        if len(found.cells) > 1 and self._happens("short"):
            self.happened["short"] += 1
            return Cells(found.cells[: self._chance.randrange(1, len(found.cells))], more=True)
        return found

    async def columns(self, space: Space, row: bytes, first: bytes, last: bytes) -> list[bytes]:
        """Return the columns that a row has, or had."""
        await self._ask()
        return self._shown(space, row).columns(first, last)

    async def scan(
        self, space: Space, first: bytes, last: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, Cell]]:
        """Return keys with their heads, each row of now or before."""
        self.table.check_rows(space, (first, last))
        await self._ask()
        rows = self.table.spaces[space]
        is_current = self._current_indexes and _is_index(space, first)
        if self.is_alone or is_current or not self._happens("old_answer"):
            return rows.scan(first, last, limit=limit, reverse=reverse)
        keys = {*rows.keys(first, last), *self._past.keys(space, first, last)}
        found: list[tuple[bytes, Cell]] = []
        for key in sorted(keys, reverse=reverse):
            head = self._perhaps_older(space, key).head
            if head is not None:
                found.append((key, head))
            if len(found) == limit:
                break
        return found

    def _shown(self, space: Space, row: bytes, *, is_current: bool = False) -> MemoryRow:
        if self.is_alone or is_current or not self._happens("old_answer"):
            return self.table.spaces[space].get(row)
        return self._perhaps_older(space, row)

    def _perhaps_older(self, space: Space, row: bytes) -> MemoryRow:
        now = self.table.spaces[space].get(row)
        if self._chance.random() >= OLD_ROW:
            return now
        older = self._past.older(space, row, now, self._chance)
        if older is None:
            return now
        self.happened["old_rows"] += 1
        return older

    async def close(self) -> None:
        """Refuse every further call; what is late still comes."""
        await self.table.close()

    # Chance and time.

    def _happens(self, name: str) -> bool:
        probability: float = getattr(self.bias, name)
        return self._chance.random() < probability

    async def _arrive(
        self, space: Space, write: Callable[[], object], *, is_make: bool = False
    ) -> None:
        """Take the way to the server. A caller that is killed on it may have sent the write."""
        delay_s = self._delay_s(self.bias.delay_ms) + self.slow_s[space]
        if self._happens("slow"):
            self.happened["slow"] += 1
            delay_s += self._delay_s(self.bias.late_ms)
        try:
            await asyncio.sleep(delay_s)
        except asyncio.CancelledError:
            if self._chance.random() < 0.5:
                self._later("killed", write, is_make=is_make)
            raise
        self._may_refuse()
        if self._happens("late_write"):
            self._later("late_writes", write, is_make=is_make)
            raise WriteUnknown("time-out")
        if self._happens("never"):
            self.happened["never"] += 1
            raise WriteUnknown("time-out")

    async def _ask(self) -> None:
        self.table.check_open()
        await asyncio.sleep(self._delay_s(self.bias.delay_ms))
        self._may_refuse()
        if self._happens("no_answer"):
            self.happened["no_answers"] += 1
            raise WriteUnknown("no answer")

    async def _answer(self) -> None:
        await asyncio.sleep(self._delay_s(self.bias.delay_ms) / 2)
        if self._happens("lost_answer"):
            self.happened["lost_answers"] += 1
            raise WriteUnknown("connection reset")

    def _may_refuse(self) -> None:
        if self._happens("refused"):
            self.happened["refused"] += 1
            raise NotWritten("the gateway refused the connection")

    def _later(self, name: str, write: Callable[[], object], *, is_make: bool = False) -> None:
        self._late += 1

        def land() -> None:
            self._late -= 1
            self.happened[name] += 1
            if write() is True:
                self.happened[f"{name}_made"] += 1

        mean_ms = self.bias.late_make_ms if is_make else self.bias.late_ms
        self._loop.call_later(self._delay_s(mean_ms), land)

    def _delay_s(self, mean_ms: float) -> float:
        return self._chance.expovariate(1 / mean_ms) / 1000 if mean_ms > 0 else 0.0


def _is_index(space: Space, key: bytes) -> bool:
    """True if a key names no page of messages: a record, or a row of generation 0."""
    return space is Space.RECORDS or key[len(topic_of(key)) :].startswith(_GENERATION_0)

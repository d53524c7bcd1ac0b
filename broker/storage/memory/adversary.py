"""A table with injected faults: all faults that we saw from gateways and region servers.

It stands before a table in memory. Each fault has a probability of its own (``Bias``), drawn from one seed::

    a write     refused       not sent; NotWritten
                slow          made late, and answered after that
                late_write    error; made at any later moment
                never         error; never made
                lost_answer   made; error
                again         made, and made once more at any later moment
                lie           made; the answer is False
                old_false     not made: a server with an older head answers False
                partial       some rows of a put or a delete are done; error
    a read      refused, no_answer
                old_answer    rows are shown in an older state, each row on its own
                short         fewer cells than asked for, and ``more``: a page is read in pieces

If a caller is cancelled, its write may be sent or not. A sent write may land at any later moment. A late change that
creates a page (it expects no head) comes much later than other changes, also after its page is gone. A call may
succeed after an error, because each call is decided on its own. Servers' clocks may be wrong from the start. No
write is lost after it was made, because every write is on disk (FSYNC_WAL).

Current reads. The protocol assumes that some reads are current: proofs of leading, marks, references, and reads that
a leader takes into its cache. HBase promises this, except for a server that was cut off. The port has no flag for
it, so the kind of the read decides:

- A ``get`` of only the head is current (``current_gets``). So proofs are current, and reads of roots and records.
- A ``get`` of head and entries may be stale. So a leader that resolves a change must distinguish a stale answer
  from a final one.
- A ``scan`` over rows of generation 0 (marks, roots) and over records is current (``current_indexes``).
- All other reads may be stale: ``cells``, ``columns``, and scans over heads of pages. A reader compares such an
  answer with the head, which has the page's last id.

An older state is one of the row's last few states, but never from before its last rollback (past.py). The reason: a
rollback changes entries below the pointer, so no head could show that it is missing. In a table without other
processes (``is_alone``) every read is current.
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
"""The probability that a row of an old answer is shown in an older state."""
_GENERATION_0: Final = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Bias:
    """The probability of each fault, and the mean delays (ms of the loop's time)."""

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
    """A Table with injected faults.

    Attributes:
        bias: the probabilities; they may be replaced at any time.
        clocks_ms: the errors of the servers' clocks; they may be set at any time.
        happened: how often each fault happened, by name.
        slow_s: the extra time of a write, by space, beyond that of the bias.
    """

    keeps_order = False  # Calls may be late, and may come twice.

    def __init__(  # noqa: PLR0913 - The assumptions about a store.
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
        """Stand before ``table`` (None: an empty one for several processes, without a clock).

        ``clocks_ms``: the errors of the servers' clocks at the start. Each topic has one of the clocks.
        """
        self.table = MemoryTable(is_alone=False) if table is None else table
        self.is_alone, self.checks_values = self.table.is_alone, self.table.checks_values
        self.cell_bytes_max = self.table.cell_bytes_max
        self.change_bytes_max = self.table.change_bytes_max
        self.bias = bias
        self.happened: Counter[str] = Counter()
        self.slow_s = dict.fromkeys(Space, 0.0)
        self._loop = loop
        self._chance = chance
        self.clocks_ms = clocks_ms
        self._current_gets = current_gets
        self._current_indexes = current_indexes
        self._past = Past()
        self.still_to_come = 0
        """How many late writes are in flight."""

    def heal(self) -> None:
        """Inject no more faults. Writes that are late already still come."""
        self.bias = CALM
        self.slow_s = dict.fromkeys(Space, 0.0)

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
        """Change cells of a row together, with faults."""
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
        """Put heads of rows, with faults."""
        self.table.check_put(space, heads)
        await self._write_rows(space, partial(self._put, space, dict(heads)), list(heads))

    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        """Remove whole rows, with faults."""
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
        # Thousands of marks would push pages out of the past, and marks are never read in an older state.
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
        """Return the named cells that a row has, or had."""
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
        """Return cells of the current or an older state of a row, perhaps fewer than asked for."""
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
        """Return keys with their heads, each of the current or an older state of its row."""
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
        """Refuse every further call. Late writes still come."""
        await self.table.close()

    # Chance and time.

    def _happens(self, name: str) -> bool:
        probability: float = getattr(self.bias, name)
        return self._chance.random() < probability

    async def _arrive(
        self, space: Space, write: Callable[[], object], *, is_make: bool = False
    ) -> None:
        """Wait as long as the way to the server takes. If the caller is cancelled, the write may be sent."""
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
        self.still_to_come += 1

        def land() -> None:
            self.still_to_come -= 1
            self.happened[name] += 1
            if write() is True:
                self.happened[f"{name}_made"] += 1

        mean_ms = self.bias.late_make_ms if is_make else self.bias.late_ms
        self._loop.call_later(self._delay_s(mean_ms), land)

    def _delay_s(self, mean_ms: float) -> float:
        return self._chance.expovariate(1 / mean_ms) / 1000 if mean_ms > 0 else 0.0


def _is_index(space: Space, key: bytes) -> bool:
    """True if a key is the key of a record, or of a row of generation 0, and not of a page."""
    return space is Space.RECORDS or key[len(topic_of(key)) :].startswith(_GENERATION_0)

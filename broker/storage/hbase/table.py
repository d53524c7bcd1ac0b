"""The table port over HBase. Each method is one call to a gateway, except where this docstring says otherwise.

**A change** is a ``checkAndPut`` of the row's head: one row mutation of HBase, with one sync. With deletes it is
a ``checkAndMutate``. True is certain. False is not certain: the gateway's HBase client repeats a call if it lost the
answer, and then the repetition finds the new head. HBase does not distinguish an absent cell from an empty one, so
no head is empty. A row without a head has no cells to delete.

**Cells that are too large** are refused before they are sent, because HBase answers them with "Internal error".

**A range of cells** is one Get, so all cells are of one moment. A Get can limit the number of cells, but not their
bytes. So this module guesses the number from the size of the cells that it read last from the topic. If the answer
is far too small, it asks again. A Get can't go backwards: then this module reads the columns and sizes of the range,
and after that the last cells that fit the limits.

**A delete** has a time that no clock reaches. With the server's own time it would not delete cells that were written
by a clock further ahead. So a cell or row that was deleted once stays hidden, even if it is put again.

A lone append is one call, and takes 1.37 ms (median). An earlier version with two calls, rows and then a
compare-and-set, took 2.46 ms (measured in turns; the ratio was 0.52 to 0.56 in two runs). A read of 20 entries of
16 KiB takes 2.0 ms. A read of 4,096 entries of 300 bytes takes 50 to 100 ms, 12 to 20 ms of it in this process: the
gateway and this process both handle each cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from broker.errors import BodyTooLarge
from broker.storage.hbase import requests
from broker.storage.hbase.gateways import Gateways
from broker.storage.hbase.schema import DURABILITIES, Schema, salt_of
from broker.storage.table import HEAD, Cell, Cells, NotWritten, Space, Table, WriteUnknown

CELL_BYTES_MAX = (10 << 20) - (64 << 10)
"""HBase's own limit, hbase.client.keyvalue.maxsize, is 10 MiB including key and column."""
CHANGE_BYTES_MAX = 32 << 20
"""It is limited because a gateway and a region server hold several copies of a change."""
DELETES_MAX = 1000
GUESSED_BYTES = 16 << 10
"""The assumed size of a cell before the first read: that of an entry with many messages."""
GROWTH_MAX = 16
_GUESSES_MAX = 4096
_ABOVE_ANY_REST = b"\xff" * 64
"""A suffix for ``_just_below``: almost no key lies between the result and the key."""

# A TResult and a TColumnValue.
_ROW, _CELLS = 1, 2
_COLUMN, _VALUE, _TIME = 2, 3, 4


class HBaseTable(Table):
    """The table port with all three spaces, in three tables of HBase."""

    is_alone = False
    keeps_order = False
    checks_values = False
    cell_bytes_max = CELL_BYTES_MAX
    change_bytes_max = CHANGE_BYTES_MAX

    def __init__(self, gateways: Gateways, schema: Schema) -> None:
        """Use the tables that ``schema`` names. ``close`` closes the gateways."""
        self._gateways = gateways
        self._place_of = schema.place_of
        self._names = {space: schema.name_of(space).encode() for space in Space}
        self._synced = DURABILITIES[schema.durability]
        self._sizes: dict[tuple[Space, bytes], int] = {}
        """The average size of a topic's cells at the last read, by space and topic."""

    @override
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
        assert puts[HEAD], "no head is empty"
        assert expected != b"", "no head is empty"
        assert not clear or len(puts) == 1, "a change that clears a row puts only the head"
        _check_cells(puts)
        size = sum(map(len, puts.values()))
        if size > CHANGE_BYTES_MAX:
            raise BodyTooLarge(
                f"A change has {size} bytes; HBase takes at most {CHANGE_BYTES_MAX}."
            )
        name, key = self._names[space], _key(space, row)
        if expected is None or not (deletes or clear):
            request = requests.check_and_put(name, key, expected, puts, self._synced)
        else:
            gone = None if clear else deletes
            request = requests.check_and_mutate(name, key, expected, puts, gone, self._synced)
        return bool(await self._gateways.ask("change", request, self._place_of(space, row)))

    @override
    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        if not columns:
            return {}
        request = requests.get(self._names[space], _key(space, row), columns)
        found = await self._gateways.ask("get", request, self._place_of(space, row))
        return {cell[_COLUMN]: Cell(cell[_VALUE], cell[_TIME]) for cell in found[_CELLS]}

    @override
    async def cells(
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
        if first > last:
            return Cells([], more=False)
        if reverse:
            return await self._last_cells(space, row, first, last, cells_max, bytes_max)
        topic = space, _topic_of(space, row)
        count = min(cells_max, bytes_max // self._sizes.get(topic, GUESSED_BYTES) + 1)
        while True:
            found = await self._range(space, row, first, last, count)
            sizes = [len(column) + len(value) for column, value in found]
            size = sum(sizes)
            if len(found) < count or count == cells_max or 2 * size >= bytes_max:
                break
            count = min(cells_max, count * min(GROWTH_MAX, bytes_max // (size or 1)))
        if found:
            if len(self._sizes) >= _GUESSES_MAX:
                self._sizes.clear()
            self._sizes[topic] = size // len(found) + 1
        kept = found[: _within(sizes, bytes_max)]
        return Cells(kept, more=len(kept) < len(found) or len(found) == count)

    async def _last_cells(
        self, space: Space, row: bytes, first: bytes, last: bytes, cells_max: int, bytes_max: int
    ) -> Cells:
        lengths = await self._range(space, row, first, last, None, lengths=True)
        sizes = [len(column) + int.from_bytes(length, "big") for column, length in lengths]
        wanted = min(cells_max, _within(reversed(sizes), bytes_max), len(lengths))
        if not wanted:
            return Cells([], more=False)
        found = await self._range(space, row, lengths[-wanted][0], last, None)
        # A change between the two reads may have added cells, so the limits are applied again.
        found = found[::-1]
        kept = found[: min(cells_max, _within((len(c) + len(v) for c, v in found), bytes_max))]
        return Cells(kept, more=len(kept) < len(found) or wanted < len(lengths))

    async def _range(
        self,
        space: Space,
        row: bytes,
        first: bytes,
        last: bytes,
        limit: int | None,
        *,
        lengths: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        request = requests.get_range(
            self._names[space], _key(space, row), first, last, limit, lengths=lengths
        )
        found = await self._gateways.ask("cells", request, self._place_of(space, row))
        return [(cell[_COLUMN], cell[_VALUE]) for cell in found[_CELLS]]

    @override
    async def columns(self, space: Space, row: bytes, first: bytes, last: bytes) -> list[bytes]:
        if first > last:
            return []
        found = await self._range(space, row, first, last, None, lengths=True)
        return [column for column, _ in found]

    @override
    async def scan(
        self, space: Space, first: bytes, last: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, Cell]]:
        if first > last or limit < 1:
            return []
        # In both directions a scan of HBase includes its start and excludes its stop.
        salt = b"" if space is Space.RECORDS else salt_of(first)
        start, stop = (
            (salt + last, _just_below(salt + first))
            if reverse
            else (salt + first, salt + last + b"\0")
        )
        request = requests.scan_heads(self._names[space], start, stop, limit, reverse=reverse)
        rows = await self._gateways.ask("scan", request, self._place_of(space, first))
        heads = [(row[_ROW][len(salt) :], _head(row)) for row in rows]
        return [(key, head) for key, head in heads if key >= first]

    @override
    async def put(self, space: Space, heads: Mapping[bytes, bytes]) -> None:
        _check_cells(heads)
        salted = {_key(space, row): head for row, head in heads.items()}
        calls = requests.put_heads(self._names[space], salted, self._synced)
        await self._make_calls("put", calls, space, heads)

    @override
    async def delete(self, space: Space, rows: Sequence[bytes]) -> None:
        keys = [_key(space, row) for row in rows]
        calls = [
            requests.delete_rows(self._names[space], keys[at : at + DELETES_MAX])
            for at in range(0, len(keys), DELETES_MAX)
        ]
        await self._make_calls("delete", calls, space, rows)

    async def _make_calls(
        self, name: str, calls: Iterable[bytes], space: Space, rows: Iterable[bytes]
    ) -> None:
        """Make the calls of one write one after the other. NotWritten means that no call was sent."""
        for number, request in enumerate(calls):
            place = self._place_of(space, next(iter(rows)))
            try:
                failed = await self._gateways.ask(name, request, place)
            except NotWritten as error:
                if number:
                    raise WriteUnknown(f"the rest of the write was not sent: {error}") from error
                raise
            if failed:
                raise WriteUnknown(f"{len(failed)} rows were not deleted")

    @override
    async def close(self) -> None:
        await self._gateways.close()


def _key(space: Space, row: bytes) -> bytes:
    return row if space is Space.RECORDS else salt_of(row) + row


def _topic_of(space: Space, row: bytes) -> bytes:
    return b"" if space is Space.RECORDS else row[: row.index(b":", row.index(b":") + 1)]


def _check_cells(values: Mapping[bytes, bytes]) -> None:
    size = max(map(len, values.values()), default=0)
    if size > CELL_BYTES_MAX:
        raise BodyTooLarge(f"A cell has {size} bytes; HBase takes at most {CELL_BYTES_MAX}.")


def _head(row: Any) -> Cell:
    (cell,) = row[_CELLS]
    return Cell(cell[_VALUE], cell[_TIME])


def _within(sizes: Iterable[int], bytes_max: int) -> int:
    """Return how many of the first cells fit into ``bytes_max``; at least one."""
    return max(1, sum(size <= bytes_max for size in itertools.accumulate(sizes)))


def _just_below(key: bytes) -> bytes:
    """Return a key below ``key`` and above nearly all other keys below it."""
    if not key or key.endswith(b"\0"):
        return key[:-1]
    return key[:-1] + bytes([key[-1] - 1]) + _ABOVE_ANY_REST

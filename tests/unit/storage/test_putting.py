"""Rows that are too large, and how they are split."""

import asyncio
import random

import pytest

from broker.clock import SystemClock
from broker.errors import BodyTooLarge
from broker.model import row_id
from broker.storage.cells import Cell, RowCells, Table
from broker.storage.memory_cells import MemoryCells
from broker.storage.ports import Batch, Segment
from broker.storage.putting import RowWriter
from broker.storage.retrying import Retrying
from broker.storage.tables import TableLogStore
from broker.testing.clock import VirtualClock
from tests.unit.storage.scripted_tables import LOG, batch, run


def test_a_row_that_the_tables_cannot_hold_is_refused_before_anything_is_sent():
    async def story(_, __, ___):
        cells = MemoryCells(row_bytes_max=200)
        store = TableLogStore(cells, VirtualClock(asyncio.get_running_loop()))
        hold = await store.claim(LOG, "a")
        with pytest.raises(BodyTooLarge):
            await store.append(hold, Batch([Segment([row_id(5, 0)], [b"x" * 500])], row_id(5, 0)))
        assert not hold.done
        await store.append(hold, batch(10))

    run(story)


class Counting(MemoryCells):
    def __init__(self, **bounds):
        super().__init__(**bounds)
        self.sizes = []

    async def put(self, table, rows, *, synced=True):
        self.sizes.append(len(rows))
        await super().put(table, rows, synced=synced)


@pytest.mark.parametrize(("bytes_max", "sizes"), [(1, [1] * 5), (250, [2, 2, 1]), (9999, [5])])
async def test_rows_go_in_pieces_that_the_tables_take(bytes_max, sizes):
    cells = Counting(put_bytes_max=bytes_max)
    rows = [RowCells(b"k%d" % number, {b"p": Cell(2, b"x" * 100)}) for number in range(5)]
    retrying = Retrying(SystemClock(), 1.0, random.Random(1))
    await RowWriter(cells, retrying).put(Table.MESSAGES, rows)
    assert cells.sizes == sizes

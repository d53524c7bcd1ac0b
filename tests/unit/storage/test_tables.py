"""The store over tables as its users see it; tests/contract runs the port's whole suite over it."""

import pytest

from broker.clock import SystemClock
from broker.model import TopicId, row_id
from broker.storage.keys import LogId
from broker.storage.memory_cells import MemoryCells
from broker.storage.ports import Batch, Segment
from broker.storage.tables import TableLogStore, random_nonce

LOG = LogId(TopicId("default", "notes"), 1)


def test_nonces_differ():
    assert len({random_nonce() for _ in range(100)}) == 100


async def test_a_hold_of_another_store_is_refused():
    store = TableLogStore(MemoryCells(), SystemClock())

    class Foreign:
        pass

    with pytest.raises(AssertionError):
        await store.append(Foreign(), Batch([Segment([row_id(1, 0)], [b"x"])], row_id(1, 0)))


async def test_stores_over_the_same_tables_see_the_same_log():
    cells = MemoryCells()
    one, other = (TableLogStore(cells, SystemClock()) for _ in range(2))
    hold = await one.claim(LOG, "a")
    await one.append(hold, Batch([Segment([row_id(1, 0)], [b"x"])], row_id(1, 0)))
    assert await other.head(LOG) == hold.control
    assert (await other.estimate(LOG)).rows == 1
    assert other.stale_answers == 0

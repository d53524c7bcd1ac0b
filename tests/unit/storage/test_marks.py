import asyncio

import pytest

from broker.clock import SystemClock
from broker.errors import StorageCorrupt, Unavailable
from broker.model import ROW_ID_MIN, TopicId, row_id
from broker.storage import marks as module
from broker.storage.entry import Mark, entries_of
from broker.storage.keys import LogId
from broker.storage.marks import Marks, MarksBefore, decode_mark, encode_mark, mark_key, sweep_marks
from broker.storage.memory.table import MemoryTable
from broker.storage.resolve import Resolver
from broker.storage.table import WriteUnknown
from tests.kit.bench import settle

LOG = LogId(TopicId("ns", "t"), 1)


class Table(MemoryTable):
    """Counts puts. A test can make them fail, or hold them up."""

    def __init__(self):
        super().__init__()
        self.puts = 0
        self.failing = False
        self.begun = asyncio.Event()
        self.may_put = asyncio.Event()
        self.may_put.set()

    async def put(self, space, heads):
        self.puts += 1
        if self.failing:
            raise WriteUnknown("lost")
        self.begun.set()
        await self.may_put.wait()
        await super().put(space, heads)


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def resolver(table):
    return Resolver(table, SystemClock(), call_s=0.05)


@pytest.fixture
def marks(resolver):
    return Marks(LOG, resolver, ROW_ID_MIN)


def entry(ms, *keys):
    [made] = entries_of(1, [row_id(ms, 0)], [b"x"])
    made.marks = tuple(Mark(1, key, made.first, made.last, b"b" * 32) for key in keys)
    return made


def confirm(marks, made):
    head = marks.marked_with(made.last, [made])
    marks.confirmed(made.last, [made])
    return head


def key(number):
    return b"%016d" % number


def test_a_mark_survives_its_row():
    mark = Mark(3, key(1), row_id(1, 1), row_id(2, 2), b"h" * 32)
    assert decode_mark(mark_key(LOG, mark), encode_mark(mark)) == mark
    with pytest.raises(StorageCorrupt):
        decode_mark(mark_key(LOG, mark), encode_mark(mark)[:-1] + b"?")


async def test_marked_rises_with_every_append_while_no_mark_is_pending(marks):
    assert confirm(marks, entry(1)) == row_id(1, 0)
    assert confirm(marks, entry(2)) == row_id(2, 0)
    assert marks.marked == row_id(2, 0)


async def test_marked_waits_for_a_pending_mark_and_rises_when_it_is_put(marks):
    confirm(marks, entry(1))
    assert confirm(marks, entry(2, key(2))) == row_id(1, 0)
    assert confirm(marks, entry(3)) == row_id(1, 0)
    await marks.flush()
    assert marks.marked == row_id(2, 0)
    assert confirm(marks, entry(4)) == row_id(4, 0)
    marks.close()


async def test_marks_are_put_together(marks, table):
    for number in range(1, 100):
        confirm(marks, entry(number, key(number)))
    assert table.puts == 0
    await marks.flush()
    assert table.puts == 1
    for number in range(1, 100):
        assert [mark.first for mark in await marks.find(1, key(number))] == [row_id(number, 0)]


async def test_a_full_batch_of_marks_is_put_without_a_flush(marks, monkeypatch):
    monkeypatch.setattr(module, "PUT_AFTER_S", 3600)
    for number in range(1, module.PUT_AT + 1):
        confirm(marks, entry(number, key(number)))
    async with asyncio.timeout(10):
        while marks.marked != row_id(module.PUT_AT, 0):
            await settle()


async def test_a_mark_that_arrives_during_a_put_stays_pending(marks, table):
    confirm(marks, entry(1, key(1)))
    table.may_put.clear()
    flushing = asyncio.ensure_future(marks.flush())
    await table.begun.wait()
    confirm(marks, entry(2, key(1)))
    table.failing = True
    table.may_put.set()
    with pytest.raises(Unavailable):
        await flushing
    assert marks.marked == row_id(1, 0), "the first put is done, the second one has failed"
    assert await marks.find(1, key(1)) == [*entry(1, key(1)).marks, *entry(2, key(1)).marks]
    table.failing = False
    await marks.flush()
    assert marks.marked == row_id(2, 0)
    marks.close()


async def test_rows_that_are_not_put_stay_pending(marks, table):
    confirm(marks, entry(1, key(1)))
    table.failing = True
    with pytest.raises(Unavailable):
        await marks.flush()
    assert marks.marked == ROW_ID_MIN
    assert [mark.first for mark in await marks.find(1, key(1))] == [row_id(1, 0)]
    table.failing = False
    await marks.flush()
    assert marks.marked == row_id(1, 0)
    marks.close()


async def test_the_index_lags_too_far_until_it_is_flushed(marks, monkeypatch):
    monkeypatch.setattr(module, "PENDING_MAX", 5)
    for number in range(1, 5):
        confirm(marks, entry(number, key(number)))
        assert not marks.lags
    confirm(marks, entry(5, key(5)))
    assert marks.lags
    await marks.flush()
    assert not marks.lags
    assert marks.marked == row_id(5, 0)


async def test_the_last_marks_of_a_key_that_has_many_are_found(marks):
    for number in range(1, 150):
        confirm(marks, entry(number, key(7)))
    await marks.flush()
    found = [mark.first for mark in await marks.find(1, key(7))]
    assert found == [row_id(number, 0) for number in range(50, 150)]


async def test_a_sweep_keeps_marks_above_marked_and_marks_in_their_window(marks, resolver):
    for number in range(1, 10):
        confirm(marks, entry(number, key(number)))
    await marks.flush()
    before = MarksBefore(keys=row_id(8, 0), producers=row_id(0, 0))
    assert await sweep_marks(resolver, LOG, row_id(3, 0), before, b"", 100) == (3, None)
    assert await sweep_marks(resolver, LOG, row_id(9, 0), before, b"", 100) == (4, None)
    assert [bool(await marks.find(1, key(number))) for number in (7, 8, 9)] == [False, True, True]

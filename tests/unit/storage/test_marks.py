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

LOG = LogId(TopicId("ns", "t"), 1)


class Table(MemoryTable):
    """Counts puts; while ``failing``, none is answered."""

    def __init__(self):
        super().__init__()
        self.puts = 0
        self.failing = False

    async def put(self, space, heads):
        self.puts += 1
        if self.failing:
            raise WriteUnknown("lost")
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


def test_a_mark_comes_back_from_its_row():
    mark = Mark(3, key(1), row_id(1, 1), row_id(2, 2), b"h" * 32)
    assert decode_mark(mark_key(LOG, mark), encode_mark(mark)) == mark
    with pytest.raises(StorageCorrupt):
        decode_mark(mark_key(LOG, mark), encode_mark(mark)[:-1] + b"?")


async def test_marked_rises_with_every_append_while_none_is_pending(marks):
    assert confirm(marks, entry(1)) == row_id(1, 0)
    assert confirm(marks, entry(2)) == row_id(2, 0)
    assert marks.marked == row_id(2, 0)


async def test_marked_stands_while_one_is_pending_and_rises_when_it_is_put(marks):
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


async def test_so_many_are_put_without_being_asked_for(marks, table):
    for number in range(1, module.PUT_AT + 1):
        confirm(marks, entry(number, key(number)))
    await marks._putting
    assert marks.marked == row_id(module.PUT_AT, 0)


async def test_what_comes_while_others_are_put_stays_pending(marks, table):
    confirm(marks, entry(1, key(1)))
    putting = asyncio.ensure_future(marks.flush())
    confirm(marks, entry(2, key(2)))
    marks._put_soon()
    confirm(marks, entry(3, key(1)))
    await putting
    assert await marks.find(1, key(1)) == [*entry(1, key(1)).marks, *entry(3, key(1)).marks]
    assert marks.marked >= row_id(2, 0)
    await marks.flush()
    assert marks._pending == {}


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


async def test_a_sweep_leaves_what_is_above_marked_or_in_its_window(marks, resolver):
    for number in range(1, 10):
        confirm(marks, entry(number, key(number)))
    await marks.flush()
    before = MarksBefore(keys=row_id(8, 0), producers=row_id(0, 0))
    assert await sweep_marks(resolver, LOG, row_id(3, 0), before, b"", 100) == (3, None)
    assert await sweep_marks(resolver, LOG, row_id(9, 0), before, b"", 100) == (4, None)
    assert [bool(await marks.find(1, key(number))) for number in (7, 8, 9)] == [False, True, True]

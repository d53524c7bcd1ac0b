import asyncio

import pytest

from broker.clock import SystemClock
from broker.errors import StorageCorrupt, Unavailable
from broker.model import LOG_KEY_MIN, TopicId, log_key
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
        self.fails_after = 1_000_000
        self.begun = asyncio.Event()
        self.may_put = asyncio.Event()
        self.may_put.set()

    async def put(self, space, heads):
        self.puts += 1
        if self.failing or self.puts > self.fails_after:
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
    return Marks(LOG, resolver, LOG_KEY_MIN)


def entry(ms, *keys):
    [made] = entries_of(1, [log_key(ms, 0)], [b"x"])
    made.marks = tuple(Mark(1, key, made.first, made.last, b"b" * 32) for key in keys)
    return made


def confirm(marks, made):
    head = marks.marked_with(made.last, [made])
    marks.confirmed(made.last, [made])
    return head


def key(number):
    return b"%016d" % number


def test_a_mark_survives_its_row():
    mark = Mark(3, key(1), log_key(1, 1), log_key(2, 2), b"h" * 32)
    assert decode_mark(mark_key(LOG, mark), encode_mark(mark)) == mark
    with pytest.raises(StorageCorrupt):
        decode_mark(mark_key(LOG, mark), encode_mark(mark)[:-1] + b"?")


async def test_marked_rises_with_every_append_while_no_mark_is_pending(marks):
    assert confirm(marks, entry(1)) == log_key(1, 0)
    assert confirm(marks, entry(2)) == log_key(2, 0)
    assert marks.marked == log_key(2, 0)


async def test_marked_waits_for_a_pending_mark_and_rises_when_it_is_put(marks):
    confirm(marks, entry(1))
    assert confirm(marks, entry(2, key(2))) == log_key(1, 0)
    assert confirm(marks, entry(3)) == log_key(1, 0)
    await marks.flush()
    assert marks.marked == log_key(2, 0)
    assert confirm(marks, entry(4)) == log_key(4, 0)
    marks.close()


async def test_marks_are_put_together(marks, table):
    for number in range(1, 100):
        confirm(marks, entry(number, key(number)))
    assert table.puts == 0
    await marks.flush()
    assert table.puts == 1
    for number in range(1, 100):
        assert [mark.first for mark in await marks.find(1, key(number))] == [log_key(number, 0)]


async def test_a_full_batch_of_marks_is_put_without_a_flush(marks, monkeypatch):
    monkeypatch.setattr(module, "PUT_AFTER_S", 3600)
    for number in range(1, module.PUT_AT + 1):
        confirm(marks, entry(number, key(number)))
    async with asyncio.timeout(10):
        while marks.marked != log_key(module.PUT_AT, 0):
            await settle()


async def test_a_flush_leaves_a_mark_that_arrives_during_its_put(marks, table):
    confirm(marks, entry(1, key(1)))
    table.may_put.clear()
    flushing = asyncio.ensure_future(marks.flush())
    await table.begun.wait()
    confirm(marks, entry(2, key(1)))
    table.may_put.set()
    await flushing
    assert marks.marked == log_key(1, 0)
    assert await marks.find(1, key(1)) == [*entry(1, key(1)).marks, *entry(2, key(1)).marks]
    await marks.flush()
    assert marks.marked == log_key(2, 0)


@pytest.mark.timeout(20)
async def test_a_flush_may_begin_in_the_turn_in_which_a_put_ends(marks, table):
    """A wait for a put that has just ended would block the event loop for ever."""

    async def flush_later():
        await table.may_put.wait()
        await marks.flush()

    confirm(marks, entry(1, key(1)))
    table.may_put.clear()
    first = asyncio.ensure_future(marks.flush())
    await table.begun.wait()
    confirm(marks, entry(2, key(2)))
    second = asyncio.ensure_future(flush_later())
    await settle()
    table.may_put.set()
    await asyncio.gather(first, second)
    assert marks.marked == log_key(2, 0)


async def test_marks_are_put_and_forgotten_slice_by_slice(marks, table):
    several = 3 * module.ROWS_AT_ONCE
    for number in range(1, several + 1):
        confirm(marks, entry(number, key(number)))
    table.fails_after = 2
    with pytest.raises(Unavailable):
        await marks.flush()
    assert marks.marked == log_key(2 * module.ROWS_AT_ONCE, 0)
    table.fails_after = several
    await marks.flush()
    assert marks.marked == log_key(several, 0)
    marks.close()


async def test_marked_rises_to_a_request_when_all_its_marks_are_put(
    marks, table, resolver, monkeypatch
):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 1)
    confirm(marks, entry(1, key(1), key(2)))
    confirm(marks, entry(2, key(3)))
    table.fails_after = 1
    with pytest.raises(Unavailable):
        await marks.flush()
    marks.close()
    assert marks.marked == log_key(1, 0)
    on_disk = Marks(LOG, resolver, marks.marked)
    assert [len(await on_disk.find(1, key(number))) for number in (1, 2, 3)] == [1, 1, 0]


async def test_rows_that_are_not_put_stay_pending(marks, table):
    confirm(marks, entry(1, key(1)))
    table.failing = True
    with pytest.raises(Unavailable):
        await marks.flush()
    assert marks.marked == LOG_KEY_MIN
    assert [mark.first for mark in await marks.find(1, key(1))] == [log_key(1, 0)]
    table.failing = False
    await marks.flush()
    assert marks.marked == log_key(1, 0)
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
    assert marks.marked == log_key(5, 0)


async def test_the_last_marks_of_a_key_that_has_many_are_found(marks):
    for number in range(1, 150):
        confirm(marks, entry(number, key(7)))
    await marks.flush()
    found = [mark.first for mark in await marks.find(1, key(7))]
    assert found == [log_key(number, 0) for number in range(50, 150)]


async def test_a_sweep_keeps_marks_above_marked_and_marks_in_their_window(marks, resolver):
    for number in range(1, 10):
        confirm(marks, entry(number, key(number)))
    await marks.flush()
    before = MarksBefore(keys=log_key(8, 0), producers=log_key(0, 0))
    assert await sweep_marks(resolver, LOG, log_key(3, 0), before, b"", 100) == (3, None)
    assert await sweep_marks(resolver, LOG, log_key(9, 0), before, b"", 100) == (4, None)
    assert [bool(await marks.find(1, key(number))) for number in (7, 8, 9)] == [False, True, True]

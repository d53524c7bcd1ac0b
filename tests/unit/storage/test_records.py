import itertools

import pytest

from broker.clock import SystemClock
from broker.errors import OutcomeUnknown, StorageCorrupt, Unavailable
from broker.storage import records as module
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Record, Records
from broker.storage.resolve import Resolver
from broker.storage.table import HEAD, NotWritten, Space, WriteUnknown


class Table(MemoryTable):
    """Raises ``error`` at the next change, before or after it is made."""

    def __init__(self):
        super().__init__()
        self.errors = []

    async def change(self, *args, **more):
        when, error = self.errors.pop(0) if self.errors else ("", None)
        if when == "before":
            raise error
        done = await super().change(*args, **more)
        if when == "after":
            raise error
        return done


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def records(table):
    numbers = itertools.count()
    nonce = lambda: next(numbers).to_bytes(8, "big")  # noqa: E731
    return Records(Resolver(table, SystemClock()), nonce)


async def test_a_put_whose_answer_is_lost_still_returns_its_version(records, table):
    table.errors = [("after", WriteUnknown("lost"))]
    version = await records.put_if(b"k", None, b"v")
    assert (await records.get(b"k")) == Record(b"v", version)
    table.errors = [("before", WriteUnknown("lost"))]
    assert await records.put_if(b"k", version, b"w") is not None
    assert (await records.get(b"k")).value == b"w"


async def test_a_put_without_an_answer_is_unknown_if_another_came_after_it(records, table):
    version = await records.put_if(b"k", None, b"v")
    change = table.change

    async def overtaken(*args, **more):
        table.change = change
        assert await change(*args, **more)
        assert await records.put_if(b"k", (await records.get(b"k")).version, b"other")
        raise WriteUnknown("lost")

    table.change = overtaken
    with pytest.raises(OutcomeUnknown):
        await records.put_if(b"k", version, b"w")
    assert await records.put_if(b"k", version, b"w") is None, "an answered one is refused"
    assert (await records.get(b"k")).value == b"other"


async def test_a_put_that_was_not_sent_was_not_made(records, table):
    table.errors = [("before", NotWritten("refused"))]
    with pytest.raises(Unavailable):
        await records.put_if(b"k", None, b"v")
    assert await records.get(b"k") is None


async def test_a_put_that_is_never_answered_is_unknown(table):
    records = Records(Resolver(table, SystemClock(), call_s=0.05))
    table.errors = [("before", WriteUnknown("lost"))] * 1000
    with pytest.raises(OutcomeUnknown):
        await records.put_if(b"k", None, b"v")


async def test_a_put_of_the_same_value_makes_a_new_version(records):
    one = await records.put_if(b"k", None, b"v")
    other = await records.put_if(b"k", one, b"v")
    assert one != other
    assert await records.put_if(b"k", one, b"w") is None


async def test_a_damaged_record_is_found(records, table):
    await records.put_if(b"k", None, b"v")
    cell = (await table.get(Space.RECORDS, b"k", [HEAD]))[HEAD]
    await table.put(Space.RECORDS, {b"k": cell.value[:-1] + b"?"})
    with pytest.raises(StorageCorrupt):
        await records.get(b"k")


async def test_a_prefix_is_scanned_in_several_calls(records, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 3)
    for number in range(10):
        await records.put_if(b"a/%d" % number, None, b"%d" % number)
    await records.put_if(b"a0", None, b"not")
    await records.put_if(b"Z", None, b"not")
    found = await records.scan_prefix(b"a/")
    assert [record.value for _, record in found] == [b"%d" % number for number in range(10)]
    assert len(await records.scan_prefix(b"")) == 12


async def test_pages_of_long_records_have_fewer_records(records, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_FIRST", 4)
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 2000)
    for number in range(20):
        await records.put_if(b"a/%02d" % number, None, b"v" * (900 if number < 10 else 1))
    pages = [[key for key, _ in page] async for page in records.pages(b"a/")]
    assert [key for page in pages for key in page] == [b"a/%02d" % number for number in range(20)]
    assert [len(page) for page in pages[:4]] == [4, 2, 2, 2]
    assert len(pages) < 8, "a page of short records has more of them"

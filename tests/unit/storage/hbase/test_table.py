"""The table port over the fake gateway. tests/contract runs the same suite with HBase itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from broker.errors import BodyTooLarge
from broker.storage.hbase import table as module
from broker.storage.hbase.gateways import Gateways
from broker.storage.hbase.schema import Schema, salt_of
from broker.storage.hbase.table import HBaseTable
from broker.storage.table import HEAD, NotWritten, Space, WriteUnknown
from tests.kit.contract.table import TableContract, column
from tests.unit.storage.hbase.fake import FakeHBase, Served, serving

NAME = b"broker_messages"
M = Space.MESSAGES
ROW = b"ns:topic:\0\0\0\1page"
KEY = salt_of(ROW) + ROW


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture
def hbase(served: Served) -> FakeHBase:
    return served.hbase


@pytest.fixture
async def table(served: Served) -> AsyncIterator[HBaseTable]:
    opened = HBaseTable(Gateways([served.address]), Schema())
    yield opened
    await opened.close()


class Harness:
    def __init__(self, server: Served) -> None:
        self._server = server

    async def open(self) -> HBaseTable:
        return HBaseTable(Gateways([self._server.address]), Schema())


class TestTable(TableContract):
    @pytest.fixture
    def harness(self, served: Served) -> Harness:
        return Harness(served)


async def test_keys_begin_with_the_salt_of_their_topic(table: HBaseTable, hbase: FakeHBase) -> None:
    await table.change(M, ROW, None, {HEAD: b"1"})
    await table.put(M, {b"ns:topic:mark": b"m"})
    await table.put(Space.RECORDS, {b"ns:topic:": b"r"})
    salt = salt_of(b"ns:topic:")
    assert len(salt) == 1
    assert hbase.rows[NAME].keys(b"", b"\xff" * 40) == [salt + ROW, salt + b"ns:topic:mark"]
    assert hbase.rows[b"broker_records"].keys(b"", b"\xff") == [b"ns:topic:"]


async def test_a_change_and_a_get_are_one_call_each(table: HBaseTable, hbase: FakeHBase) -> None:
    await table.change(M, ROW, None, {HEAD: b"1", column(1): b"a"})
    await table.change(M, ROW, b"1", {HEAD: b"2", column(2): b"b"}, [column(1)])
    await table.change(M, ROW, b"2", {HEAD: b"3"}, clear=True)
    await table.get(M, ROW, [HEAD, column(1)])
    assert hbase.calls == ["change"] * 3 + ["get"]
    assert await table.get(M, ROW, []) == {}
    assert len(hbase.calls) == 4, "a get of no columns makes no call"


async def test_a_change_without_an_answer_is_unknown_although_it_was_done(
    table: HBaseTable, hbase: FakeHBase
) -> None:
    def lose(apply):
        apply()
        raise ConnectionAbortedError

    hbase.endings.append(lose)
    with pytest.raises(WriteUnknown):
        await table.change(M, ROW, None, {HEAD: b"1"})
    assert (await table.get(M, ROW, [HEAD]))[HEAD].value == b"1"


async def test_too_large_cells_and_changes_are_not_sent(
    table: HBaseTable, hbase: FakeHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CELL_BYTES_MAX", 100)
    monkeypatch.setattr(module, "CHANGE_BYTES_MAX", 250)
    await table.change(
        M, ROW, None, {HEAD: bytes(50), column(1): bytes(100), column(2): bytes(100)}
    )
    calls = len(hbase.calls)
    with pytest.raises(BodyTooLarge):
        await table.change(M, b"n:t:2", None, {HEAD: b"1", column(1): bytes(101)})
    puts = {HEAD: bytes(51), column(1): bytes(100), column(2): bytes(100)}
    with pytest.raises(BodyTooLarge):
        await table.change(M, b"n:t:2", None, puts)
    with pytest.raises(BodyTooLarge):
        await table.put(M, {ROW: bytes(101)})
    assert len(hbase.calls) == calls


# How much a read transfers.


async def fill(table: HBaseTable, sizes: list[int], row: bytes = ROW) -> None:
    puts = {column(n): bytes(size) for n, size in enumerate(sizes)}
    assert await table.change(M, row, None, {HEAD: b"1", **puts})


async def test_full_entries_are_read_in_one_call(table: HBaseTable, hbase: FakeHBase) -> None:
    await fill(table, [16 << 10] * 100)
    del hbase.calls[:]
    found = await table.cells(M, ROW, b"e", b"f", cells_max=4096, bytes_max=1 << 20)
    assert (len(found.cells), found.more) == (63, True)
    assert hbase.calls == ["get"]
    assert hbase.sent <= (1 << 20) + (32 << 10)


async def test_small_entries_take_more_calls_only_for_the_first_read(
    table: HBaseTable, hbase: FakeHBase
) -> None:
    await fill(table, [300] * 4000)
    for gets in (3, 1):
        del hbase.calls[:]
        found = await table.cells(M, ROW, b"e", b"f", cells_max=4096, bytes_max=1 << 21)
        assert (len(found.cells), found.more) == (4000, False)
        assert len(hbase.calls) == gets


async def test_only_the_first_read_of_large_entries_reads_too_far(
    table: HBaseTable, hbase: FakeHBase
) -> None:
    await fill(table, [1 << 20] * 8)
    first, seen, sent = b"e", 0, []
    more = True
    while more:
        hbase.sent = 0
        cells, more = await table.cells(M, ROW, first, b"f", cells_max=4096, bytes_max=1 << 20)
        first = cells[-1][0] + b"\0" if cells else first
        seen += len(cells)
        sent.append(hbase.sent >> 20)
    assert seen == 8
    assert sent == [8, *[1] * 7, 0]


async def test_a_reverse_read_reads_only_the_wanted_values(
    table: HBaseTable, hbase: FakeHBase
) -> None:
    await fill(table, [1000] * 3000)
    hbase.sent = 0
    found = await table.cells(M, ROW, b"e", b"f", cells_max=20, bytes_max=1 << 20, reverse=True)
    assert [name for name, _ in found.cells] == [column(n) for n in range(2999, 2979, -1)]
    assert found.more
    assert hbase.sent == 3000 * 4 + 20 * 1000


@pytest.mark.parametrize("limits", [(2, 1 << 20), (9, 2500)])
async def test_a_reverse_read_keeps_its_limits_despite_concurrent_changes(
    table: HBaseTable, hbase: FakeHBase, limits: tuple[int, int]
) -> None:
    await fill(table, [1000] * 5)
    put_between(hbase, {HEAD: b"2", **{column(n): bytes(1000) for n in (5, 6)}})
    cells_max, bytes_max = limits
    found = await table.cells(
        M, ROW, b"e", b"f", cells_max=cells_max, bytes_max=bytes_max, reverse=True
    )
    assert [name for name, _ in found.cells] == [column(6), column(5)]
    assert found.more


async def test_a_reverse_read_during_a_clear_returns_no_cells(
    table: HBaseTable, hbase: FakeHBase
) -> None:
    await fill(table, [1000] * 5)
    put_between(hbase, {HEAD: b"2"}, clear=True)
    found = await table.cells(M, ROW, b"e", b"f", cells_max=9, bytes_max=999, reverse=True)
    assert (found.cells, found.more) == ([], True)


def put_between(hbase: FakeHBase, puts: dict[bytes, bytes], *, clear: bool = False) -> None:
    """Change the row right after the next get."""
    get = hbase.get

    def once(name, asked):
        found = get(name, asked)
        hbase.get = get
        assert hbase.rows[NAME].change(KEY, b"1", puts, (), 9, clear=clear) is not None
        return found

    hbase.get = once


# Writes of many calls.


async def test_many_marks_are_split_into_calls(
    table: HBaseTable, hbase: FakeHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.requests, "FRAME_BYTES_MAX", 10_000)
    marks = {b"n:t:%04d" % n: bytes([n]) * 900 for n in range(1, 51)}
    await table.put(M, marks)
    assert 5 <= hbase.calls.count("put") <= 10
    found = await table.scan(M, b"n:t:", b"n:t:\xff", limit=99)
    assert {key: cell.value for key, cell in found} == marks
    monkeypatch.setattr(module, "DELETES_MAX", 20)
    await table.delete(M, list(marks))
    assert hbase.calls.count("delete") == 3
    assert await table.scan(M, b"n:t:", b"n:t:\xff", limit=99) == []


async def test_a_write_is_certainly_not_sent_only_if_its_first_call_failed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DELETES_MAX", 1)
    asked = []

    async def refuse(name, request, place):
        asked.append(request)
        if len(asked) in refused:
            raise NotWritten("no gateway")
        return []

    gateways = Gateways([served.address])
    monkeypatch.setattr(gateways, "ask", refuse)
    table = HBaseTable(gateways, Schema())
    refused = {1}
    with pytest.raises(NotWritten):
        await table.delete(M, [b"n:t:1", b"n:t:2"])
    refused = {3}
    with pytest.raises(WriteUnknown, match="the rest"):
        await table.delete(M, [b"n:t:1", b"n:t:2"])


async def test_rows_that_were_not_deleted_are_reported(table: HBaseTable, hbase: FakeHBase) -> None:
    hbase.deleteMultiple = lambda name, deletes: deletes[:1]
    with pytest.raises(WriteUnknown, match="1 rows"):
        await table.delete(M, [b"n:t:1", b"n:t:2"])


@pytest.mark.slow
async def test_changes_of_many_topics_are_in_flight_at_once(
    table: HBaseTable, hbase: FakeHBase
) -> None:
    rows = [b"ns:topic%d:page" % n for n in range(40)]
    assert all(await asyncio.gather(*(table.change(M, row, None, {HEAD: b"1"}) for row in rows)))
    assert hbase.calls == ["change"] * 40

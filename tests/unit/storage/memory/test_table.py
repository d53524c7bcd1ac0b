"""The table in memory beyond its contract: it refuses wrong calls, and a test sets its clock."""

import pytest

from broker.storage.memory.table import MemoryTable, topic_of
from broker.storage.table import HEAD, Space

MESSAGES = Space.MESSAGES
ROW = b"ns:t:\0\0\0\1page"


@pytest.mark.parametrize(
    ("expected", "puts", "deletes"),
    [
        (None, {b"e1": b"1"}, []),
        (None, {HEAD: b""}, []),
        (b"", {HEAD: b"1"}, []),
        (b"0", {HEAD: b"1"}, [HEAD]),
        (b"0", {HEAD: b"1", b"e1": b"1"}, [b"e1"]),
    ],
)
async def test_a_change_that_the_port_does_not_allow_raises(expected, puts, deletes):
    with pytest.raises(ValueError, match="head"):
        await MemoryTable().change(MESSAGES, ROW, expected, puts, deletes)


async def test_rows_of_two_topics_in_one_call_raise():
    table, other = MemoryTable(), ROW.replace(b":t:", b":u:")
    with pytest.raises(ValueError, match="belong to one topic"):
        await table.scan(MESSAGES, ROW, other, limit=1)
    with pytest.raises(ValueError, match="belong to one topic"):
        await table.put(MESSAGES, {ROW: b"1", other: b"1"})
    with pytest.raises(ValueError, match="belong to one topic"):
        await table.delete(MESSAGES, [ROW, other])
    await table.put(Space.RECORDS, {ROW: b"1", other: b"1"})
    assert len(await table.scan(Space.RECORDS, b"", b"\xff", limit=9)) == 2


def test_a_key_without_a_topic_raises():
    assert topic_of(ROW) == b"ns:t:"
    assert topic_of(b"ns:t:") == b"ns:t:"
    with pytest.raises(ValueError, match="unpack"):
        topic_of(b"ns:t")


async def test_cells_have_the_servers_time_and_a_head_is_never_older_than_the_last():
    times = iter((50, 70, 60))
    table = MemoryTable(server_ms=times.__next__)
    shown = []
    expected = None
    for head in (b"a", b"b", b"c"):
        await table.change(MESSAGES, ROW, expected, {HEAD: head, b"e" + head: b""})
        shown.append((await table.get(MESSAGES, ROW, [HEAD, b"e" + head])).values())
        expected = head
    assert [[cell.server_ms for cell in cells] for cells in shown] == [[50] * 2, [70] * 2, [70] * 2]

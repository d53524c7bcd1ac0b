"""What the table in memory does beyond the contract: it is strict, and its clock is given."""

import random

import pytest

from broker.storage.memory.rows import Row
from broker.storage.memory.table import MemoryTable, topic_of
from broker.storage.table import HEAD, Cell, Space

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
async def test_a_change_that_the_port_does_not_allow_is_the_callers_mistake(
    expected, puts, deletes
):
    with pytest.raises(ValueError, match="head"):
        await MemoryTable().change(MESSAGES, ROW, expected, puts, deletes)


async def test_one_call_names_rows_of_one_topic():
    table, other = MemoryTable(), ROW.replace(b":t:", b":u:")
    with pytest.raises(ValueError, match="several topics"):
        await table.scan(MESSAGES, ROW, other, limit=1)
    with pytest.raises(ValueError, match="several topics"):
        await table.put(MESSAGES, {ROW: b"1", other: b"1"})
    with pytest.raises(ValueError, match="several topics"):
        await table.delete(MESSAGES, [ROW, other])
    await table.put(Space.RECORDS, {ROW: b"1", other: b"1"})
    assert len(await table.scan(Space.RECORDS, b"", b"\xff", limit=9)) == 2


def test_a_key_without_a_topic_is_told():
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


def test_undos_lead_back_through_every_state():
    chance = random.Random(3)
    table = MemoryTable()
    rows = table.spaces[MESSAGES]
    columns = [b"e%d" % n for n in range(6)]
    states: list[dict[bytes, Cell]] = []
    undos = []
    for turn in range(200):
        row = rows.get(ROW)
        states.append(row.get([HEAD, *columns]))
        head = None if row.head is None else row.head.value
        chosen = chance.sample(columns, 3)
        if chance.random() < 0.1:
            undos.append(rows.delete(ROW))
        elif chance.random() < 0.1:
            undos.append(rows.change(ROW, head, {HEAD: b"%d" % turn}, [], None, clear=True))
        else:
            puts = {HEAD: b"%d" % turn, chosen[0]: b"%d" % turn}
            undos.append(rows.change(ROW, head, puts, chosen[1:], None, clear=False))
    for steps in range(1, 201):
        older = rows.get(ROW).before(undos[::-1][:steps])
        assert older.get([HEAD, *columns]) == states[-steps]
        assert older.columns(b"", b"\xff") == sorted(set(states[-steps]) - {HEAD})


def test_an_older_state_is_a_row_of_its_own():
    row = Row()
    row.set(b"e1", Cell(b"1"))
    older = row.before([{b"e1": None}])
    assert (older.columns(b"", b"\xff"), row.columns(b"", b"\xff")) == ([], [b"e1"])

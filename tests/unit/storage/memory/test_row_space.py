"""Rows in memory, and their older states by undo records."""

import random

from broker.storage.memory.row_space import MemoryRow, RowSpace
from broker.storage.table import HEAD, Cell

ROW = b"row"


def test_undos_lead_back_through_every_state():
    chance = random.Random(3)
    rows = RowSpace()
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


def test_an_older_state_does_not_change_its_row():
    row = MemoryRow()
    row.set(b"e1", Cell(b"1"))
    older = row.before([{b"e1": None}])
    assert (older.columns(b"", b"\xff"), row.columns(b"", b"\xff")) == ([], [b"e1"])


def test_reading_an_absent_row_does_not_create_it():
    rows = RowSpace()
    assert rows.get(ROW).get([HEAD, b"e1"]) == {}
    assert rows.change(ROW, b"1", {HEAD: b"2"}, [], None, clear=True) is None
    assert rows.keys(b"", b"z") == []


def test_tens_of_thousands_of_rows_keep_their_order():
    rows, order = RowSpace(), list(range(20_000))
    random.Random(1).shuffle(order)
    for number in order:
        rows.put(b"%05d" % number, b"%d" % number, None)
    for number in order[::2]:
        rows.delete(b"%05d" % number)
    left = sorted(order[1::2])
    assert rows.keys(b"", b"z") == [b"%05d" % number for number in left]
    found = rows.scan(b"", b"z", limit=7, reverse=True)
    assert [int(head.value) for _, head in found] == left[:-8:-1]

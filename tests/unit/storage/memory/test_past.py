import random

from broker.model import log_key
from broker.storage.columns import POINTER, column_of, rolled_column
from broker.storage.memory.past import ROWS_MAX, STATES_MAX, Past
from broker.storage.memory.row_space import RowSpace
from broker.storage.table import HEAD, Space

MESSAGES = Space.MESSAGES
ROW = b"row"


class Kept:
    """Rows whose past is kept."""

    def __init__(self) -> None:
        self.rows, self.past, self.chance = RowSpace(), Past(), random.Random(1)

    def change(self, number: int, *columns: bytes, row: bytes = ROW) -> None:
        head = self.rows.get(row).head
        puts = {HEAD: b"%d" % number, **dict.fromkeys(columns, b"")}
        expected = None if head is None else head.value
        undo = self.rows.change(row, expected, puts, [], None, clear=False)
        assert undo is not None
        self.past.note(MESSAGES, row, undo, puts)

    def older(self, row: bytes = ROW) -> set[bytes | None]:
        """Return the heads of all older states that many reads show."""
        heads = set()
        for _ in range(200):
            older = self.past.older(MESSAGES, row, self.rows.get(row), self.chance)
            if older is not None:
                heads.add(None if older.head is None else older.head.value)
        return heads


def test_a_row_that_never_changed_has_no_past():
    kept = Kept()
    assert not kept.past.knows(MESSAGES, ROW)
    assert kept.past.older(MESSAGES, ROW, kept.rows.get(ROW), kept.chance) is None
    assert list(kept.past.heads(MESSAGES, ROW)) == []


def test_the_last_changes_leave_older_states():
    kept = Kept()
    kept.change(1)
    kept.change(2)
    assert kept.older() == {None, b"1"}
    assert list(kept.past.heads(MESSAGES, ROW)) == [b"1", None]
    for number in range(3, 21):
        kept.change(number)
    assert kept.older() == {b"%d" % number for number in range(20 - STATES_MAX, 20)}


def test_a_rollback_ends_the_past():
    kept = Kept()
    entry = column_of(log_key(1, 0), POINTER, int.from_bytes(b"x", "big"))
    kept.change(1)
    kept.change(2, entry)
    assert kept.older() == {None, b"1"}, "the pointer of the entry is no rollback"
    kept.change(3, rolled_column(entry))
    assert kept.older() == set()
    kept.change(4)
    assert kept.older() == {b"3"}


def test_only_the_rows_that_changed_last_have_a_past():
    kept = Kept()
    for number in range(ROWS_MAX + 5):
        kept.change(number, row=b"%04d" % number)
    kept.change(0, row=b"%04d" % 6)
    kept.change(1, row=b"new")
    remembered = kept.past.keys(MESSAGES, b"", b"\xff")
    assert len(remembered) == ROWS_MAX
    assert remembered.isdisjoint(b"%04d" % number for number in range(5))
    assert b"0006" in remembered
    assert kept.past.keys(MESSAGES, b"0010", b"0012") == {b"0010", b"0011", b"0012"}
    assert kept.past.keys(Space.RECORDS, b"", b"\xff") == set()

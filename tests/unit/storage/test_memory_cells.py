from hypothesis import given
from hypothesis import strategies as st

from broker.storage.cells import CONTROL_COLUMN, Cell, RowCells
from broker.storage.memory_cells import MemoryTable

keys = st.binary(max_size=2)
puts = st.lists(st.tuples(keys, st.sampled_from([b"p", b"t"]), st.integers(0, 3), st.binary()))


@given(puts, st.lists(keys))
def test_a_table_is_a_sorted_map_of_the_highest_tags(writes, deleted):
    table, model = MemoryTable(), {}
    for key, column, tag, value in writes:
        table.put(RowCells(key, {column: Cell(tag, value)}))
        known = model.setdefault(key, {}).get(column)
        if known is None or tag >= known.tag:
            model[key][column] = Cell(tag, value)
    table.delete(deleted)
    for key in deleted:
        model.pop(key, None)
    expected = [RowCells(key, model[key]) for key in sorted(model)]
    assert table.scan(b"", b"\xff" * 3, 1 << 20, reverse=False) == expected
    assert table.scan(b"", b"\xff" * 3, 2, reverse=True) == expected[::-1][:2]
    assert table.scan(b"a", b"b", 1 << 20, reverse=False) == [
        row for row in expected if b"a" <= row.key < b"b"
    ]
    assert table.weigh(b"", b"\xff" * 3)[0] == len(expected)


def test_the_control_cell_is_compared_whole():
    table = MemoryTable()
    assert not table.check_and_put(b"k", b"", b"one")
    assert table.check_and_put(b"k", None, b"one")
    assert not table.check_and_put(b"k", None, b"two")
    assert not table.check_and_put(b"k", b"on", b"two")
    assert table.check_and_put(b"k", b"one", b"two")
    columns = table.get(b"k")
    assert columns is not None
    assert columns[CONTROL_COLUMN].value == b"two"


def test_what_was_read_does_not_change_afterwards():
    table = MemoryTable()
    table.put(RowCells(b"k", {b"p": Cell(1, b"old")}))
    before, [scanned] = table.get(b"k"), table.scan(b"", b"z", 9, reverse=False)
    table.put(RowCells(b"k", {b"p": Cell(2, b"new")}))
    assert before == scanned.columns == {b"p": Cell(1, b"old")}

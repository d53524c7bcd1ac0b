import pytest

from broker.errors import StorageCorrupt
from broker.model import ROW_ID_BYTES, TopicId, row_id
from broker.storage import visibility
from broker.storage.cells import Cell, RowCells
from broker.storage.control import Control, EpochRange
from broker.storage.keys import IDEMPOTENCY, LogId, row_key
from broker.storage.memory_cells import MemoryTable
from broker.storage.ports import Batch, Row, Segment, SideRow

LOG = LogId(TopicId("default", "notes"), 1)
A, B, C = row_id(10, 0), row_id(11, 0), row_id(12, 0)
# Epoch 1 owns ids up to A, epoch 3 what follows up to C.
CONTROL = Control(
    3, "n", 1, pointer=C, ranges=(EpochRange(1, 1, row_id(0, 0)), EpochRange(3, 3, A))
)


def table(*batches: tuple[Batch, int]) -> MemoryTable:
    """A table after the batches arrived, in this order."""
    filled = MemoryTable()
    for batch, epoch in batches:
        filled.put_all(visibility.rows_of(LOG, batch, epoch))
    return filled


def judged(filled: MemoryTable, row: bytes) -> Row | None:
    columns = filled.get(row_key(LOG, row))
    assert columns is not None
    return visibility.judged(CONTROL, row, columns)


def inline(row: bytes, payload: bytes, pointer: int | None = None) -> Batch:
    return Batch([Segment([row], [payload], pointer)], row)


def test_a_batch_becomes_rows_in_order():
    segments = [Segment([A, B], [b"a", b"b"], 7, None, 500), Segment([C], None, None, -2)]
    rows = list(visibility.rows_of(LOG, Batch(segments, C), 3))
    assert [row.key for row in rows] == [row_key(LOG, row) for row in (A, B, C)]
    assert {cell.tag for row in rows for cell in row.columns.values()} == {6}
    assert set(rows[0].columns) == {b"p", b"t", b"x", b"e"}
    assert set(rows[2].columns) == {b"r", b"e"}


def test_what_was_put_is_what_is_judged():
    segments = [Segment([B], [b""], 0, None, 500), Segment([C], None, 9, -2)]
    filled = table((Batch(segments, C), 3))
    assert judged(filled, B) == Row(B, b"", 0, None, 500)
    assert judged(filled, C) == Row(C, None, 9, -2)


@pytest.mark.parametrize(("row", "epoch", "counts"), [(A, 1, True), (A, 3, False), (B, 1, False)])
def test_a_row_counts_under_the_epoch_that_owns_its_id(row, epoch, counts):
    assert (judged(table((inline(row, b"x"), epoch)), row) is not None) is counts


def test_a_row_above_the_pointer_does_not_count():
    above = row_id(13, 0)
    assert judged(table((inline(above, b"x"), 3)), above) is None


def test_a_row_without_an_epoch_of_its_own_does_not_count():
    filled = table()
    filled.put(RowCells(row_key(LOG, B), {b"p": Cell(6, b"x")}))
    assert judged(filled, B) is None


@pytest.mark.parametrize("late_first", [False, True])
def test_a_fenced_leaders_cells_at_the_same_key_are_none_of_the_row(late_first):
    batches = [(inline(B, b"old", pointer=7), 1), (inline(B, b"new"), 3)]
    filled = table(*(batches if not late_first else batches[::-1]))
    assert judged(filled, B) == Row(B, b"new")


def test_a_negated_pointer_stays_whatever_arrives_again():
    published = inline(B, b"x", pointer=7)
    filled = table((published, 3))
    filled.put(visibility.negation_of(LOG, B, 7, 3))
    assert judged(filled, B) == Row(B, b"x", -7)
    filled.put_all(visibility.rows_of(LOG, published, 3))
    assert judged(filled, B) == Row(B, b"x", -7)


def test_a_later_epoch_negates_an_earlier_ones_row():
    filled = table((inline(A, b"x", pointer=7), 1))
    filled.put(visibility.negation_of(LOG, A, -7, 3))
    assert judged(filled, A) == Row(A, b"x", -7)


def test_side_rows_count_with_their_id():
    rows = [
        SideRow(IDEMPOTENCY, b"k" * 16, A, b"one"),
        SideRow(IDEMPOTENCY, b"k" * 16, B, b"two"),
    ]
    cells = list(visibility.side_rows_of(LOG, Batch([], B, rows), 1))
    assert [row.key[-ROW_ID_BYTES:] for row in cells] == [A, B]
    judgements = [visibility.judged_side(CONTROL, LOG, IDEMPOTENCY, row) for row in cells]
    assert judgements == [rows[0], None]


def test_a_cell_that_is_no_number_is_corrupt():
    filled = table((inline(B, b"x", pointer=7), 3))
    filled.put(RowCells(row_key(LOG, B), {b"t": Cell(7, b"short")}))
    with pytest.raises(StorageCorrupt):
        judged(filled, B)

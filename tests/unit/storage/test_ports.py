from __future__ import annotations

import pytest

from broker.model import row_id
from broker.storage.ports import PlainRows, Row

IDS = [row_id(number, 0) for number in range(4)]
PAYLOADS = [b"a", b"", b"c", b"d"]
ROWS = [Row(i, p) for i, p in zip(IDS, PAYLOADS, strict=True)]


def test_plain_rows_are_a_sequence_of_rows() -> None:
    plain = PlainRows(IDS, PAYLOADS)
    assert len(plain) == 4
    assert list(plain) == ROWS
    assert (plain[0], plain[-1]) == (ROWS[0], ROWS[-1])
    assert plain[1:3] == ROWS[1:3]
    assert all(type(row) is Row for row in plain)
    assert ROWS[2] in plain
    assert not PlainRows([], [])


def test_plain_rows_equal_the_same_rows_and_no_others() -> None:
    plain = PlainRows(IDS, PAYLOADS)
    assert plain == ROWS
    assert plain == ROWS
    assert plain == PlainRows(list(IDS), list(PAYLOADS))
    assert plain != ROWS[:-1]
    assert plain != [*ROWS[:-1], ROWS[-1]._replace(pointer=1)]
    assert plain != object()
    with pytest.raises(TypeError):
        hash(plain)

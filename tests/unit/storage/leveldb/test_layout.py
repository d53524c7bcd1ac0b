import pytest

from broker.storage.leveldb.layout import cells_prefix, has_cells, head_key
from broker.storage.table import Space

SPACE = Space.MESSAGES


def test_heads_sort_as_their_rows_and_apart_from_cells() -> None:
    assert head_key(SPACE, b"a") < head_key(SPACE, b"a\x00") < head_key(SPACE, b"b")
    leads = [head_key(space, b"") for space in Space]
    leads += [cells_prefix(space, b"")[:1] for space in Space if has_cells(space)]
    assert len(set(leads)) == 5


def test_no_two_rows_share_a_prefix_of_cells() -> None:
    rows = [b"", b"\x00", b"\x00\x00", b"a", b"ab", b"a\x00", b"\x00\x01a", b"\xff" * 300]
    prefixes = [cells_prefix(SPACE, row) for row in rows]
    for one in prefixes:
        assert [other for other in prefixes if other.startswith(one)] == [one]
    with pytest.raises(ValueError, match="the limit is 65535"):
        cells_prefix(SPACE, bytes(1 << 16))
    with pytest.raises(ValueError, match="no cell except its head"):
        cells_prefix(Space.RECORDS, b"a")

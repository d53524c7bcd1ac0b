"""Pieces become one body of any size."""

import pytest

from broker.http.pieces import JOIN_BYTES, SLAB_BYTES, Pieces

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "joins"),
    [
        (0, 0),
        (1, 0),
        (SLAB_BYTES - 1, 0),
        (SLAB_BYTES, 1),
        (SLAB_BYTES + 1, 1),
        (JOIN_BYTES, 1),
        (JOIN_BYTES + SLAB_BYTES, 1),
        (JOIN_BYTES + 9 * MIB + 5, 1),
    ],
)
def test_pieces_become_one(size: int, joins: int) -> None:
    body = bytes(range(251)) * (1 + size // 251)
    pieces, joined = Pieces(), 0
    for at in range(0, size, 300_000):
        pieces.add(body[at : min(at + 300_000, size)])
        if pieces.join_is_due:
            pieces.join()
            joined += 1
    if pieces.in_slabs:
        pieces.join()
        joined += 1
    assert pieces.size == size
    assert pieces.whole() == body[:size]
    assert joined == joins


def test_slabs_are_not_forgotten() -> None:
    pieces = Pieces()
    pieces.add(bytes(SLAB_BYTES))
    with pytest.raises(AssertionError):
        pieces.whole()


def test_cleared_pieces_are_gone() -> None:
    pieces = Pieces()
    pieces.add(bytes(SLAB_BYTES + 1))
    pieces.add(b"x")
    pieces.clear()
    assert not pieces.in_slabs
    assert pieces.whole() == b""

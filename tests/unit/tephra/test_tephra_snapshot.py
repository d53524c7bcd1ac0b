"""Tephra's snapshot codec, against bytes that Tephra's own server sent."""

from broker.transactions.tephra_snapshot import (
    PER_BLOCK,
    InProgress,
    TephraState,
    encode_state,
    upper_bound,
)
from broker.wire.varint import encode_long, read_long
from tests.unit.tephra.vectors import VECTORS


def recorded() -> bytes:
    """The snapshot that Tephra's server sent: of one transaction with a checkpoint, after one commit."""
    answer = next(each.answer for each in VECTORS if each.method == "getSnapshot")
    start = 8 + len("getSnapshot") + 4 + 3  # Its head, its number, the field.
    size = int.from_bytes(answer[start : start + 4], "big")
    return answer[start + 4 : start + 4 + size]


def numbers(encoded: bytes) -> list[int]:
    found, at = [], 0
    while at < len(encoded):
        value, at = read_long(encoded, at)
        found.append(value)
    return found


def test_a_snapshot_has_the_bytes_of_tephra_s() -> None:
    expected = recorded()
    _, now_ms, read_pointer, write_pointer, *rest = numbers(expected[:-5])
    one, expires_ms, bound = rest[2:5]
    assert bound == upper_bound(one, 0, [read_pointer])
    state = TephraState(
        now_ms,
        read_pointer,
        write_pointer,
        in_progress=[InProgress(one, expires_ms, bound, long=False, checkpoints=[write_pointer])],
        committed=[(one + 1, [b"k"])],
    )
    assert encode_state(state) == expected


def test_an_empty_snapshot_is_four_numbers_and_four_ends() -> None:
    assert encode_state(TephraState(1, 2, 3)) == bytes((8, 2, 4, 6, 0, 0, 0, 0))


def test_every_part_stands_in_its_place() -> None:
    state = TephraState(
        1,
        2,
        3,
        invalids=[5, 6],
        in_progress=[InProgress(10, 20, 9, long=True), InProgress(11, 21, 9, checkpoints=[12, 13])],
        committing=[(11, [b"ab", b""])],
        committed=[(7, [b"x"]), (7, [b"x", b"y"]), (8, [])],
    )
    head = [4, 1, 2, 3]
    invalids = [2, 5, 6, 0]
    entries = [10, 20, 9, 1, 0, 11, 21, 9, 0, 2, 12, 13, 0, 12, 21, 9, 2, 0, 13, 21, 9, 2, 0]
    expected = b"".join(map(encode_long, [*head, *invalids, 4, *entries, 0]))
    expected += b"".join(map(encode_long, [1, 11, 2, 2])) + b"ab" + encode_long(0) * 3
    expected += b"".join(map(encode_long, [1, 7, 2, 1])) + b"x" + encode_long(1) + b"y"
    expected += b"".join(map(encode_long, [0, 1, 8, 0, 0]))
    assert encode_state(state) == expected


def test_large_lists_are_written_in_blocks() -> None:
    count = 3 * PER_BLOCK + 1
    keys = [b"%d" % number for number in range(count)]
    state = TephraState(1, 2, 3, invalids=range(count), committed=[(9, keys)])
    encoded = encode_state(state)
    assert encoded.startswith(bytes((8, 2, 4, 6)) + encode_long(PER_BLOCK) + encode_long(0))
    assert encoded.endswith(encode_long(1) + encode_long(4) + keys[-1] + b"\0\0")


def test_the_upper_bound_is_below_the_transactions_in_progress() -> None:
    assert upper_bound(100, 90, [50, 60]) == 49
    assert upper_bound(100, 90, []) == 90
    assert upper_bound(100, 200, []) == 99

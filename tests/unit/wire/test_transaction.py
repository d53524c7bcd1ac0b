import base64
import json
import struct
import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, Overloaded
from broker.model import Snapshot
from broker.wire import transaction
from broker.wire.transaction import (
    decode_snapshot,
    decode_transaction,
    encode_snapshot,
    encode_transaction,
)

STOP = b"\x00"
I64_MAX = (1 << 63) - 1

longs = st.integers(-I64_MAX - 1, I64_MAX)
pointer_lists = st.lists(longs, max_size=10)
snapshots = st.builds(
    Snapshot,
    transaction_id=longs,
    read_pointer=longs,
    write_pointer=longs,
    invalids=pointer_lists,
    in_progress=pointer_lists,
    first_short_in_progress=longs,
    long=st.booleans(),
    checkpoint_pointers=pointer_lists,
    visibility=st.sampled_from(Snapshot.Visibility),
)


def i64(number: int, value: int) -> bytes:
    return struct.pack(">bhq", 10, number, value)


def i32(number: int, value: int) -> bytes:
    return struct.pack(">bhi", 8, number, value)


def a_list(number: int, values: list[int]) -> bytes:
    return struct.pack(">bhbi", 15, number, 10, len(values)) + struct.pack(
        f">{len(values)}q", *values
    )


@given(snapshots, st.binary(max_size=3))
def test_a_snapshot_comes_back(snapshot, rest):
    body = encode_transaction(snapshot)
    lists = (snapshot.invalids, snapshot.in_progress, snapshot.checkpoint_pointers)
    assert len(body) == 83 + 8 * sum(map(len, lists))
    assert decode_transaction(body + rest) == snapshot


@given(snapshots, st.data())
def test_a_snapshot_that_ends_early_is_refused(snapshot, data):
    body = encode_transaction(snapshot)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(BadRequest, match=r"^transaction: "):
        decode_transaction(cut)


def test_missing_fields_have_the_originals_defaults():
    assert decode_transaction(STOP) == Snapshot(
        transaction_id=0, read_pointer=0, write_pointer=0, first_short_in_progress=0, long=True
    )


@pytest.mark.parametrize(("kind", "long"), [(1, False), (2, True), (0, True), (7, True)])
def test_any_type_but_short_is_long(kind, long):
    assert decode_transaction(i32(6, kind) + STOP).long is long


@pytest.mark.parametrize(("level", "name"), [(2, "SNAPSHOT_EXCLUDE_CURRENT"), (9, "SNAPSHOT")])
def test_an_unknown_level_is_snapshot(level, name):
    assert decode_transaction(i32(9, level) + STOP).visibility.name == name


def test_fields_come_in_any_order_and_the_last_one_counts():
    body = a_list(4, [9]) + i64(2, 5) + i64(1, 7) + i64(2, 6) + a_list(4, [3, 2]) + STOP
    snapshot = decode_transaction(body)
    assert (snapshot.transaction_id, snapshot.read_pointer) == (7, 6)
    assert list(snapshot.in_progress) == [2, 3]


UNKNOWN = {
    "bool": b"\x02\x00\x14\x01",
    "byte": b"\x03\x00\x14\x01",
    "double": b"\x04\x00\x14" + bytes(8),
    "i16": b"\x06\x00\x14\x01\x01",
    "string": b"\x0b\x00\x14\x00\x00\x00\x03abc",
    "struct": b"\x0c\x00\x14" + i64(1, 1) + b"\x0c\x00\x02" + STOP + STOP,
    "map": b"\x0d\x00\x14\x0b\x0a\x00\x00\x00\x01" + b"\x00\x00\x00\x01k" + bytes(8),
    "fixed map": b"\x0d\x00\x14\x08\x02\x00\x00\x00\x02" + bytes(10),
    "empty map": b"\x0d\x00\x14\x00\x00\x00\x00\x00\x00",
    "set": b"\x0e\x00\x14\x0c\x00\x00\x00\x02" + STOP + STOP,
    "list of lists": b"\x0f\x00\x14\x0f\x00\x00\x00\x01" + b"\x06\x00\x00\x00\x02" + bytes(4),
    "negative number": b"\x0a\xff\xff" + bytes(8),
    "known number, other type": i32(2, 77),
    "known list, other type": i64(3, 77),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_fields_are_skipped(name):
    body = i64(1, 7) + UNKNOWN[name] + i64(2, 5) + STOP
    assert decode_transaction(body) == decode_transaction(i64(1, 7) + i64(2, 5) + STOP)


def nested(levels: int) -> bytes:
    return b"\x0c\x00\x14" * levels + STOP * levels + STOP


@pytest.mark.parametrize(
    "body",
    {
        "empty": b"",
        "no stop": i64(1, 7),
        "unknown type": b"\x01\x00\x14\x00",
        "negative type": b"\xff\x00\x14\x00",
        "negative count": b"\x0f\x00\x03\x0a\xff\xff\xff\xff" + STOP,
        "negative string": b"\x0b\x00\x14\xff\xff\xff\xff" + STOP,
        "negative set": b"\x0e\x00\x14\x0b\xff\xff\xff\xff" + STOP,
        "list of strings": b"\x0f\x00\x03\x0b\x00\x00\x00\x01\x00\x00\x00\x00" + STOP,
        "list too short": b"\x0f\x00\x03\x0a\x00\x00\x00\x02" + bytes(8) + STOP,
        "string too short": b"\x0b\x00\x14\x7f\xff\xff\xff" + STOP,
        "endless list of strings": b"\x0f\x00\x14\x0b\x7f\xff\xff\xff" + bytes(400),
        "endless map of nothing": b"\x0d\x00\x14\x00\x00\x7f\xff\xff\xff" + bytes(40),
        "endless list": b"\x0f\x00\x03\x0a\x7f\xff\xff\xff" + bytes(40),
        "nested too deeply": nested(40),
    }.items(),
    ids=lambda item: item[0],
)
def test_malformed_transactions_are_refused_in_bounded_memory(body):
    tracemalloc.start()
    with pytest.raises(BadRequest, match=r"^transaction: "):
        decode_transaction(body[1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_structs_may_be_nested_a_little():
    assert decode_transaction(nested(10)).long


SKIPPED = {
    "empty structs": b"\x0f\x00\x14\x0c" + (30_000_000).to_bytes(4, "big") + bytes(30_000_000),
    "empty strings": b"\x0f\x00\x14\x0b" + (300_000).to_bytes(4, "big") + bytes(1_200_000),
    "empty lists": b"\x0e\x00\x14\x0f" + (20_000).to_bytes(4, "big") + b"\x0a\0\0\0\0" * 20_000,
    "maps of strings": b"\x0d\x00\x14\x0b\x0b" + (10_000).to_bytes(4, "big") + bytes(80_000),
    "fields": b"\x02\x00\x14\x01" * 20_000,
    "fields of a struct": b"\x0c\x00\x14" + b"\x02\x00\x14\x01" * 20_000 + STOP,
    "known fields": i64(1, 7) * 20_000,
}


@pytest.mark.parametrize("name", SKIPPED)
def test_the_number_of_skipped_parts_is_bounded(name):
    with pytest.raises(BadRequest, match="more than 10000 fields and parts"):
        decode_transaction(SKIPPED[name] + STOP)


def test_unknown_fields_of_a_valid_snapshot_stay_below_that_bound():
    numbers = b"\x0f\x00\x14\x0a" + (100_000).to_bytes(4, "big") + bytes(800_000)
    strings = b"\x0f\x00\x15\x0b" + (9_000).to_bytes(4, "big") + b"\0\0\0\1k" * 9_000
    assert decode_transaction(i64(1, 7) + numbers + strings + STOP).transaction_id == 7


@pytest.mark.parametrize(
    "lists", [a_list(3, [1, 2]) + a_list(4, [3, 4]), a_list(3, [1, 2]) * 2, a_list(3, [1, 2, 3, 4])]
)
def test_pointers_are_bounded_over_all_lists(monkeypatch, lists):
    monkeypatch.setattr(transaction, "POINTERS_MAX", 3)
    assert list(decode_transaction(a_list(3, [1, 2, 3]) + STOP).invalids) == [1, 2, 3]
    with pytest.raises(BadRequest, match="4 pointers"):
        decode_transaction(lists + STOP)


def test_pointers_are_counted_before_they_are_read():
    counted: list[int] = []
    body = a_list(3, list(range(100))) + a_list(4, [5]) + STOP
    decode_transaction(body, take=counted.append)
    assert counted == [13, 1]

    def refuse(_: int) -> None:
        raise Overloaded("There is no room.")

    with pytest.raises(Overloaded):
        decode_transaction(body, take=refuse)


@pytest.mark.slow
def test_a_million_pointers_take_eight_bytes_each():
    many = list(range(0, 3_000_000, 3))
    body = a_list(3, many) + STOP
    tracemalloc.start()
    snapshot = decode_transaction(body)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 9_500_000
    assert peak < 25_000_000
    assert snapshot.is_invalid(2_999_997)
    assert not snapshot.is_invalid(2_999_998)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_snapshot_or_a_bad_request(body):
    try:
        snapshot = decode_transaction(body)
    except BadRequest:
        return
    assert decode_transaction(encode_transaction(snapshot)) == snapshot


@given(pointer_lists, st.booleans(), st.integers(1, 6))
def test_pointers_come_in_order(given_, in_order, run):
    listed = sorted(given_) if in_order else given_
    body = b"xyz" + struct.pack(f">{len(listed)}q", *listed) + b"rest"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transaction, "_RUN", run)
        assert list(transaction._of_bytes(body, 3, len(listed))) == sorted(listed)
        assert list(transaction._ascending(array("q", listed))) == sorted(listed)


@pytest.mark.parametrize(("count", "items"), [(0, 0), (1, 1), (8, 1), (9, 2), (1_000_000, 125_000)])
def test_eight_pointers_count_as_one_item(count, items):
    assert transaction.pointer_items(count) == items


def test_a_snapshot_of_arrays_is_that_of_lists():
    listed = [1, 5, 9]
    numbers = array("q", listed)
    one = Snapshot(transaction_id=10, read_pointer=9, invalids=numbers, in_progress=numbers)
    other = Snapshot(transaction_id=10, read_pointer=9, invalids=listed, in_progress=listed)
    assert one == other
    assert [one.is_visible(each) for each in range(12)] == [
        other.is_visible(each) for each in range(12)
    ]


@given(snapshots)
def test_all_three_forms_say_the_same(snapshot):
    body = encode_transaction(snapshot)
    parts = json.loads(json.dumps(encode_snapshot(snapshot)))
    for form in (body.hex(), body.hex().upper(), base64.b64encode(body).decode(), parts):
        assert decode_snapshot(form) == snapshot


def test_most_parts_may_be_missing():
    expected = Snapshot(transaction_id=5, read_pointer=3)
    assert decode_snapshot({"transaction_id": 5, "read_pointer": "3"}) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"write_pointer": "5.0"},
        {"write_pointer": "05"},
        {"write_pointer": str(1 << 63)},
        {"write_pointer": (1 << 53) + 1},
        {"in_progress": [(1 << 60) + 1]},
        {"write_pointer": True},
        {"write_pointer": 1 << 64},
        {"read_pointer": None},
        {"invalids": 5},
        {"invalids": [None]},
        {"long": 1},
        {"visibility": 1},
        {"visibility": "ALL"},
        {"visibility": ["SNAPSHOT"]},
        {"readPointer": 5},
    ],
)
def test_wrong_parts_are_refused(wrong):
    with pytest.raises(BadRequest, match=r"^snapshot: "):
        decode_snapshot({"transaction_id": 5, "read_pointer": 3} | wrong)


@pytest.mark.parametrize("value", [None, 5, [], {}, {"read_pointer": 3}, "", "0a00", "é", "Cg=A"])
def test_json_that_is_no_snapshot_is_refused(value):
    with pytest.raises(BadRequest, match=r"^(snapshot|transaction): "):
        decode_snapshot(value)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageCorrupt
from broker.storage import rowvalue
from broker.storage.ports import Segment
from broker.storage.rowvalue import Head

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
HEADS = st.builds(
    Head,
    epoch=st.integers(0, (1 << 64) - 1),
    is_reference=st.booleans(),
    pointer=st.none() | INT64,
    number=st.none() | INT64,
    lifetime_ms=st.none() | INT64,
)


@given(HEADS, st.binary(max_size=40))
def test_a_value_gives_back_its_head_and_payload(head: Head, payload: bytes) -> None:
    value = rowvalue.encode_head(head) + (b"" if head.is_reference else payload)
    assert rowvalue.decode_head(value) == head
    size = rowvalue.head_bytes(value)
    assert rowvalue.HEAD_BYTES[value[0]] == size
    if not head.is_reference:
        assert value[size:] == payload


@given(HEADS, INT64, st.binary(max_size=40))
def test_a_new_pointer_leaves_all_else(head: Head, pointer: int, payload: bytes) -> None:
    payload = b"" if head.is_reference else payload
    value = rowvalue.with_pointer(rowvalue.encode_head(head) + payload, pointer)
    assert value == rowvalue.encode_head(head._replace(pointer=pointer)) + payload


def test_a_plain_row_costs_nine_bytes() -> None:
    head = rowvalue.segment_head(Segment([], [], None), epoch=3)
    assert head == b"\x10" + (3).to_bytes(8, "big")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00" * 9,
        b"\x20" + bytes(8),  # A format that this release does not know.
        b"\x10" + bytes(7),  # Cut.
        b"\x11" + bytes(15),
        b"\x18" + bytes(9),  # A reference with a payload.
    ],
)
def test_what_is_no_value_is_refused(value: bytes) -> None:
    with pytest.raises(StorageCorrupt):
        rowvalue.decode_head(value)


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=40))
def test_small_values_carry_a_number_and_a_checksum(number: int, data: bytes) -> None:
    assert rowvalue.decode_checked(rowvalue.encode_checked(number, data)) == (number, data)


@given(st.binary(max_size=20), st.data())
def test_a_changed_bit_of_a_small_value_is_found(data: bytes, draw: st.DataObject) -> None:
    value = bytearray(rowvalue.encode_checked(7, data))
    bit = draw.draw(st.integers(0, 8 * len(value) - 1))
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StorageCorrupt):
        rowvalue.decode_checked(bytes(value))


def test_a_cut_small_value_is_refused() -> None:
    with pytest.raises(StorageCorrupt):
        rowvalue.decode_checked(b"short")

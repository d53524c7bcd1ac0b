import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.varint import Malformed, encode_bytes, encode_long, read_bytes, read_int, read_long

LONG_MIN = -(1 << 63)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (63, "7e"), (64, "8001"), (-64, "7f")],
)
def test_the_specification_s_examples(value, encoded):
    assert encode_long(value).hex() == encoded
    assert read_long(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(LONG_MIN, -LONG_MIN - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_a_long_is_read_where_it_stands(value, before, after):
    body = before + encode_long(value) + after
    assert read_long(body, len(before)) == (value, len(body) - len(after))


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_an_int_is_a_long_of_five_bytes(value):
    encoded = encode_long(value)
    assert len(encoded) <= 5
    assert read_int(encoded, 0) == (value, len(encoded))


@given(st.integers(1 << 31, 1 << 62))
def test_an_invalid_int_is_refused(value):
    for number in (value, -value - 1):
        with pytest.raises(Malformed):
            read_int(encode_long(number), 0)


@pytest.mark.parametrize("encoded", ["ff" * 9 + "02", "80" * 10 + "00", "ff" * 30])
def test_an_invalid_long_is_refused(encoded):
    with pytest.raises(Malformed):
        read_long(bytes.fromhex(encoded), 0)


@given(st.integers(LONG_MIN, -LONG_MIN - 1))
def test_a_number_that_ends_early_is_an_index_error(value):
    with pytest.raises(IndexError):
        read_long(encode_long(value)[:-1], 0)


@given(st.binary(max_size=200))
def test_bytes_come_back(value):
    assert read_bytes(encode_bytes(value) + b"more", 0) == (value, len(encode_bytes(value)))


def test_bytes_of_a_wrong_length_are_refused():
    with pytest.raises(Malformed):
        read_bytes(b"\x01a", 0)
    with pytest.raises(IndexError):
        read_bytes(b"\x04a", 0)

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageCorrupt
from broker.model import ROW_ID_MIN, row_id
from broker.storage import controlvalue
from broker.storage.control import TOKEN_BYTES, Control, EpochRange, State, claimed

CLAIMED = claimed(None, owner="n1", generation=1, token=bytes(TOKEN_BYTES))
row_ids = st.builds(row_id, st.integers(0, 60), st.integers(0, 3))
tokens = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)


@given(
    epoch=st.integers(0, (1 << 64) - 1),
    owner=st.text(max_size=40),
    generation=st.integers(1, (1 << 31) - 1),
    pointer=row_ids,
    floor=row_ids,
    edits=st.integers(0, 1 << 40),
    state=st.sampled_from(State),
    ranges=st.lists(
        st.builds(EpochRange, st.integers(0, 9), st.integers(0, 9), row_ids), max_size=5
    ),
    older=st.lists(tokens, max_size=3),
    own=tokens,
)
def test_what_is_encoded_comes_back(ranges, older, own, **fields):
    row = Control(ranges=tuple(ranges), older=tuple(older), token=own, **fields)
    assert controlvalue.decode(controlvalue.encode(row)) == row


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_byte_is_noticed(place, change):
    data = bytearray(controlvalue.encode(CLAIMED))
    data[place % len(data)] ^= change
    with pytest.raises(StorageCorrupt):
        controlvalue.decode(bytes(data))


@pytest.mark.parametrize("size", [0, 1, 50])
def test_a_cut_row_is_noticed(size):
    with pytest.raises(StorageCorrupt):
        controlvalue.decode(controlvalue.encode(CLAIMED)[:size])


def test_ranges_that_were_cut_are_noticed():
    data = controlvalue.encode_ranges((EpochRange(1, 2, ROW_ID_MIN),))
    assert controlvalue.decode_ranges(data) == (EpochRange(1, 2, ROW_ID_MIN),)
    with pytest.raises(struct.error):
        controlvalue.decode_ranges(data[:-1])

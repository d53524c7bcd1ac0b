import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model import Snapshot
from broker.wire import pointers

I64_MAX = (1 << 63) - 1
numbers = st.lists(st.integers(-I64_MAX - 1, I64_MAX), max_size=40)


@given(numbers, st.booleans(), st.integers(1, 6))
def test_pointers_come_in_order(given_, in_order, run):
    listed = sorted(given_) if in_order else given_
    body = b"xyz" + struct.pack(f">{len(listed)}q", *listed) + b"rest"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pointers, "_RUN", run)
        assert list(pointers.of_bytes(body, 3, len(listed))) == sorted(listed)
        assert list(pointers.ascending(array("q", listed))) == sorted(listed)


@pytest.mark.parametrize(("count", "items"), [(0, 0), (1, 1), (8, 1), (9, 2), (1_000_000, 125_000)])
def test_eight_pointers_count_as_one_item(count, items):
    assert pointers.items(count) == items


def test_a_snapshot_of_arrays_is_that_of_lists():
    listed = [1, 5, 9]
    numbers = array("q", listed)
    one = Snapshot(transaction_id=10, read_pointer=9, invalids=numbers, in_progress=numbers)
    other = Snapshot(transaction_id=10, read_pointer=9, invalids=listed, in_progress=listed)
    assert one == other
    assert repr(one) == repr(other)
    assert [one.is_visible(each) for each in range(12)] == [
        other.is_visible(each) for each in range(12)
    ]

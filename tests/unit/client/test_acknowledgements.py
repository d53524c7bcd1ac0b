import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client import Leader, Published
from broker.client.acknowledgements import each_of, ids_of
from broker.model import LOG_KEY_MIN, log_key
from broker.topics.log_keys import LogKeys

NOW_MS = 1_700_000_000_000
LEADER = Leader("http://a:1", 1, 2)


def taken(instance: int | None, before: int, count: int) -> list[bytes]:
    """Return the ids that the broker gives one request behind ``before`` other messages of its batch."""
    ids = LogKeys(first_ms=NOW_MS, monotonic_ms=0.0, lead_ms_max=1000, instance=instance)
    if before:
        ids.take(before, NOW_MS, 0.0)
    return [row + LOG_KEY_MIN for row in ids.take(count, NOW_MS, 0.0)]


@pytest.mark.slow
@given(
    st.none() | st.integers(0, 255),
    st.integers(0, 600) | st.integers(65_000, 66_000),
    st.integers(1, 1000) | st.sampled_from([65_536, 65_537, 100_000]),
)
def test_ids_are_those_that_the_broker_gave(instance, before, count):
    ids = taken(instance, before, count)
    assert ids_of(ids[0], ids[-1], count) == ids


@given(
    st.none() | st.integers(0, 255), st.integers(0, 600), st.integers(1, 600), st.integers(1, 600)
)
def test_another_number_of_messages_gives_no_ids(instance, before, count, other):
    ids = taken(instance, before, count)
    if other != count:
        assert ids_of(ids[0], ids[-1], other) is None


def test_each_message_has_its_own_id():
    ids = taken(3, 254, 4)
    published = Published(leader=LEADER, first_id=ids[0], last_id=ids[-1], count=4)
    assert each_of(published, 4) == [
        Published(leader=LEADER, first_id=own, last_id=own, count=1) for own in ids
    ]
    assert each_of(published._replace(replayed=True), 4)[2].replayed


@pytest.mark.parametrize("count", [3, 5])
def test_a_count_that_does_not_fit_gives_no_ids(count):
    ids = taken(3, 254, 4)
    published = Published(leader=LEADER, first_id=ids[0], last_id=ids[-1], count=4)
    assert each_of(published, count) == [Published(leader=LEADER, count=1)] * count


def test_references_and_answers_without_ids_have_no_ids():
    assert each_of(Published(), 3) == [Published()] * 3
    reference = log_key(7, 1) + log_key(6, 1)
    assert ids_of(reference, reference, 1) is None

from __future__ import annotations

import operator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.model import unpack_log_key
from broker.testing.mutants import in_force
from broker.topics.log_keys import LeadExceeded, LogKeys, first_timestamp_ms, is_run

HOUR_MS = 3_600_000
T0 = 1_700_000_000_000


def ids_from(
    first_ms: int = T0, *, lead_ms_max: int = 1000, instance: int | None = None
) -> LogKeys:
    return LogKeys(first_ms=first_ms, monotonic_ms=0, lead_ms_max=lead_ms_max, instance=instance)


steps = st.lists(
    st.tuples(
        st.integers(-HOUR_MS, HOUR_MS),  # The wall clock, from T0.
        st.floats(0, 2000),  # The step of the monotonic clock.
        st.one_of(*[st.integers(1, 600)] * 3, st.sampled_from([65_535, 65_537])),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(steps, st.sampled_from([None, 0, 7, 255]), st.integers(-HOUR_MS, HOUR_MS))
def test_ids_rise_for_every_movement_of_the_clock(
    moves: list[tuple[int, float, int]], instance: int | None, log_ms: int
) -> None:
    first_ms = first_timestamp_ms(T0, T0 + log_ms)
    ids = ids_from(first_ms, instance=instance)
    monotonic_ms = 0.0
    last = b""
    for wall_ms, passed_ms, count in moves:
        monotonic_ms += passed_ms
        try:
            taken = ids.take(count, T0 + wall_ms, monotonic_ms)
        except LeadExceeded:
            continue
        assert len(taken) == count
        assert taken[0] > last
        assert all(map(operator.lt, taken, islice(taken, 1, None)))
        assert min(unpack_log_key(taken[0])) >= 0
        assert unpack_log_key(taken[0])[0] >= first_ms
        last = taken[-1]


@pytest.mark.parametrize("instance", [None, 0, 3, 255])
def test_the_ids_of_one_request_are_a_run_and_no_others_are(instance: int | None) -> None:
    ids = ids_from(instance=instance)
    taken = ids.take(1000, T0, 0)
    assert is_run(taken)
    assert is_run(taken[:1])
    assert not is_run([*taken[:500], *taken[501:]])
    assert not is_run([taken[1], taken[0]])
    assert not is_run([taken[-1], *ids.take(1, T0 + 100, 100)])


@pytest.mark.parametrize(("instance", "per_ms"), [(None, 65536), (0, 256), (3, 256)])
def test_a_full_millisecond_spills_into_the_next(instance: int | None, per_ms: int) -> None:
    ids = ids_from(instance=instance)
    taken = ids.take(2 * per_ms + 1, T0, 0)
    offset = 0 if instance is None else instance << 8
    at = {place: unpack_log_key(taken[place]) for place in (0, per_ms - 1, per_ms, 2 * per_ms)}
    assert at == {
        0: (T0, offset),
        per_ms - 1: (T0, offset + per_ms - 1),
        per_ms: (T0 + 1, offset),
        2 * per_ms: (T0 + 2, offset),
    }
    assert unpack_log_key(ids.take(1, T0, 0)[0]) == (T0 + 2, offset + 1)


@pytest.mark.parametrize("count", [20_000, 100_000])
@pytest.mark.parametrize("instance", [None, 12])
def test_many_in_one_request_stay_in_order(count: int, instance: int | None) -> None:
    taken = ids_from(instance=instance).take(count, T0, 0)
    assert len(set(taken)) == count
    assert taken == sorted(taken)


def test_the_ids_of_instances_are_disjoint() -> None:
    seen: set[bytes] = set()
    for instance in (0, 1, 254, 255):
        taken = ids_from(instance=instance).take(1000, T0, 0)
        assert seen.isdisjoint(taken)
        seen.update(taken)


def test_ids_lead_the_clock_by_a_limit_and_then_wait() -> None:
    ids = ids_from(instance=0, lead_ms_max=10)
    ids.take(256 * 11, T0, 0)  # Milliseconds T0 to T0 + 10.
    assert ids.ahead_ms(T0) == 11
    with pytest.raises(LeadExceeded) as caught:
        ids.take(1, T0, 0)
    assert caught.value.wait_ms == 1
    assert unpack_log_key(ids.take(1, T0, 1.0)[0])[0] == T0 + 11


def test_a_refused_request_takes_no_ids() -> None:
    ids = ids_from(instance=0, lead_ms_max=1)
    first = ids.take(300, T0, 0)
    with pytest.raises(LeadExceeded):
        ids.take(257, T0, 0)
    assert ids.take(1, T0, 0)[0] > first[-1]


def test_a_request_that_alone_is_over_the_limit_is_taken_when_the_ids_do_not_lead() -> None:
    ids = ids_from(instance=0, lead_ms_max=10)
    ids.take(1, T0, 0)
    huge = 256 * 100
    taken = ids.take(huge, T0 + 5, 5)
    assert len(taken) == huge
    with pytest.raises(LeadExceeded):
        ids.take(1, T0 + 6, 6)


def test_a_log_far_ahead_is_followed_and_advances_with_the_monotonic_clock() -> None:
    log_ms = T0 + 24 * HOUR_MS
    ids = LogKeys(
        first_ms=first_timestamp_ms(T0, log_ms), monotonic_ms=500, lead_ms_max=1000, instance=0
    )
    assert unpack_log_key(ids.take(1, T0, 500)[0]) == (log_ms + 1, 0)
    ids.take(256 * 900, T0, 500)
    with pytest.raises(LeadExceeded):
        ids.take(256 * 200, T0, 500)
    ids.take(256 * 200, T0, 700)


def test_after_a_clock_steps_back_ids_still_rise() -> None:
    ids = ids_from()
    ahead = ids.take(1, T0 + HOUR_MS, 10)[0]
    back = ids.take(1, T0, 20)[0]
    assert unpack_log_key(back) == (T0 + HOUR_MS, 1)
    assert back > ahead


@given(st.integers(0, 2 * T0), st.integers(0, 2 * T0))
def test_an_epoch_begins_above_the_clock_and_the_log(now_ms: int, pointer_ms: int) -> None:
    assert first_timestamp_ms(now_ms, pointer_ms) == max(now_ms, pointer_ms) + 1


def test_without_its_guard_a_clock_that_steps_back_repeats_ids() -> None:
    with in_force("ids-rise"):
        ids = ids_from(first_timestamp_ms(T0, T0 + HOUR_MS))
        assert ids.take(2, T0 + 1, 0) == ids.take(2, T0 + 1, 0)

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.clock import (
    JUMP_BELIEVED_AFTER_MS,
    JUMP_MS_MIN,
    JUMPS_MAX,
    Jumps,
    SystemClock,
    WallGuard,
)

T0 = 1_700_000_000_000.0
HOUR_MS = 3_600_000


def test_without_jumps_the_guard_follows_the_wall_clock() -> None:
    guard = WallGuard(T0, 1000)
    assert guard.now_ms(T0 + 5000, 6000) == T0 + 5000


def test_the_guard_follows_slewing_step_by_step() -> None:
    guard = WallGuard(T0, 0)
    wall = T0
    for second in range(1, 3600):
        wall += 1000.4  # 400 ppm fast: more than a second in all.
        assert guard.now_ms(wall, second * 1000) == int(wall)
    assert guard.unsteady_at_ms == 0


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, JUMP_MS_MIN, -JUMP_MS_MIN])
def test_a_jump_counts_after_a_minute_and_not_before(jump_ms: int) -> None:
    guard = WallGuard(T0, 0)
    for boot in range(1000, 1000 + JUMP_BELIEVED_AFTER_MS, 1000):
        assert guard.now_ms(T0 + boot + jump_ms, boot) == T0 + boot, boot
    boot = 1000 + JUMP_BELIEVED_AFTER_MS
    assert guard.now_ms(T0 + boot + jump_ms, boot) == T0 + boot + jump_ms
    assert guard.unsteady_at_ms == boot


def test_a_jump_that_is_reverted_within_a_minute_never_counts() -> None:
    guard = WallGuard(T0, 0)
    assert guard.now_ms(T0 + HOUR_MS, 30_000) == T0 + 30_000
    assert guard.now_ms(T0 + 59_000, 59_000) == T0 + 59_000
    assert guard.now_ms(T0 + 120_000, 120_000) == T0 + 120_000
    assert guard.unsteady_at_ms == 30_000


def test_each_later_jump_begins_a_new_minute() -> None:
    guard = WallGuard(T0, 0)
    for boot, jump_ms, shown_ms in [
        (1000, HOUR_MS, 0),
        (59_000, 2 * HOUR_MS, 0),
        (62_000, 2 * HOUR_MS, 0),
        (118_999, 2 * HOUR_MS, 0),
        (119_000, 2 * HOUR_MS, 2 * HOUR_MS),
    ]:
        assert guard.now_ms(T0 + boot + jump_ms, boot) == T0 + boot + shown_ms


def test_slewing_goes_on_while_a_jump_is_pending() -> None:
    guard = WallGuard(T0, 0)
    wall = T0 + HOUR_MS
    for boot in range(1000, 62_001, 1000):
        wall += 1000.3
        guard.now_ms(wall, boot)
    assert guard.now_ms(wall, 62_000) == int(wall)


@given(
    st.lists(
        st.tuples(st.floats(0, 120_000), st.floats(-HOUR_MS, HOUR_MS) | st.just(0.0)), max_size=60
    )
)
def test_the_time_is_the_boot_clock_plus_an_offset_that_was_real(
    readings: list[tuple[float, float]],
) -> None:
    guard = WallGuard(T0, 0)
    boot = 0.0
    offsets = [T0]
    shown = [T0]
    for passed_ms, jump_ms in readings:
        boot += passed_ms
        offsets.append(T0 + jump_ms)
        shown.append(guard.now_ms(boot + T0 + jump_ms, boot))
        assert any(abs(shown[-1] - boot - offset) <= 1 for offset in offsets)
        assert guard.unsteady_at_ms <= boot
    for one, two in pairwise(shown):
        if two < one - JUMP_MS_MIN:
            # A smaller step back is drift. Only a jump that counted leads further back.
            assert guard.unsteady_at_ms > 0


def test_the_systems_clock_advances_and_is_steady_since_its_start() -> None:
    clock = SystemClock()
    before, monotonic = clock.now_ms(), clock.monotonic()
    assert clock.now_ms() >= before
    assert clock.monotonic() >= monotonic
    assert 0 <= clock.steady_ms() < 60_000


def test_a_jump_forward_makes_no_time_pass() -> None:
    guard = WallGuard(T0, 0)
    guard.now_ms(T0 + 1000 + HOUR_MS, 1000)
    believed = 1000 + JUMP_BELIEVED_AFTER_MS
    assert guard.now_ms(T0 + believed + HOUR_MS, believed) == T0 + believed + HOUR_MS
    for boot in (believed, believed + HOUR_MS):
        assert guard.patient_ms(T0 + boot + HOUR_MS, boot, HOUR_MS) == T0 + boot
    late = believed + HOUR_MS + 1
    assert guard.patient_ms(T0 + late + HOUR_MS, late, HOUR_MS) == T0 + late + HOUR_MS


def test_a_jump_back_counts_at_once_and_many_jumps_count_as_fewer() -> None:
    jumps = Jumps()
    assert jumps.least(-5, 0) == -5
    for number in range(3 * JUMPS_MAX):
        jumps.note(number, 1000 - number)
    assert jumps.least(10**6, 0) == 1000 - (3 * JUMPS_MAX - 1)
    assert jumps.least(10**6, 3 * JUMPS_MAX) == 10**6
    jumps.note(10**6, -7)
    assert jumps.least(0, 0) == -7

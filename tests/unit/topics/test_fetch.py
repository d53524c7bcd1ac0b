from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model import (
    LOG_KEY_MAX,
    LOG_KEY_MIN,
    Poll,
    Snapshot,
    Topic,
    TopicId,
    TransactionUse,
    first_log_key_at,
    log_key,
    log_key_after,
    log_key_before,
    timestamp_of,
)
from broker.topics.fetch import (
    FetchAction,
    FetchStart,
    expires_at_ms,
    judge,
    lives,
    oldest_blocking,
    oldest_live,
    start_of,
)


def topic_of(ttl_ms: int, purged_ms: int = 0) -> Topic:
    """Return a topic whose ttl is given in ms, for tests of single milliseconds."""

    class Fine(Topic):
        @property
        def ttl_ms(self) -> int:
            return ttl_ms

    return Fine(TopicId("ns", "t"), 1, {}, 1, TransactionUse.OPTIONAL, purged_ms)


keys = st.builds(log_key, st.integers(0, 1 << 44), st.integers(0, 0xFFFF))
OLDEST = first_log_key_at(0)


@given(keys, keys)
def test_an_exclusive_start_begins_after_its_id(key: bytes, payload: bytes) -> None:
    start = start_of(Poll(key + payload, inclusive=False), OLDEST)
    assert start == FetchStart(log_key_before(key), key, payload, inline=False)


@given(keys)
def test_an_inclusive_start_at_an_inline_message_takes_it(key: bytes) -> None:
    start = start_of(Poll(key + LOG_KEY_MIN), OLDEST)
    assert start == FetchStart(log_key_before(key), key, LOG_KEY_MIN, inline=True)


@given(keys, keys.filter(lambda key: key != LOG_KEY_MIN))
def test_an_inclusive_start_at_a_payload_takes_it(key: bytes, payload: bytes) -> None:
    start = start_of(Poll(key + payload), OLDEST)
    assert log_key_after(start.payload_after) == payload
    assert not start.inline


def test_an_expired_id_starts_at_the_oldest_live_message() -> None:
    bound = first_log_key_at(5000)
    identifier = log_key(4999, 7) + log_key(123, 4)
    assert start_of(Poll(identifier, inclusive=False), bound) == FetchStart(log_key_before(bound))


def test_an_id_at_the_bound_is_followed() -> None:
    identifier = log_key(5000, 7) + LOG_KEY_MIN
    assert start_of(Poll(identifier), first_log_key_at(5000)).key == log_key(5000, 7)


@given(st.integers(-(1 << 63), 1 << 70), st.integers(0, 1 << 44))
def test_a_time_starts_at_its_millisecond_or_at_the_oldest_live_message(
    time_ms: int, bound_ms: int
) -> None:
    start = start_of(Poll(time_ms), first_log_key_at(bound_ms))
    assert start == FetchStart(
        log_key_before(max(first_log_key_at(bound_ms), first_log_key_at(time_ms)))
    )


def test_an_id_is_cut_to_its_20_bytes() -> None:
    identifier = log_key(9, 1) + log_key(8, 2)
    assert start_of(Poll(identifier + b"tail"), OLDEST) == start_of(Poll(identifier), OLDEST)


@pytest.mark.parametrize("ttl_s", [1, 604_800, 2_147_483_647])
def test_the_longest_ttl_does_not_overflow(ttl_s: int) -> None:
    assert LOG_KEY_MIN <= oldest_live(topic_of(ttl_s * 1000), 1_700_000_000_000) < LOG_KEY_MAX


@given(keys, st.integers(0, 1 << 44), st.integers(1, 1 << 32))
def test_the_oldest_live_id_agrees_with_the_check_of_each_row(
    key: bytes, now_ms: int, ttl_ms: int
) -> None:
    topic = topic_of(ttl_ms)
    assert (key >= oldest_live(topic, now_ms)) is lives(topic, key, None, now_ms)


@given(keys, st.integers(0, 1 << 44), st.integers(0, 1 << 44), st.none() | st.integers(1, 1 << 32))
def test_a_purge_ends_only_messages_published_before_it(
    key: bytes, now_ms: int, purged_ms: int, lifetime_ms: int | None
) -> None:
    purged, never = topic_of(10**9, purged_ms), topic_of(10**9)
    is_behind = timestamp_of(key) >= purged_ms
    assert lives(purged, key, lifetime_ms, now_ms) is (
        is_behind and lives(never, key, lifetime_ms, now_ms)
    )


@pytest.mark.parametrize(
    ("age_ms", "lifetime_ms", "ttl_ms", "is_alive"),
    [
        (1000, None, 1000, True),
        (1001, None, 1000, False),
        (500, 500, 1000, True),
        (501, 500, 1000, False),
        (1001, 5000, 1000, False),
        (-(10**6), None, 1, True),
    ],
)
def test_a_message_lives_to_the_last_millisecond(
    age_ms: int, lifetime_ms: int | None, ttl_ms: int, is_alive: bool
) -> None:
    published_ms = 10_000_000
    key = log_key(published_ms, 3)
    now_ms = published_ms + age_ms
    assert lives(topic_of(ttl_ms), key, lifetime_ms, now_ms) is is_alive
    assert (now_ms <= expires_at_ms(key, lifetime_ms, ttl_ms)) is is_alive


SNAPSHOT = Snapshot(
    transaction_id=200,
    read_pointer=100,
    in_progress=[50],
    invalids=[60, 150],
    checkpoint_pointers=[201],
)


@pytest.mark.parametrize(
    ("pointer", "verdict"),
    [
        (None, FetchAction.TAKE),
        (40, FetchAction.TAKE),
        (-40, FetchAction.SKIP),
        (50, FetchAction.BLOCK),
        (-50, FetchAction.SKIP),
        (60, FetchAction.SKIP),
        (100, FetchAction.TAKE),
        (101, FetchAction.BLOCK),
        (150, FetchAction.SKIP),
        (200, FetchAction.TAKE),
        (201, FetchAction.TAKE),
    ],
)
def test_a_snapshot_judges_by_the_pointer(pointer: int | None, verdict: FetchAction) -> None:
    assert judge(pointer, SNAPSHOT) is verdict
    assert judge(pointer, None) is FetchAction.TAKE


@given(
    st.integers(1, 30),
    st.lists(st.integers(1, 30), max_size=4),
    st.lists(st.integers(1, 30), max_size=4),
    st.integers(1, 30),
    st.sampled_from(Snapshot.Visibility),
)
def test_no_older_pointer_holds(
    read: int, open_: list[int], invalids: list[int], own: int, visibility: Snapshot.Visibility
) -> None:
    snapshot = Snapshot(
        transaction_id=own,
        read_pointer=read,
        in_progress=open_,
        invalids=invalids,
        visibility=visibility,
    )
    held = [p for p in range(1, 40) if judge(p, snapshot) is FetchAction.BLOCK]
    assert all(pointer >= oldest_blocking(snapshot) for pointer in held)

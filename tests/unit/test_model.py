from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadName, BadRequest
from broker.model import (
    LOG_KEY_MAX,
    LOG_KEY_MIN,
    POINTER_MAX,
    TIMESTAMP_MAX_MS,
    Message,
    Snapshot,
    Topic,
    TopicId,
    TransactionUse,
    check_key,
    check_namespace,
    check_topic,
    first_log_key_at,
    id_after,
    log_key,
    log_key_after,
    log_key_before,
    message_id_from_hex,
    timestamp_of,
    unpack_log_key,
)

parts = st.tuples(st.integers(0, TIMESTAMP_MAX_MS), st.integers(0, 0xFFFF))


@given(parts, parts)
def test_log_keys_sort_as_their_parts(one: tuple[int, int], two: tuple[int, int]) -> None:
    assert (log_key(*one) < log_key(*two)) is (one < two)
    assert unpack_log_key(log_key(*one)) == one
    assert timestamp_of(log_key(*one) + log_key(*two)) == one[0]


@given(parts)
def test_log_key_before_and_log_key_after_are_inverse(part: tuple[int, int]) -> None:
    key = log_key(*part)
    if key > LOG_KEY_MIN:
        assert log_key_after(log_key_before(key)) == key
    if key < LOG_KEY_MAX:
        assert log_key_before(log_key_after(key)) == key


@given(parts, parts)
def test_no_message_id_is_between_one_and_the_id_after_it(
    part: tuple[int, int], payload_part: tuple[int, int]
) -> None:
    key, payload_key = log_key(*part), log_key(*payload_part)
    if payload_key < LOG_KEY_MAX:
        assert id_after(key + payload_key) == key + log_key_after(payload_key)
    elif key < LOG_KEY_MAX:
        assert id_after(key + payload_key) == log_key_after(key) + LOG_KEY_MIN


def test_the_lowest_and_the_highest_id_have_no_neighbours_beyond() -> None:
    assert id_after(LOG_KEY_MAX + LOG_KEY_MAX) == LOG_KEY_MAX + LOG_KEY_MAX
    assert id_after(log_key(1, 1) + LOG_KEY_MAX) == log_key(1, 2) + LOG_KEY_MIN
    assert log_key_before(LOG_KEY_MIN) == LOG_KEY_MIN
    assert log_key_after(LOG_KEY_MAX) == LOG_KEY_MAX
    assert log_key_after(b"\xff" * 10) == LOG_KEY_MAX


@given(st.integers())
def test_the_first_row_of_a_time_is_clamped(time_ms: int) -> None:
    clamped = min(max(time_ms, 0), TIMESTAMP_MAX_MS)
    assert unpack_log_key(first_log_key_at(time_ms)) == (clamped, 0)


def test_a_message_id_of_the_original_service_is_read() -> None:
    identifier = log_key(1_480_000_000_000, 1) + LOG_KEY_MIN
    assert identifier.hex() == "0000015896dfd000000100000000000000000000"
    assert message_id_from_hex(identifier.hex()) == identifier
    assert Message(identifier, b"").timestamp_ms == 1_480_000_000_000


@pytest.mark.parametrize("text", ["", "00", "zz" * 20, "0" * 39, "0" * 42, " " * 40, "0 " * 20])
def test_a_text_that_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        message_id_from_hex(text)


@pytest.mark.parametrize("name", ["a", "A_9", "_", "x" * 1000])
def test_names_of_letters_digits_and_underscores_are_allowed(name: str) -> None:
    assert check_namespace(name) == name
    assert check_topic(name, name + "-") == TopicId(name, name + "-")


def test_keys_are_visible_ascii() -> None:
    visible = bytes(range(0x21, 0x7F)).decode()
    assert check_key(visible) == visible
    assert check_key("x" * 255) == "x" * 255
    for key in (
        "",
        "x" * 256,
        "a b",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
        "a\r\nX: y",
        "\0",
        "a\n",
    ):
        with pytest.raises(BadRequest):
            check_key(key)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "a/b", "a\n", "a.b", "٣"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(BadName):
        check_namespace(name)
    with pytest.raises(BadName):
        check_topic("ns", name)
    with pytest.raises(BadName):
        check_topic(name + "-", "t")


def test_a_topic_shows_its_name_and_its_ttl() -> None:
    topic = Topic(TopicId("ns", "t"), 1, {}, 2_147_483_647, TransactionUse.OPTIONAL)
    assert str(topic.id) == "ns:t"
    assert topic.ttl_ms == 2_147_483_647_000


pointers = st.integers(1, 60)
lists = st.lists(pointers, max_size=8)


@given(lists, lists, lists, pointers, pointers, st.sampled_from(list(Snapshot.Visibility)))
def test_a_snapshot_sees_the_pointers_that_the_naive_rules_allow(
    invalids: list[int],
    in_progress: list[int],
    checkpoints: list[int],
    read_pointer: int,
    own: int,
    visibility: Snapshot.Visibility,
) -> None:
    snapshot = Snapshot(
        transaction_id=own,
        read_pointer=read_pointer,
        invalids=invalids,
        in_progress=in_progress,
        checkpoint_pointers=checkpoints,
        visibility=visibility,
    )
    assert snapshot.write_pointer == own
    for pointer in range(1, 61):
        committed = pointer <= read_pointer and pointer not in {*invalids, *in_progress}
        mine = pointer == own or pointer in checkpoints
        hidden = (
            visibility is Snapshot.Visibility.SNAPSHOT_EXCLUDE_CURRENT
            and pointer == snapshot.write_pointer
        )
        assert snapshot.is_visible(pointer) is (committed or (mine and not hidden))
        assert snapshot.is_invalid(pointer) is (pointer in invalids)


def test_snapshots_compare_by_value_and_are_not_hashable() -> None:
    one = Snapshot(transaction_id=1, read_pointer=1, invalids=[3, 2])
    assert one == Snapshot(transaction_id=1, read_pointer=1, invalids=[2, 3])
    assert one != Snapshot(transaction_id=1, read_pointer=2, invalids=[2, 3])
    assert one != object()
    assert one.first_short_in_progress == POINTER_MAX
    assert "read_pointer=1" in repr(one)
    with pytest.raises(TypeError):
        hash(one)

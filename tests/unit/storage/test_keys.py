import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model import TopicId, row_id
from broker.storage import keys
from broker.storage.keys import LogId

TOPIC = TopicId("default", "notes")


def test_the_layout_byte_for_byte():
    row = row_id(0x0102030405060708, 0x090A)
    tail = bytes(range(1, 11))
    assert keys.row_key(LogId(TOPIC, 3), row) == b"default:notes:\0\0\0\x03" + tail
    payload = keys.row_key(LogId(TOPIC, 3, -2), row)
    assert payload == b"default:notes:\0\0\0\x03" + b"\xff" * 7 + b"\xfe" + tail
    assert keys.control_key(LogId(TOPIC, 3)) == b"default:notes:\0\0\0\0c"
    assert keys.control_key(LogId(TOPIC, 3, 1)) == (
        b"default:notes:\0\0\0\0c\0\0\0\x03\0\0\0\0\0\0\0\x01"
    )
    assert keys.side_prefix(LogId(TOPIC, 3), keys.IDEMPOTENCY) == (
        b"default:notes:\0\0\0\0k\0\0\0\x03"
    )


def test_all_generations_share_one_control_row():
    assert keys.control_key(LogId(TOPIC, 1)) == keys.control_key(LogId(TOPIC, 2))
    assert keys.control_key(LogId(TOPIC, 1, 5)) != keys.control_key(LogId(TOPIC, 2, 5))


@given(st.integers(1, (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_payload_log_is_known_by_its_control_key(generation, number):
    log = LogId(TOPIC, generation, number)
    assert keys.payload_log_of(TOPIC, keys.control_key(log)) == log


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=6))
def test_a_prefix_ends_right_behind_what_begins_with_it(prefix, key):
    end = keys.prefix_end(prefix)
    inside = prefix <= key and (not end or key < end)
    assert inside == key.startswith(prefix)


@pytest.mark.parametrize("other", ["note", "notes2", "notes-", "n"])
def test_no_topics_keys_begin_with_anothers_prefix(other):
    assert not keys.topic_prefix(TopicId("default", other)).startswith(keys.topic_prefix(TOPIC))
    assert not keys.topic_prefix(TOPIC).startswith(keys.topic_prefix(TopicId("default", other)))

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model import TopicId, log_key
from broker.storage import keys
from broker.storage.keys import LogId

TOPIC = TopicId("default", "notes")


def test_the_layout_byte_for_byte():
    page = log_key(0x0102030405060708, 0x090A)
    tail = bytes(range(1, 11))
    assert keys.page_key(LogId(TOPIC, 3), page) == b"default:notes:\0\0\0\x03" + tail
    payload = keys.page_key(LogId(TOPIC, 3, -2), page)
    assert payload == b"default:notes:\0\0\0\x03" + b"\xff" * 7 + b"\xfe" + tail
    assert keys.page_of(payload) == page
    assert keys.root_key(LogId(TOPIC, 3)) == b"default:notes:\0\0\0\0r"
    assert keys.root_key(LogId(TOPIC, 3, 1)) == (
        b"default:notes:\0\0\0\0r\0\0\0\x03\0\0\0\0\0\0\0\x01"
    )
    assert keys.mark_prefix(LogId(TOPIC, 3)) == b"default:notes:\0\0\0\0k\0\0\0\x03"


def test_all_generations_share_one_root():
    assert keys.root_key(LogId(TOPIC, 1)) == keys.root_key(LogId(TOPIC, 2))
    assert keys.root_key(LogId(TOPIC, 1, 5)) != keys.root_key(LogId(TOPIC, 2, 5))


@given(st.integers(1, (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_the_key_of_a_root_names_its_payload_log(generation, number):
    log = LogId(TOPIC, generation, number)
    assert keys.payload_log_of_root(TOPIC, keys.root_key(log)) == log


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_roots_of_payload_logs_sort_by_their_numbers(one, other):
    first, last = (keys.root_key(LogId(TOPIC, 1, number)) for number in (one, other))
    assert (first < last) == (one < other)
    assert keys.payload_root_range(TOPIC, 1, one, other) == (first, last)


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=6))
def test_prefix_end_bounds_exactly_the_keys_with_the_prefix(prefix, key):
    end = keys.prefix_end(prefix)
    inside = prefix <= key and (not end or key < end)
    assert inside == key.startswith(prefix)


@pytest.mark.parametrize("other", ["note", "notes2", "notes-", "n"])
def test_no_topic_prefix_begins_with_the_prefix_of_another(other):
    assert not keys.topic_prefix(TopicId("default", other)).startswith(keys.topic_prefix(TOPIC))
    assert not keys.topic_prefix(TOPIC).startswith(keys.topic_prefix(TopicId("default", other)))

"""Byte formats: those of Lily's RowLog 2.0 by hand, ours by round trips."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadName, BadRequest, StorageCorrupt
from broker.rowlog.cell_keys import (
    DEAD_END,
    OPEN_END,
    PAYLOAD,
    STATE,
    Columns,
    Entry,
    MessageId,
    check_id,
    entry_of,
    index_key,
    range_start,
    range_stop,
)
from broker.rowlog.cells import decode_state, encode_permit, encode_state
from broker.rowlog.execution_state import Part, Standing, State, fresh
from broker.rowlog.setup import (
    Settings,
    Setup,
    Shard,
    Subscription,
    changed_settings,
    decode,
    encode,
)

MESSAGE = MessageId(seq=2, timestamp=0x0102030405060708)


def test_the_cells_of_a_row_are_lilys() -> None:
    columns = Columns(b"rowlog", 4)
    place = bytes.fromhex("0000000000000002 0102030405060708")
    assert columns.of(PAYLOAD, MESSAGE) == b"rowlog:\x04\x01" + place
    assert columns.of(STATE, MESSAGE) == b"rowlog:\x04\x02" + place
    assert columns.sequence == b"rowlog:\x04SEQNR"
    assert columns.message(columns.of(STATE, MESSAGE)) == MESSAGE
    for other in (columns.sequence, columns.of(PAYLOAD, MESSAGE), b"rowlog:\x03\x02" + place):
        assert columns.message(other) is None


def test_a_state_as_it_is_put_is_lilys() -> None:
    state = fresh(7, ["a", "bü"])
    raw = bytes.fromhex("01 0000000000000007 02 00000001 61 00 00000003 62c3bc 00")
    assert encode_state(state) == raw
    assert decode_state(raw) == state
    done = state.with_part("a", Part(Standing.DONE))
    assert encode_state(done) == bytes.fromhex(
        "01 0000000000000007 02 00000001 61 01 00000003 62c3bc 00"
    )


def test_the_number_of_subscriptions_is_lilys_varint() -> None:
    raw = encode_state(fresh(0, [f"{each:03}" for each in range(300)]))
    assert raw[9:11] == b"\xac\x02"
    assert len(decode_state(raw).parts) == 300


def test_a_state_with_more_fields_is_version_2() -> None:
    part = Part(Standing.OPEN, 3, 1, 9, 8, b"tok", "why")
    raw = encode_state(State(7, {"a": part, "b": Part()}))
    assert raw == bytes.fromhex(
        "02 0000000000000007 02 00000001 61 80 0000000000000003 00000001 0000000000000009"
        "0000000000000008 03 746f6b 0003 776879 00000001 62 00"
    )
    assert decode_state(raw).parts["a"] == part


PARTS = st.builds(
    Part,
    st.sampled_from(Standing),
    st.integers(0, 1 << 40),
    st.integers(0, 99),
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 50),
    st.binary(max_size=12),
    st.text(max_size=40),
)


@given(st.integers(0, 1 << 60), st.dictionaries(st.text(min_size=1, max_size=9), PARTS, max_size=4))
def test_a_state_is_read_as_it_was_written(timestamp: int, parts: dict[str, Part]) -> None:
    state = State(timestamp, parts)
    assert decode_state(encode_state(state)) == state


@given(st.binary(max_size=60))
def test_bytes_that_are_no_state_are_refused(raw: bytes) -> None:
    try:
        decode_state(raw)
    except StorageCorrupt:
        return


@pytest.mark.parametrize("raw", [b"", b"\x03" + bytes(9), encode_state(fresh(0, ["a"])) + b"x"])
def test_a_state_of_another_version_or_length_is_refused(raw: bytes) -> None:
    with pytest.raises(StorageCorrupt):
        decode_state(raw)


def test_an_index_key_is_lilys() -> None:
    entry = Entry(5, "sub", 0x0102030405060708, 2, b"row\x00", b"data")
    key = b"\x05sub\x00" + bytes.fromhex("0102030405060708 0000000000000002") + b"row\x00"
    assert index_key(entry) == key
    assert entry_of(key, b"data") == (entry, OPEN_END)
    assert entry_of(index_key(entry, DEAD_END), b"data") == (entry, DEAD_END)
    assert entry_of(b"\xffsetup") is None
    assert entry_of(b"\x05sub") is None


def test_no_name_is_the_beginning_of_anothers_range() -> None:
    key = index_key(Entry(0, "ab", 1, 1, b"r"))
    assert not range_start(0, "a") <= key < range_stop(0, "a")
    dead = index_key(Entry(0, "a", 1, 1, b"r"), DEAD_END)
    assert not range_start(0, "a") <= dead < range_stop(0, "a")
    assert range_start(0, "a", DEAD_END) <= dead < range_stop(0, "a", DEAD_END)
    for name in ("", "a\x01", "x" * 200):
        with pytest.raises(BadName):
            check_id(name)


def test_a_lock_is_lilys() -> None:
    assert encode_permit(7, b"abcd") == b"\0\0\0\0\0\0\0\x07abcd"


def test_a_setup_is_read_as_it_was_written() -> None:
    setup = Setup("mq", "t", "f", 4, shards=(Shard(0), Shard(1, draining=True)), version=3)
    setup = setup.with_subscription(Subscription("a", order=2))
    assert decode(encode(setup)) == setup
    with pytest.raises(StorageCorrupt, match="format 9"):
        decode(encode(setup).replace(b'"format":1', b'"format":9'))
    with pytest.raises(StorageCorrupt):
        decode(b"{}")
    with pytest.raises(BadRequest):
        Columns(b"f", 256)


def test_settings_are_of_their_type_and_not_negative() -> None:
    settings = changed_settings(Settings(), {"listener_timeout_s": 60, "spread": True})
    assert (settings.listener_timeout_s, settings.spread) == (60.0, True)
    wrong = {
        "listener_timeout_s": (-1.0, math.inf, math.nan, "60", True),
        "delete_buffer": (-1, 1.5, True),
        "spread": (1, "yes"),
        "unknown": (1,),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(BadRequest, match=name):
                changed_settings(Settings(), {name: value})

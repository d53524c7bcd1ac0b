from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageCorrupt
from broker.model import log_key
from broker.storage.entry import checked
from broker.storage.root import Root, RootState, decode, encode, linked, state_of

FIXTURES = Path(__file__).parents[2] / "data" / "storage" / "roots.txt"
ROWS = st.builds(log_key, st.integers(0, (1 << 63) - 1), st.integers(0, 0xFFFF))
ROOTS = st.builds(
    Root,
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.sampled_from(RootState),
    st.integers(0, (1 << 64) - 1),
    ROWS,
    ROWS,
    ROWS,
    st.binary(min_size=12, max_size=12),
    ROWS,
    ROWS,
    st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(ROOTS)
def test_a_root_comes_back_as_it_was(root):
    assert decode(encode(root)) == root
    assert state_of(encode(root)) is root.state


@given(ROOTS, st.data())
def test_a_changed_byte_is_found(root, data):
    value = bytearray(encode(root))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StorageCorrupt):
        decode(bytes(value))


@given(ROOTS, st.data())
def test_a_value_of_another_length_is_found(root, data):
    value = encode(root)
    with pytest.raises(StorageCorrupt):
        decode(value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(StorageCorrupt):
        decode(checked(value[:-4] + b"\0"))


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x09more"])
def test_a_value_without_a_state_is_found(value):
    with pytest.raises(StorageCorrupt):
        state_of(value)


def test_another_format_is_refused():
    body = b"\x02" + encode(Root(1, RootState.LIVE))[1:-4]
    with pytest.raises(StorageCorrupt, match="format 2"):
        decode(checked(body))


@given(ROOTS, ROWS)
def test_a_link_changes_only_page_and_epoch(root, page):
    assert linked(root, page, 9) == root._replace(page=page, epoch=9)


def samples():
    rich = Root(
        -2,
        RootState.PUBLISHED,
        1 << 63,
        log_key(1_700_000_000_000, 3),
        log_key(1_600_000_000_000, 2),
        log_key(1_500_000_000_000, 1),
        bytes(range(12)),
        log_key(7, 7),
        log_key(8, 8),
        -1,
    )
    return [Root(1, RootState.LIVE), rich]


def test_the_bytes_of_roots_stay_the_same():
    lines = [bytes.fromhex(line) for line in FIXTURES.read_text().split()]
    assert [encode(root) for root in samples()] == lines
    assert [decode(line) for line in lines] == samples()

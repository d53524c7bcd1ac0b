from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageCorrupt
from broker.model import log_key, log_key_after
from broker.storage.entry import checked
from broker.storage.head import (
    NO_END,
    ChangeVerdict,
    Head,
    PageState,
    decode,
    encode,
    first_page,
    following,
    judged,
    taken,
)

FIXTURES = Path(__file__).parents[2] / "data" / "storage" / "heads.txt"
TOKENS = st.binary(min_size=12, max_size=12)
ROWS = st.builds(log_key, st.integers(0, (1 << 63) - 1), st.integers(0, 0xFFFF))
COUNTS = st.integers(0, (1 << 64) - 1)
HASHES = st.binary(min_size=32, max_size=32)
HEADS = st.builds(
    lambda hashes, **fields: Head(**fields, before=hashes[0], chain=hashes[1]),
    hashes=st.just((b"", b"")) | st.tuples(HASHES, HASHES),
    epoch=COUNTS,
    owner=st.text(max_size=20),
    token=TOKENS,
    pointer=ROWS,
    state=st.sampled_from(PageState),
    total=COUNTS,
    bytes=COUNTS,
    edits=COUNTS,
    marked=ROWS,
    first_end_ms=st.integers(-(1 << 63), NO_END),
    prev=ROWS,
    cells=st.integers(0, 0xFFFF),
    size=st.integers(0, 0xFFFFFFFF),
)


@given(HEADS)
def test_a_head_comes_back_as_it_was(head):
    assert decode(encode(head)) == head


@given(HEADS, HEADS)
def test_different_heads_have_different_bytes(one, other):
    assert (encode(one) == encode(other)) == (one == other)


@given(HEADS, st.data())
def test_a_changed_byte_is_found(head, data):
    value = bytearray(encode(head))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StorageCorrupt):
        decode(bytes(value))


@given(HEADS, st.data())
def test_a_truncated_value_is_found(head, data):
    value = encode(head)
    with pytest.raises(StorageCorrupt):
        decode(value[: data.draw(st.integers(0, len(value) - 1))])


def test_another_format_is_refused():
    body = b"\x03" + encode(Head(1, "a", bytes(12), log_key(1, 1)))[1:-4]
    with pytest.raises(StorageCorrupt, match="format 3"):
        decode(checked(body))


@given(HEADS, TOKENS)
def test_a_claim_changes_only_epoch_owner_and_token(head, token):
    claimed = taken(head, 9, "me", token)
    assert claimed == head._replace(epoch=9, owner="me", token=token)


@given(HEADS, ROWS, TOKENS)
def test_a_page_continues_the_counts_of_the_page_before(before, key, token):
    head = following(before, key, 9, "me", token)
    kept = ("pointer", "total", "bytes", "edits", "marked")
    assert [getattr(head, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (head.epoch, head.owner, head.token, head.prev) == (9, "me", token, key)
    assert (head.state, head.first_end_ms, head.cells, head.size) == (PageState.OPEN, NO_END, 0, 0)
    assert before.next == log_key_after(before.pointer)


def test_a_first_page_has_nothing_to_mark():
    head = first_page(log_key(5, 5), 3, "me", bytes(12))
    assert (head.marked, head.pointer, head.total, head.is_open) == (log_key(5, 5),) * 2 + (0, True)


OLD = Head(5, "me", b"old" * 4, log_key(1, 0))
NEW = OLD._replace(token=b"new" * 4, pointer=log_key(2, 0))
OTHER = b"oth" * 4


@pytest.mark.parametrize(
    ("seen", "entry_epoch", "verdict"),
    [
        (None, None, ChangeVerdict.STALE),
        (NEW, 5, ChangeVerdict.APPLIED),
        (NEW, None, ChangeVerdict.APPLIED),
        (OLD, None, ChangeVerdict.REPEAT),
        (NEW._replace(epoch=6, token=OTHER), 5, ChangeVerdict.LOST),
        (NEW._replace(epoch=6, token=OTHER, state=PageState.SEALED), 5, ChangeVerdict.LOST),
        (NEW._replace(epoch=6, token=OTHER, state=PageState.CLOSED), 5, ChangeVerdict.LOST),
        (OLD._replace(epoch=6, token=OTHER), None, ChangeVerdict.NEVER),
        (OLD._replace(epoch=6, token=OTHER), 6, ChangeVerdict.NEVER),
        (OLD._replace(token=OTHER, state=PageState.CLOSED), None, ChangeVerdict.NEVER),
        (OLD._replace(epoch=4, token=OTHER), None, ChangeVerdict.STALE),
        (OLD._replace(token=OTHER), None, ChangeVerdict.STALE),
        (OLD._replace(epoch=6, token=OTHER, state=PageState.GONE), None, ChangeVerdict.UNKNOWN),
        (NEW._replace(state=PageState.GONE), None, ChangeVerdict.UNKNOWN),
    ],
)
def test_the_verdict_of_each_seen_head(seen, entry_epoch, verdict):
    assert judged(seen, entry_epoch, OLD, NEW) is verdict


def samples():
    rich = Head(
        (1 << 63) + 1,
        "node-ü",
        bytes(range(12)),
        log_key(1_700_000_000_000, 300),
        PageState.SEALED,
        total=1 << 40,
        bytes=1 << 50,
        edits=3,
        marked=log_key(1_600_000_000_000, 1),
        first_end_ms=1_800_000_000_000,
        prev=log_key(1_500_000_000_000, 2),
        cells=4096,
        size=2 << 20,
    )
    return [first_page(bytes(10), 1, "n1", bytes(12)), rich, rich._replace(state=PageState.GONE)]


def test_the_bytes_of_heads_stay_the_same():
    lines = [bytes.fromhex(line) for line in FIXTURES.read_text().split()]
    assert [encode(head) for head in samples()] == lines
    assert [decode(line) for line in lines] == samples()

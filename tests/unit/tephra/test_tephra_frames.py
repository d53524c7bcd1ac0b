"""Reading calls: those that thriftpy2's own client writes, and malformed ones."""

import contextlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, BodyTooLarge, BrokerError, ChangesTooLarge
from broker.transactions import tephra_frames as frames
from broker.wire.thriftskip import SEGMENT_BYTES, Segments
from tests.unit.tephra.vectors import VECTORS, Vector

IDL = frames.Idl()
WHOLE = bytes(range(251)) * (5 * SEGMENT_BYTES // 2 // 251)
SEGMENTS = Segments(
    [bytearray(WHOLE[at : at + SEGMENT_BYTES]) for at in range(0, len(WHOLE), SEGMENT_BYTES)]
)


def head(method: str, kind: int = 1) -> bytes:
    name = method.encode()
    return struct.pack(">IIB", 0x80010000 | kind, len(name), 0)[:8] + name + bytes(4)


def read(message: bytes, taken: list[int] | None = None) -> frames.TephraCall:
    take = (lambda _: None) if taken is None else taken.append
    found = frames.read_head(message)
    return frames.read_call(IDL, message, found, take=take)


def keys(count: int, *listed: bytes) -> bytes:
    """A field 2 with a set of keys."""
    items = b"".join(struct.pack(">i", len(key)) + key for key in listed)
    return b"\x0e\x00\x02\x0b" + struct.pack(">i", count) + items


CAN_COMMIT = head("canCommitOrThrow")
TX = b"\x0a\x00\x01" + struct.pack(">q", 7)


def test_arguments_are_read() -> None:
    taken: list[int] = []
    call = read(CAN_COMMIT + TX + keys(2, b"a", b"\xff") + b"\0", taken)
    assert call == frames.TephraCall("canCommitOrThrow", 0, {1: 7, 2: [b"a", b"\xff"]})
    assert taken == [2]


def test_only_the_numbers_of_a_transaction_are_read() -> None:
    vector = next(each for each in VECTORS if each.method == "checkpoint")
    (numbers,) = read(vector.request).arguments.values()
    assert set(numbers) == {1, 2, 5, 7}


def test_a_list_is_as_good_as_a_set() -> None:
    as_list = keys(1, b"a").replace(b"\x0e", b"\x0f", 1)
    assert read(CAN_COMMIT + as_list + b"\0").arguments == {2: [b"a"]}


def test_unknown_fields_are_skipped() -> None:
    unknown = (
        b"\x0d\x00\x09\x0b\x0c\x00\x00\x00\x01\x00\x00\x00\x01k\x08\x00\x01\x00\x00\x00\x05\x00"
    )
    wrong = b"\x08\x00\x01\x00\x00\x00\x05" + b"\x0e\x00\x02\x08\x00\x00\x00\x01\x00\x00\x00\x05"
    assert read(CAN_COMMIT + unknown + wrong + TX + b"\0").arguments == {2: [], 1: 7}


MALFORMED = {
    "no end": TX,
    "cut field": TX[:-1],
    "more than it has": TX + b"\0\0",
    "cut key": keys(1, b"abc")[:-1] + b"\0",
    "fewer keys than counted": keys(3, b"") + b"\0",
    "a negative count": keys(-1) + b"\0",
    "a huge count": keys((1 << 31) - 1) + b"\0",
    "a negative length": b"\x0e\x00\x02\x0b\x00\x00\x00\x01\xff\xff\xff\xff\0",
    "a huge length": b"\x0b\x00\x09\x7f\xff\xff\xff" + b"\0",
    "no type": b"\x63\x00\x09\0",
    "nested deep": (b"\x0c\x00\x09" + b"\x0c\x00\x01" * 5000),
    "lists in lists": b"\x0f\x00\x09" + b"\x0f\x00\x00\x00\x01" * 5000,
    "a huge list of structs": b"\x0f\x00\x09\x0c\x00\x0f\x00\x00" + bytes(0x0F0000) + b"\0",
    "many fields": TX * (frames.FIELDS_MAX + 1) + b"\0",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_arguments_are_refused(case: str) -> None:
    with pytest.raises(BadRequest):
        read(CAN_COMMIT + MALFORMED[case])


def test_many_keys_are_refused_before_they_are_read() -> None:
    taken: list[int] = []
    most = frames.Most(ids=3, keys=3, key_bytes=5)

    def bounded(method: str, arguments: bytes) -> frames.TephraCall:
        message = head(method) + arguments + b"\0"
        found = frames.read_head(message)
        return frames.read_call(IDL, message, found, most=most, take=taken.append)

    for arguments in (keys(4), keys(2, b"", b"") * 2, keys(2, b"abc", b"def"), keys(1, b"abcdef")):
        with pytest.raises(ChangesTooLarge):
            bounded("canCommitOrThrow", arguments)
    with pytest.raises(BodyTooLarge):
        bounded("truncateInvalidTx", b"\x0e\x00\x01\x0a" + struct.pack(">i", 4) + bytes(32))
    assert 4 not in taken
    call = bounded("canCommitOrThrow", keys(3, b"abc", b"", b"de"))
    assert call.arguments == {2: [b"abc", b"", b"de"]}


def test_the_count_of_items_can_refuse_a_call() -> None:
    def take(_: int) -> None:
        raise BodyTooLarge("no")

    message = CAN_COMMIT + keys(1, b"a") + b"\0"
    with pytest.raises(BodyTooLarge):
        frames.read_call(IDL, message, frames.read_head(message), take=take)


NO_CALLS = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "another version": b"\x80\x02" + CAN_COMMIT[2:],
    "an answer": head("startShort", kind=2),
    "a message without answer": head("startShort", kind=4),
    "a name that is cut": head("startShort")[:12],
    "a long name": head("s" * 300),
    "a name that is no text": head("x").replace(b"x", b"\xff"),
    "without a version": b"\x00\x00\x00\x01x\x01\x00\x00\x00\x00",
}


@pytest.mark.parametrize("case", NO_CALLS)
def test_a_frame_that_is_no_call_is_recognised_by_its_head(case: str) -> None:
    with pytest.raises(frames.NoCall):
        frames.read_head(NO_CALLS[case])


def framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


@given(st.lists(st.sampled_from(VECTORS), max_size=4), st.lists(st.integers(0, 600), max_size=9))
def test_frames_come_in_any_pieces(vectors: list[Vector], cuts: list[int]) -> None:
    whole = b"".join(framed(vector.request) for vector in vectors)
    incoming, found = frames.Incoming(), []
    for start, end in pairwise(sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})):
        rest = whole[start:end]
        while rest:
            frame, rest = incoming.feed(rest)
            if frame is not None:
                found.append(b"".join(frame))
    assert found == [vector.request for vector in vectors]
    assert not incoming.has_begun


def test_a_large_frame_comes_in_segments() -> None:
    message = CAN_COMMIT + keys(1, bytes(range(256)) * 20_000)
    incoming, frame = frames.Incoming(), None
    whole = framed(message)
    for at in range(0, len(whole), 100_000):
        frame, _ = incoming.feed(whole[at : at + 100_000])
    assert frame is not None
    sizes = [len(segment) for segment in frame]
    assert max(sizes) < 700_000
    assert len(sizes) > 5
    assert b"".join(frame) == message


@pytest.mark.parametrize("length", [-1, 0, frames.FRAME_BYTES_MAX + 1, 0x47455420])
def test_a_frame_s_length_is_bounded_before_it_is_held(length: int) -> None:
    incoming = frames.Incoming()
    assert incoming.feed(struct.pack(">i", length)[:3]) == (None, b"")
    with pytest.raises(frames.NoCall):
        incoming.feed(struct.pack(">i", length)[3:])


def test_a_frame_that_is_no_call_is_recognised_before_it_is_whole() -> None:
    incoming = frames.Incoming()
    assert incoming.feed(struct.pack(">i", 1_000_000)) == (None, b"")
    with pytest.raises(frames.NoCall):
        incoming.feed(bytes(256))


@given(
    st.sampled_from(VECTORS),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=6)), max_size=4),
    st.integers(0, 400),
)
def test_changed_calls_are_read_or_refused(
    vector: Vector, changes: list[tuple[int, bytes]], cut: int
) -> None:
    message = bytearray(vector.request)
    for at, put in changes:
        message[at : at + len(put)] = put
    if cut < len(message):
        del message[len(message) - cut :]
    changed = bytes(message)
    try:
        found = frames.read_head(changed)
        if found.method in IDL.methods:
            frames.read_call(IDL, changed, found)
    except (BrokerError, frames.NoCall):
        pass


@given(st.sampled_from(sorted(IDL.methods)), st.binary(max_size=300))
def test_any_arguments_are_read_or_refused(method: str, arguments: bytes) -> None:
    with contextlib.suppress(BadRequest, BodyTooLarge, ChangesTooLarge):
        read(head(method) + arguments)


@pytest.mark.parametrize("size", [frames.TEXT_BYTES_MAX, frames.TEXT_BYTES_MAX + 1])
def test_a_long_text_is_refused_before_it_is_read(size: int) -> None:
    text = b"\x0b\x00\x01" + struct.pack(">i", size) + bytes(size) + b"\0"
    whole = head("startShortClientId") + text
    step = SEGMENT_BYTES
    frame = Segments([bytearray(whole[at : at + step]) for at in range(0, len(whole), step)])
    found = frames.read_head(frame)
    if size > frames.TEXT_BYTES_MAX:
        with pytest.raises(BadRequest, match="A text has 1048577 bytes"):
            frames.read_call(IDL, frame, found)
    else:
        assert frames.read_call(IDL, frame, found).arguments == {1: "\0" * size}


@given(st.integers(0, 2 * SEGMENT_BYTES), st.integers(0, SEGMENT_BYTES + 9))
def test_segments_are_read_as_the_bytes_that_they_hold(at: int, count: int) -> None:
    found = WHOLE[at : at + count]
    assert SEGMENTS[at : at + count] == found
    assert not found or SEGMENTS[at] == found[0]
    assert len(SEGMENTS) == len(WHOLE)

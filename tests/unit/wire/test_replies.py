import io
import tracemalloc

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import OutcomeUnknown, Unavailable
from broker.model import NO_HEADERS, Message
from broker.wire.messages import PollDecoder
from broker.wire.varint import END, encode_bytes, encode_long
from tests.kit import schemas
from tests.kit.poll_replies import block

RESPONSE = fastavro.parse_schema(schemas.CONSUME_RESPONSE)

payloads = st.one_of(
    st.binary(max_size=70), st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 8191, b"z" * 8192])
)
messages = st.builds(
    Message, st.binary(min_size=20, max_size=20), payloads, st.none(), st.just(NO_HEADERS)
)
message_lists = st.lists(messages, max_size=8)


def sized_block(some: list[Message]) -> bytes:
    """The same items in the form with a negative count and the block's size."""
    items = b"".join(encode_bytes(m.id) + encode_bytes(m.payload) for m in some)
    return encode_long(-len(some)) + encode_long(len(items)) + items if some else b""


def read(reply: bytes) -> list[Message]:
    rows = fastavro.schemaless_reader(io.BytesIO(reply), RESPONSE, None)
    return [Message(row["id"], row["payload"]) for row in rows]


def decode(*pieces: bytes) -> list[Message]:
    decoder = PollDecoder()
    some = [message for piece in pieces for message in decoder.feed(piece)]
    decoder.finish()
    return some


@given(st.lists(message_lists, max_size=4))
def test_another_implementation_reads_our_blocks(divided):
    reply = b"".join(map(block, divided)) + END
    assert read(reply) == [message for some in divided for message in some]


def test_no_messages_are_no_block():
    assert block([]) == b""
    assert decode(END) == []


@given(
    st.lists(st.tuples(message_lists, st.booleans()), max_size=4),
    st.lists(st.integers(1, 300)),
    st.binary(max_size=3),
)
def test_a_reply_is_read_in_any_pieces(divided, sizes, rest):
    reply = (
        b"".join((sized_block if sized else block)(some) for some, sized in divided) + END + rest
    )
    pieces = []
    at = 0
    for size in sizes:
        pieces.append(reply[at : at + size])
        at += size
    assert decode(*pieces, reply[at:]) == [message for some, _ in divided for message in some]


@given(message_lists)
def test_a_reply_is_read_byte_by_byte(some):
    reply = block(some) + END
    assert decode(*(reply[at : at + 1] for at in range(len(reply)))) == some


@given(message_lists, st.data())
def test_a_reply_that_is_cut_off_is_an_error(some, data):
    reply = block(some) + END
    decoder = PollDecoder()
    decoder.feed(reply[: data.draw(st.integers(0, len(reply) - 1))])
    assert not decoder.ended
    with pytest.raises(Unavailable) as caught:
        decoder.finish()
    assert caught.value.retriable


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_messages_come_as_soon_as_they_are_whole(some, data):
    whole = data.draw(st.integers(1, len(some)))
    reply = block(some)
    behind = sum(len(encode_bytes(m.id) + encode_bytes(m.payload)) for m in some[whole:])
    known = len(reply) - behind
    decoder = PollDecoder()
    assert decoder.feed(reply[:known]) == some[:whole]


@pytest.mark.parametrize(
    "reply",
    [
        b"\x80" * 11,
        b"\x02\x26" + bytes(19) + b"\x00\x00",  # An id of 19 bytes.
        b"\x02\x28" + bytes(20) + b"\x01\x00",  # A payload of -1 bytes.
        b"\x02\x28" + bytes(20) + b"\x81\x01\x00",  # Of -65.
        b"\x02\x28" + bytes(20) + b"\xff" * 12,
    ],
)
def test_an_unreadable_reply_has_an_unknown_outcome(reply):
    with pytest.raises(OutcomeUnknown):
        PollDecoder().feed(reply)


def test_claims_of_a_reply_take_no_memory():
    decoder = PollDecoder()
    tracemalloc.start()
    assert decoder.feed(encode_long(1 << 60) + b"\x28" + bytes(20) + encode_long(1 << 61)) == []
    assert decoder.feed(b"x" * 1000) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_large_payload_in_small_pieces_is_joined_once():
    message = Message(bytes(20), bytes(2_000_000))
    reply = block([message]) + END
    decoder = PollDecoder()
    joins = 0
    some: list[Message] = []
    for at in range(0, len(reply), 1000):
        before = decoder.rest
        some += decoder.feed(reply[at : at + 1000])
        joins += decoder.rest is not before
    assert some == [message]
    assert joins <= 3

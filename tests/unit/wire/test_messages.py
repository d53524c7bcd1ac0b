"""Messages with keys, headers and lifetimes on the wire, against another implementation of Avro."""

import io
import tracemalloc

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, OutcomeUnknown, TooManyMessages, Unavailable
from broker.model import NO_HEADERS, Message, PublishRequest
from broker.wire import attributes, messages
from broker.wire.messages import PagesDecoder
from broker.wire.varint import END, encode_bytes, encode_long, read_long
from tests.kit import schemas
from tests.kit.poll_replies import block

REQUEST = fastavro.parse_schema(schemas.PUBLISH_MESSAGES)
REPLY = fastavro.parse_schema(schemas.PAGES)

keys = st.none() | st.binary(max_size=9)
headers = st.just(NO_HEADERS) | st.dictionaries(
    st.text(min_size=1, max_size=5), st.binary(max_size=9), max_size=3
)
payloads = st.binary(max_size=70)
ttls_s = st.none() | st.integers(-5, (1 << 31) - 1)
pointers = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
sent = st.lists(st.tuples(payloads, keys, headers, ttls_s), max_size=6)
got = st.builds(Message, st.binary(min_size=20, max_size=20), payloads, keys, headers)
pages = st.lists(st.lists(got, min_size=1, max_size=6), max_size=4)


# Publish and store.


def request_of(pointer, several) -> PublishRequest:
    beside = [attributes.encode(key, given_) for _, key, given_, _ in several]
    lives = [ttl_s for *_, ttl_s in several]
    return PublishRequest(
        pointer,
        [payload for payload, *_ in several],
        attributes=beside if any(beside) else (),
        ttls_s=lives if any(ttl_s is not None for ttl_s in lives) else (),
    )


def datum(pointer, several):
    return {
        "transactionWritePointer": pointer,
        "messages": [
            {"payload": payload, "key": key, "headers": dict(given_), "ttl": ttl_s}
            for payload, key, given_, ttl_s in several
        ],
    }


def decode(body: bytes, messages_max: int = 100) -> PublishRequest:
    return messages.decode_publish_request(body, messages_max=messages_max)


@given(pointers, sent)
def test_a_request_is_written_and_read_as_in_another_implementation(pointer, several):
    request = request_of(pointer, several)
    body = messages.encode_publish_request(request)
    read = fastavro.schemaless_reader(io.BytesIO(body), REQUEST, None)
    assert read == datum(pointer, several)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, REQUEST, datum(pointer, several))
    assert decode(written.getvalue()) == decode(body) == request


@given(pointers, sent, st.data())
def test_a_body_that_is_cut_off_is_refused(pointer, several, data):
    body = messages.encode_publish_request(request_of(pointer, several))
    with pytest.raises(BadRequest):
        decode(body[: data.draw(st.integers(0, len(body) - 1))])


def test_blocks_may_say_their_size():
    message = encode_bytes(b"a") + b"\0\0" + b"\0"
    body = b"\x02" + encode_long(-2) + encode_long(2 * len(message)) + message * 2 + b"\x02"
    assert decode(body + message + END) == PublishRequest(None, [b"a"] * 3)


def test_bounds_and_nonsense_are_refused_by_name():
    body = messages.encode_publish_request(PublishRequest(None, [b"a"] * 3, ttls_s=[1, 2, 3]))
    with pytest.raises(TooManyMessages):
        decode(body, 2)
    with pytest.raises(BadRequest, match="too short for its count"):
        decode(b"\x02" + encode_long(1 << 60))
    for message in (b"\x02a\x06\x00\x00", b"\x02a\x00\x00\x04", b"\x01"):
        with pytest.raises(BadRequest, match="messages: "):
            decode(b"\x02\x02" + message + bytes(9))
    twice = encode_long(2) + (encode_bytes(b"h") + encode_bytes(b"v")) * 2 + END
    with pytest.raises(BadRequest, match="comes twice"):
        decode(b"\x02\x02\x00\x00" + twice + END)
    large = b"\x02" + encode_bytes(bytes(attributes.BYTES_MAX)) + END
    with pytest.raises(BadRequest, match="16384 bytes"):
        decode(b"\x02\x02\x00" + large + b"\0" + END)


# The reply of a poll.


def page(some: list[Message]) -> bytes:
    encoded = block(some)
    _, items_at = read_long(encoded, 0)
    beside = [attributes.encode(each.key, each.headers) for each in some]
    found = [(place, each) for place, each in enumerate(beside) if each]
    return b"".join(messages.page(len(some), [encoded[items_at:]], found))


def read(*pieces: bytes) -> list[Message]:
    decoder = PagesDecoder()
    some = [message for piece in pieces for message in decoder.feed(piece)]
    decoder.finish()
    return some


def other_reads(reply: bytes) -> list[Message]:
    found = []
    for each in fastavro.schemaless_reader(io.BytesIO(reply), REPLY, None):
        some = [Message(row["id"], row["payload"]) for row in each["messages"]]
        for row in each["attributes"]:
            some[row["place"]] = some[row["place"]]._replace(key=row["key"], headers=row["headers"])
        found += some
    return found


def other_writes(divided: list[list[Message]]) -> bytes:
    out = io.BytesIO()
    rows = [
        {
            "messages": [{"id": each.id, "payload": each.payload} for each in some],
            "attributes": [
                {"place": place, "key": each.key, "headers": dict(each.headers)}
                for place, each in enumerate(some)
                if each.key is not None or each.headers
            ],
        }
        for some in divided
    ]
    fastavro.schemaless_writer(out, REPLY, rows)
    return out.getvalue()


@given(pages)
def test_another_implementation_reads_our_pages_and_we_read_its(divided):
    reply = b"".join(map(page, divided)) + END
    every = [message for some in divided for message in some]
    assert other_reads(reply) == every
    assert read(other_writes(divided)) == every


@given(pages, st.lists(st.integers(1, 60)), st.binary(max_size=3))
def test_a_reply_is_read_in_any_pieces(divided, sizes, rest):
    for reply in (b"".join(map(page, divided)) + END, other_writes(divided)):
        pieces, at = [], 0
        for size in sizes:
            pieces.append(reply[at : at + size])
            at += size
        assert read(*pieces, reply[at:] + rest) == [each for some in divided for each in some]


@given(pages)
def test_a_reply_is_read_byte_by_byte(divided):
    reply = b"".join(map(page, divided)) + END
    every = [message for some in divided for message in some]
    assert read(*(reply[at : at + 1] for at in range(len(reply)))) == every


@pytest.mark.slow
@given(pages, st.data())
def test_a_reply_that_is_cut_off_is_an_error(divided, data):
    reply = b"".join(map(page, divided)) + END
    decoder = PagesDecoder()
    found = decoder.feed(reply[: data.draw(st.integers(0, len(reply) - 1))])
    assert not decoder.ended
    assert found == [each for some in divided for each in some][: len(found)]
    with pytest.raises(Unavailable) as caught:
        decoder.finish()
    assert caught.value.retriable


@given(st.lists(got, min_size=1, max_size=6))
def test_a_page_comes_as_soon_as_it_is_whole(some):
    decoder = PagesDecoder()
    reply = page(some)
    assert decoder.feed(reply[:-1]) == []
    assert decoder.feed(reply[-1:]) == some


def test_a_plain_page_costs_three_bytes():
    some = [Message(bytes(20), b"a")] * 100
    assert page(some) == b"\x02" + block(some) + END + END


@pytest.mark.parametrize(
    "reply",
    [
        b"\x80" * 11,
        b"\x02\x02\x26" + bytes(19) + b"\x00\x00",  # An id of 19 bytes.
        page([Message(bytes(20), b"a", b"k")])[:-6]
        + b"\x02\x00\x00\x00",  # Place 1 of one message.
        b"\x02\x00\x02\x00\x00\x00",  # Place 0 of none.
        b"\x02\x00\x02\x01\x00\x00",  # Place -1.
        page([Message(bytes(20), b"a", b"")])[:-4] + b"\x06",  # A union's branch 3.
    ],
)
def test_an_unreadable_reply_has_an_unknown_outcome(reply):
    with pytest.raises(OutcomeUnknown):
        PagesDecoder().feed(reply + bytes(30))


def test_claims_of_a_reply_take_no_memory():
    decoder = PagesDecoder()
    tracemalloc.start()
    assert decoder.feed(encode_long(1 << 60) * 2 + b"\x28" + bytes(20) + encode_long(1 << 61)) == []
    assert decoder.feed(b"x" * 1000) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000

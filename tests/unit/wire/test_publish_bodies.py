"""Bodies of a publish: in any blocks, cut off, with very many messages, with a very long one."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.messages import plainjson
from broker.errors import BrokerError, Overloaded, TooManyMessages
from broker.model import PublishRequest
from broker.wire import Take, attributes, avro, avrojson, messages
from broker.wire.varint import encode_long
from tests.kit.request_bodies import publish_in_avro_json

Read = Callable[..., PublishRequest]

payloads = st.lists(st.binary(max_size=300), max_size=30)
keys = st.none() | st.binary(max_size=10)
headers = st.dictionaries(
    st.text("abc", min_size=1, max_size=4), st.binary(max_size=10), max_size=3
)


def in_blocks(body: list[bytes], sizes: list[int]) -> bytes:
    """Return a publish without a pointer, its items in blocks of a fixed size, then a block of the rest."""
    parts, begin = [b"\x02"], 0
    for size in [*sizes, len(body)]:
        block = body[begin : begin + size]
        begin += size
        if block:
            items = b"".join(block)
            parts += [encode_long(-len(block)), encode_long(len(items)), items]
    return b"".join([*parts, b"\0"])


@given(payloads, st.lists(st.integers(1, 4), max_size=9))
def test_publishes_in_avro(sent, blocks):
    body = in_blocks([encode_long(len(each)) + each for each in sent], blocks)
    counted: list[int] = []
    read = avro.decode_publish_request(body, messages_max=30, take=counted.append)
    assert read == PublishRequest(None, sent)
    assert sum(counted) == len(sent)


@given(
    st.lists(st.tuples(st.binary(max_size=60), keys, headers, st.none() | st.integers(1, 99))),
    st.lists(st.integers(1, 4), max_size=9),
)
def test_publishes_of_messages(sent, blocks):
    encoded = [attributes.encode(key, named) for _, key, named, _ in sent]
    items = [
        messages.encode_publish_request(
            PublishRequest(None, [payload], attributes=[beside], ttls_s=[ttl_s])
        )[2:-1]
        for (payload, _, _, ttl_s), beside in zip(sent, encoded, strict=True)
    ]
    read = messages.decode_publish_request(in_blocks(items, blocks), messages_max=1_000)
    assert read.payloads == [payload for payload, _, _, _ in sent]
    assert list(read.attributes or [b""] * len(sent)) == encoded
    assert list(read.ttls_s or [None] * len(sent)) == [ttl_s for _, _, _, ttl_s in sent]


MANY = 100_000
REQUEST = PublishRequest(None, [b"ab"] * MANY)
KEYED = REQUEST._replace(attributes=[attributes.encode(b"k", {"h": b"v"})] * MANY)
LARGE: dict[str, tuple[Read, bytes]] = {
    "avro": (avro.decode_publish_request, avro.encode_publish_request(REQUEST)),
    "avro, blocks of one": (
        avro.decode_publish_request,
        in_blocks([b"\x04ab"] * MANY, [1] * MANY),
    ),
    "messages": (messages.decode_publish_request, messages.encode_publish_request(KEYED)),
    "messages, blocks of one": (
        messages.decode_publish_request,
        in_blocks([b"\x04ab\0\0\0"] * MANY, [1] * MANY),
    ),
    "avro/json": (avrojson.decode_publish_request, publish_in_avro_json(REQUEST)),
    "json": (plainjson.decode_publish_request, b'["ab"' + b',"ab"' * (MANY - 1) + b"]"),
    "json of objects": (
        plainjson.decode_publish_request,
        b'{"messages":[' + b",".join([b'{"value":"ab","key":"k"}'] * MANY) + b"]}",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_messages_are_counted_while_they_are_read(name):
    read, body = LARGE[name]
    with pytest.raises(TooManyMessages, match=f"{MANY - 1} messages"):
        read(body, messages_max=MANY - 1)
    with pytest.raises(Overloaded):
        read(body, messages_max=MANY, take=room_for(MANY - 1))
    assert read(body, messages_max=MANY, take=room_for(MANY)).payloads == REQUEST.payloads


def room_for(most: int) -> Take:
    left = most

    def take(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise Overloaded("There is no room.")

    return take


@pytest.mark.parametrize("form", [avro, messages], ids=["avro", "messages"])
def test_a_large_message_is_copied(form):
    whole = PublishRequest(None, [b"a", bytes(range(256)) * 40_000, b"b"])
    body = form.encode_publish_request(whole)
    assert form.decode_publish_request(body, messages_max=3).payloads == whole.payloads


def test_a_header_over_the_bound_is_not_copied():
    body = b"\x02\x02" + b"\0\0" + b"\x02" + b"\x02a" + encode_long(10_000_000) + bytes(10_000_001)
    with pytest.raises(BrokerError, match="16384 bytes of key and headers"):
        messages.decode_publish_request(body, messages_max=3)

"""Reading a body in steps gives the same result as at once, and each step reads little."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api import plainjson
from broker.errors import BrokerError, Overloaded, TooManyMessages
from broker.model import PublishRequest
from broker.wire import attributes, avro, avrojson, messages, read_steps
from broker.wire.read_steps import Steps, Take, finish
from broker.wire.varint import encode_long
from tests.kit.request_bodies import publish_in_avro_json

Read = Callable[..., Steps[PublishRequest]]

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


@given(payloads, st.lists(st.integers(1, 4), max_size=9), st.integers(1, 9), st.integers(1, 200))
def test_publishes_in_avro(sent, blocks, step_messages, step_bytes):
    body = in_blocks([encode_long(len(each)) + each for each in sent], blocks)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(avro, "_STEP_MESSAGES", step_messages)
        patched.setattr(avro, "STEP_BYTES", step_bytes)
        patched.setattr(read_steps, "STEP_BYTES", step_bytes)
        counted: list[int] = []
        read = finish(avro.publish_request_steps(body, messages_max=30, take=counted.append))
    assert read == avro.decode_publish_request(body, messages_max=30) == PublishRequest(None, sent)
    assert sum(counted) == len(sent)


@given(
    st.lists(st.tuples(st.binary(max_size=60), keys, headers, st.none() | st.integers(1, 99))),
    st.lists(st.integers(1, 4), max_size=9),
    st.integers(1, 9),
    st.integers(1, 50),
)
def test_publishes_of_messages(sent, blocks, step_parts, step_bytes):
    encoded = [attributes.encode(key, named) for _, key, named, _ in sent]
    items = [
        messages.encode_publish_request(
            PublishRequest(None, [payload], attributes=[beside], ttls_s=[ttl_s])
        )[2:-1]
        for (payload, _, _, ttl_s), beside in zip(sent, encoded, strict=True)
    ]
    body = in_blocks(items, blocks)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(messages, "_STEP_PARTS", step_parts)
        patched.setattr(messages, "STEP_BYTES", step_bytes)
        patched.setattr(read_steps, "STEP_BYTES", step_bytes)
        read = finish(messages.publish_request_steps(body, messages_max=1_000))
    assert read.payloads == [payload for payload, _, _, _ in sent]
    assert list(read.attributes or [b""] * len(sent)) == encoded
    assert list(read.ttls_s or [None] * len(sent)) == [ttl_s for _, _, _, ttl_s in sent]


@given(payloads, st.data(), st.integers(1, 5))
def test_cut_bodies_are_refused_in_steps_as_at_once(sent, data, step_bytes):
    body = avro.encode_publish_request(PublishRequest(None, sent))
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(avro, "STEP_BYTES", step_bytes)
        in_steps = refusal(lambda: finish(avro.publish_request_steps(cut, messages_max=30)))
    assert in_steps == refusal(lambda: avro.decode_publish_request(cut, messages_max=30))
    assert in_steps is not None


def refusal(read: Callable[[], object]) -> str | None:
    try:
        read()
    except BrokerError as error:
        return error.message
    return None


MANY = 100_000
REQUEST = PublishRequest(None, [b"ab"] * MANY)
KEYED = REQUEST._replace(attributes=[attributes.encode(b"k", {"h": b"v"})] * MANY)
LARGE: dict[str, tuple[Read, bytes]] = {
    "avro": (avro.publish_request_steps, avro.encode_publish_request(REQUEST)),
    "avro, blocks of one": (
        avro.publish_request_steps,
        in_blocks([b"\x04ab"] * MANY, [1] * MANY),
    ),
    "messages": (messages.publish_request_steps, messages.encode_publish_request(KEYED)),
    "messages, blocks of one": (
        messages.publish_request_steps,
        in_blocks([b"\x04ab\0\0\0"] * MANY, [1] * MANY),
    ),
    "avro/json": (avrojson.publish_request_steps, publish_in_avro_json(REQUEST)),
    "json": (plainjson.publish_request_steps, b'["ab"' + b',"ab"' * (MANY - 1) + b"]"),
    "json of objects": (
        plainjson.publish_request_steps,
        b'{"messages":[' + b",".join([b'{"value":"ab","key":"k"}'] * MANY) + b"]}",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_many_messages_take_many_steps(name):
    read, body = LARGE[name]
    reading = read(body, messages_max=MANY)
    taken = 0
    try:
        while True:
            next(reading)
            taken += 1
    except StopIteration as done:
        request = done.value
    assert request.payloads == REQUEST.payloads
    assert taken >= MANY // 8_192


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_messages_are_counted_while_they_are_read(name):
    read, body = LARGE[name]
    with pytest.raises(TooManyMessages, match=f"{MANY - 1} messages"):
        finish(read(body, messages_max=MANY - 1))
    with pytest.raises(Overloaded):
        finish(read(body, messages_max=MANY, take=room_for(MANY - 1)))
    finish(read(body, messages_max=MANY, take=room_for(MANY)))


def room_for(most: int) -> Take:
    left = most

    def take(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise Overloaded("There is no room.")

    return take


@pytest.mark.parametrize("form", [avro, messages], ids=["avro", "messages"])
def test_a_large_message_is_copied_in_steps(form):
    payload = bytes(range(256)) * 40_000
    whole = PublishRequest(None, [b"a", payload, b"b"])
    body = form.encode_publish_request(whole)
    reading = form.publish_request_steps(body, messages_max=3)
    assert sum(1 for _ in itertools.islice(reading, 15)) == 15
    again = form.publish_request_steps(body, messages_max=3)
    assert finish(again).payloads == whole.payloads


def test_a_header_over_the_bound_is_not_copied():
    body = b"\x02\x02" + b"\0\0" + b"\x02" + b"\x02a" + encode_long(10_000_000) + bytes(10_000_001)
    with pytest.raises(BrokerError, match="16384 bytes of key and headers"):
        finish(messages.publish_request_steps(body, messages_max=3))

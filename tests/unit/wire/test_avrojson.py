import io
import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, TooManyMessages
from broker.model import NO_HEADERS, Message, Poll, PublishRequest, RollbackRange, Snapshot, log_key
from broker.wire import avrojson
from broker.wire.transaction import encode_transaction
from tests.kit import schemas
from tests.kit.request_bodies import (
    poll_in_avro_json,
    publish_in_avro_json,
    read_poll,
    read_publish,
)

ID = "\x00\x01\x02\xff" * 5

pointers = st.integers(0, (1 << 63) - 1)
snapshot = Snapshot(transaction_id=5, read_pointer=4, in_progress=[3])
polls = st.builds(
    Poll,
    start=st.one_of(st.none(), pointers, st.binary(min_size=20, max_size=20)),
    inclusive=st.booleans(),
    limit=st.one_of(st.none(), st.integers(1, (1 << 31) - 1)),
    snapshot=st.sampled_from([None, snapshot]),
)


def decode(value: object, messages_max: int = 100) -> PublishRequest:
    return read_publish(avrojson, json.dumps(value).encode(), messages_max)


def decode_poll(**fields: object) -> Poll:
    return read_poll(avrojson, json.dumps(fields).encode())


def fast_text(schema, datum) -> object:
    out = io.StringIO()
    fastavro.json_writer(out, schema, [datum])
    return json.loads(out.getvalue())


@given(st.none() | pointers, st.lists(st.binary(max_size=50), max_size=10))
def test_publish_requests_are_as_another_implementation_has_them(pointer, payloads):
    body = publish_in_avro_json(PublishRequest(pointer, payloads))
    datum = {"transactionWritePointer": pointer, "messages": payloads}
    assert json.loads(body) == fast_text(schemas.PUBLISH_REQUEST, datum)
    assert read_publish(avrojson, body) == PublishRequest(pointer, payloads)


@given(pointers, pointers, st.integers(0, 65535))
def test_publish_responses_come_back(pointer, time_ms, seq):
    span = RollbackRange(pointer, log_key(time_ms, seq), log_key(time_ms, 65535))
    assert avrojson.decode_publish_response(avrojson.encode_publish_response(span)) == span


@given(polls)
def test_polls_are_as_another_implementation_has_them(poll):
    body = poll_in_avro_json(poll)
    transaction = None if poll.snapshot is None else encode_transaction(poll.snapshot)
    datum = {
        "startFrom": poll.start,
        "inclusive": poll.inclusive,
        "limit": poll.limit,
        "transaction": transaction,
    }
    assert json.loads(body) == fast_text(schemas.CONSUME_REQUEST, datum)
    assert read_poll(avrojson, body) == poll


@given(
    st.lists(
        st.builds(
            Message,
            st.binary(min_size=20, max_size=20),
            st.binary(max_size=50),
            st.none(),
            st.just(NO_HEADERS),
        )
    )
)
def test_replies_are_as_another_implementation_has_them(messages):
    datum = [message._asdict() for message in messages]
    assert json.loads(b"[%b]" % avrojson.encode_items(messages)) == fast_text(
        schemas.CONSUME_RESPONSE, datum
    )


def test_nullable_fields_may_be_missing():
    assert decode({"messages": ["a"]}) == PublishRequest(None, [b"a"])
    assert read_poll(avrojson, b"{}") == Poll()


def test_unions_may_be_bare():
    assert decode({"transactionWritePointer": 7, "messages": []}) == PublishRequest(7, [])
    assert decode_poll(startFrom=12, limit=3) == Poll(start=12, limit=3)
    assert decode_poll(startFrom=ID).start == ID.encode("latin-1")
    transaction = encode_transaction(snapshot).decode("latin-1")
    assert decode_poll(transaction=transaction).snapshot == snapshot


def test_a_longer_id_is_cut():
    assert decode_poll(startFrom={"bytes": ID + "more"}).start == ID.encode("latin-1")


def test_too_many_messages():
    assert len(decode({"messages": [""] * 5}, messages_max=5).payloads) == 5
    with pytest.raises(TooManyMessages, match=r"^messages: "):
        decode({"messages": [""] * 6}, messages_max=5)
    with pytest.raises(TooManyMessages):
        decode({"messages": [""] * 600}, messages_max=5)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "The body"),
        (None, "The body"),
        ({}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "a"}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"messages": [None]}, "messages"),
        ({"messages": [{"bytes": "a"}]}, "messages"),
        ({"messages": ["\u0100"]}, "messages"),
        ({"messages": ["\ud800"]}, "messages"),
        ({"message": [], "messages": []}, "'message'"),
        ({"messages": [], "transactionWritePointer": True}, "transactionWritePointer"),
        ({"messages": [], "transactionWritePointer": 1.0}, "transactionWritePointer"),
        ({"messages": [], "transactionWritePointer": "01"}, "transactionWritePointer"),
        ({"messages": [], "transactionWritePointer": [1]}, "transactionWritePointer"),
        ({"messages": [], "transactionWritePointer": 1 << 63}, "transactionWritePointer"),
        ({"messages": [], "transactionWritePointer": {}}, "transactionWritePointer"),
        ({"messages": [], "transactionWritePointer": {"int": 1}}, "transactionWritePointer"),
        ({"messages": [], "transactionWritePointer": {"long": None}}, "transactionWritePointer"),
        (
            {"messages": [], "transactionWritePointer": {"long": 1, "int": 1}},
            "transactionWritePointer",
        ),
    ],
)
def test_malformed_publishes_name_the_field(value, field):
    with pytest.raises(BadRequest, match=f"^{field}"):
        decode(value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"startFrom": -1}, "startFrom"),
        ({"startFrom": "short"}, "startFrom"),
        ({"startFrom": True}, "startFrom"),
        ({"startFrom": {"bytes": 5}}, "startFrom"),
        ({"startFrom": {"long": ID}}, "startFrom"),
        ({"inclusive": None}, "inclusive"),
        ({"inclusive": 1}, "inclusive"),
        ({"limit": 0}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"limit": 1 << 31}, "limit"),
        ({"limit": {"long": 5}}, "limit"),
        ({"transaction": 5}, "transaction"),
        ({"transaction": "\u65e5"}, "transaction"),
        ({"transaction": "abc"}, "transaction"),
        ({"start": 5}, "'start'"),
    ],
)
def test_malformed_polls_name_the_field(fields, field):
    with pytest.raises(BadRequest, match=f"^{field}: "):
        decode_poll(**fields)


ROWS = {"startTimestamp": 5, "startSequenceId": 0, "endTimestamp": 5, "endSequenceId": 1}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"rollbackRange": ROWS}, "transactionWritePointer"),
        ({"transactionWritePointer": 1}, "rollbackRange"),
        ({"transactionWritePointer": 1, **ROWS}, "'startTimestamp'"),
        ({"transactionWritePointer": 1, "rollbackRange": {**ROWS, "x": 1}}, "'x'"),
        *(
            ({"transactionWritePointer": 1, "rollbackRange": {**ROWS, name: wrong}}, name)
            for name in ROWS
            for wrong in (-1, None, "5", 1.5, 1 << 63)
        ),
        (
            {"transactionWritePointer": 1, "rollbackRange": {**ROWS, "endSequenceId": 65536}},
            "endSequenceId",
        ),
    ],
)
def test_malformed_responses_name_the_field(value, field):
    with pytest.raises(BadRequest, match=f"^{field}: "):
        avrojson.decode_publish_response(json.dumps(value).encode())

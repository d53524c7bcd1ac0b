import io

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, TooManyMessages
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot, log_key
from broker.wire import avro
from broker.wire.transaction import encode_transaction
from broker.wire.varint import encode_bytes, encode_long
from tests.kit import schemas
from tests.kit.request_bodies import read_poll

REQUEST = fastavro.parse_schema(schemas.PUBLISH_REQUEST)
RESPONSE = fastavro.parse_schema(schemas.PUBLISH_RESPONSE)
CONSUME = fastavro.parse_schema(schemas.CONSUME_REQUEST)

pointers = st.integers(0, (1 << 63) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
payload_lists = st.lists(
    st.one_of(st.binary(max_size=100), st.sampled_from([b"x" * 64, b"y" * 8191, b"z" * 8192])),
    max_size=20,
)
rows = st.builds(log_key, pointers, st.integers(0, 65535))
snapshots = st.builds(
    Snapshot,
    transaction_id=longs,
    read_pointer=longs,
    write_pointer=longs,
    invalids=st.lists(longs, max_size=4),
    in_progress=st.lists(longs, max_size=4),
    first_short_in_progress=longs,
    long=st.booleans(),
    checkpoint_pointers=st.lists(longs, max_size=4),
    visibility=st.sampled_from(Snapshot.Visibility),
)
polls = st.builds(
    Poll,
    start=st.one_of(st.none(), pointers, st.binary(min_size=20, max_size=20)),
    inclusive=st.booleans(),
    limit=st.one_of(st.none(), st.integers(1, (1 << 31) - 1)),
    snapshot=st.one_of(st.none(), snapshots),
)


def write(schema, datum) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, datum)
    return out.getvalue()


def read(schema, body: bytes):
    return fastavro.schemaless_reader(io.BytesIO(body), schema, None)


def decode(hexadecimal: str, messages_max: int = 100) -> PublishRequest:
    return avro.decode_publish_request(bytes.fromhex(hexadecimal), messages_max=messages_max)


@given(st.none() | pointers, payload_lists)
def test_publish_requests_are_as_another_implementation_has_them(pointer, payloads):
    datum = {"transactionWritePointer": pointer, "messages": payloads}
    body = write(REQUEST, datum)
    assert avro.decode_publish_request(body, messages_max=20) == PublishRequest(pointer, payloads)
    assert avro.encode_publish_request(PublishRequest(pointer, payloads)) == body


@given(
    st.none() | pointers,
    st.lists(
        st.tuples(st.lists(st.binary(max_size=70), min_size=1, max_size=4), st.booleans(), longs)
    ),
    st.binary(max_size=5),
)
def test_any_division_into_blocks_is_read(pointer, divided, rest):
    parts = [b"\x02" if pointer is None else b"\x00" + encode_long(pointer)]
    for payloads, sized, size in divided:
        parts.append(
            encode_long(-len(payloads)) + encode_long(size) if sized else encode_long(len(payloads))
        )
        parts += map(encode_bytes, payloads)
    body = b"".join([*parts, b"\x00", rest])
    request = avro.decode_publish_request(body, messages_max=10_000)
    assert request == PublishRequest(pointer, [p for payloads, _, _ in divided for p in payloads])
    assert read(REQUEST, body) == {"transactionWritePointer": pointer, "messages": request.payloads}


@given(st.none() | pointers, payload_lists, st.data())
def test_a_publish_that_ends_early_is_refused(pointer, payloads, data):
    body = avro.encode_publish_request(PublishRequest(pointer, payloads))
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(BadRequest, match=r"^(transactionWritePointer|messages): "):
        avro.decode_publish_request(cut, messages_max=20)


@given(st.binary(max_size=60))
def test_accepted_bodies_read_as_in_another_implementation(body):
    try:
        request = avro.decode_publish_request(body, messages_max=100)
    except (BadRequest, TooManyMessages):
        return
    datum = read(REQUEST, body)
    assert request == PublishRequest(datum["transactionWritePointer"], datum["messages"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("", "transactionWritePointer"),
        ("04 00", "transactionWritePointer"),  # No such branch.
        ("01 00", "transactionWritePointer"),  # A negative branch, which would mean the last one.
        ("ff" * 12, "transactionWritePointer"),
        ("00" + "ff" * 9 + "02 00", "transactionWritePointer"),  # More than 64 bits.
        ("00" + "80" * 10 + "00 00", "transactionWritePointer"),  # Eleven bytes.
        ("02", "messages"),
        ("02 02 02 61", "messages"),  # No end.
        ("02 02 04 61", "messages"),  # Shorter than its length.
        ("02 02 01 00", "messages"),  # Length -1.
        ("02 02 8101 00" + "00" * 80, "messages"),  # Length -65.
        ("02 02 ffffff01 00" + "00" * 80, "messages"),  # A longer negative length.
        ("02 02 feffffffffffffffff01 00", "messages"),  # Length 2^63 - 1.
        ("02 02 ffffffffffffffffff01 00", "messages"),  # Length -2^63.
        ("02 80808080808080802000", "messages"),  # 2^60 messages.
        ("02 ffffffffffffffffff01 00 00", "messages"),  # -2^63 messages.
        ("02 06 00 00", "messages"),  # Three messages in two bytes.
        ("02 01", "messages"),  # A block with its size, of which nothing comes.
        ("02 02 00 80", "messages"),
    ],
)
def test_malformed_publishes_name_the_field(body, field):
    with pytest.raises(BadRequest, match=f"^{field}: "):
        decode(body)


def test_numbers_may_be_longer_than_needed():
    assert decode("8200 8200 8200 61 8000") == PublishRequest(None, [b"a"])


def test_bytes_behind_the_datum_are_ignored():
    assert decode("02 00 ffff") == PublishRequest(None, [])


def test_too_many_messages_are_refused_before_they_are_read():
    body = "02 06 00 00 00 00"
    assert len(decode(body, messages_max=3).payloads) == 3
    with pytest.raises(TooManyMessages, match=r"^messages: "):
        decode(body, messages_max=2)
    # The items are malformed, but are never looked at.
    with pytest.raises(TooManyMessages):
        decode("02 06 01 01 01 00", messages_max=2)


def test_too_many_messages_are_counted_over_blocks():
    with pytest.raises(TooManyMessages):
        decode("02" + "02 00" * 5 + "00", messages_max=4)
    assert len(decode("02" + "02 00" * 5 + "00", messages_max=5).payloads) == 5


@given(pointers, rows, rows)
def test_publish_responses_are_as_another_implementation_has_them(pointer, first, last):
    span = RollbackRange(pointer, first, last)
    body = avro.encode_publish_response(span)
    assert avro.decode_publish_response(body + b"rest") == span
    datum = {
        "startTimestamp": int.from_bytes(first[:8], "big"),
        "startSequenceId": int.from_bytes(first[8:], "big"),
        "endTimestamp": int.from_bytes(last[:8], "big"),
        "endSequenceId": int.from_bytes(last[8:], "big"),
    }
    assert body == write(RESPONSE, {"transactionWritePointer": pointer, "rollbackRange": datum})


def response(*numbers: int) -> bytes:
    return b"\x00" + b"".join(map(encode_long, numbers))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "transactionWritePointer"),
        (b"\x02" + response(5, 0, 5, 1)[1:], "transactionWritePointer"),
        (response(1, -5, 0, 5, 1), "startTimestamp"),
        (response(1, 5, -1, 5, 1), "startSequenceId"),
        (response(1, 5, 65536, 5, 1), "startSequenceId"),
        (response(1, 5, 0, -5, 1), "endTimestamp"),
        (response(1, 5, 0, 5, 65536), "endSequenceId"),
        (response(1, 5, 0, 5, 1 << 33), "endSequenceId"),
        (response(1, 5, 0, 5), "endSequenceId"),
        (response(1, 5, 0, 5) + b"\x80" * 5 + b"\x00", "endSequenceId"),
    ],
)
def test_malformed_responses_name_the_field(body, field):
    with pytest.raises(BadRequest, match=f"^{field}: "):
        avro.decode_publish_response(body)


@given(polls, st.binary(max_size=3))
def test_polls_are_as_another_implementation_has_them(poll, rest):
    snapshot = None if poll.snapshot is None else encode_transaction(poll.snapshot)
    datum = {
        "startFrom": poll.start,
        "inclusive": poll.inclusive,
        "limit": poll.limit,
        "transaction": snapshot,
    }
    body = avro.encode_poll(poll)
    assert body == write(CONSUME, datum)
    assert read_poll(avro, body + rest) == poll


@given(st.binary(min_size=20, max_size=50))
def test_a_longer_id_is_cut(identifier):
    assert (
        read_poll(avro, b"\x00" + encode_bytes(identifier) + b"\x01\x02\x02").start
        == identifier[:20]
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "startFrom"),
        (b"\x06\x01\x02\x02", "startFrom"),
        (b"\x01\x01\x02\x02", "startFrom"),
        (b"\x00" + encode_bytes(bytes(19)) + b"\x01\x02\x02", "startFrom"),
        (b"\x00" + encode_long(-20) + bytes(20), "startFrom"),
        (b"\x00" + encode_long(1 << 60) + bytes(20), "startFrom"),
        (b"\x02\x01\x01\x02\x02", "startFrom"),
        (b"\x04", "inclusive"),
        (b"\x04\x02\x02\x02", "inclusive"),
        (b"\x04\x01", "limit"),
        (b"\x04\x01\x04\x02", "limit"),
        (b"\x04\x01\x00\x00\x02", "limit"),
        (b"\x04\x01\x00\x01\x02", "limit"),
        (b"\x04\x01\x00" + encode_long(1 << 31) + b"\x02", "limit"),
        (b"\x04\x01\x02", "transaction"),
        (b"\x04\x01\x02\x04", "transaction"),
        (b"\x04\x01\x02\x00\x00", "transaction"),
        (b"\x04\x01\x02\x00\x08abcd", "transaction"),
    ],
)
def test_malformed_polls_name_the_field(body, field):
    with pytest.raises(BadRequest, match=f"^{field}: "):
        read_poll(avro, body)

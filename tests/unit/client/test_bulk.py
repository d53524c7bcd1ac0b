"""The client reads Arrow record batches from a stream in any pieces, and resumes a stream that is cut off."""

import struct
import sys
from contextlib import aclosing

import pyarrow as pa
import pytest

from broker.client.bulk import MessageSplitter
from broker.client.client_request import Reply
from broker.errors import BadRequest, NotInstalled, TopicNotFound, Unavailable
from broker.model import Snapshot, log_key
from broker.wire.transaction import encode_transaction

SCHEMA = pa.schema([("id", pa.binary()), ("value", pa.binary())])
THROUGH = log_key(9999, 0) + bytes(10)
END = b"\xff\xff\xff\xff\0\0\0\0"


def message_id(number):
    return log_key(1000 + number, 0) + bytes(10)


def foreign(*names):
    """Return a stream with a batch of numbers in columns of these names."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({name: [1, 2] for name in names})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def damaged():
    """Return a stream in which the second id begins far behind the batch."""
    whole, places = stream([5, 5, 5]), struct.pack("<ii", 20, 40)
    assert whole.count(places) == 1
    return whole.replace(places, struct.pack("<ii", 1 << 30, 40))


def stream(*batches, names=("id", "value")):
    """Return a stream of batches; each batch holds the messages with its numbers."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([SCHEMA.field(name) for name in names])
    with pa.ipc.new_stream(sink, schema) as writer:
        for numbers in batches:
            columns = {
                "id": [message_id(n) for n in numbers],
                "value": [b"%d" % n * n for n in numbers],
            }
            arrays = [pa.array(columns[name], pa.binary()) for name in names]
            writer.write_batch(pa.record_batch(arrays, schema))
    return sink.getvalue().to_pybytes()


async def numbers_of(batches):
    async with aclosing(batches):
        return [n async for batch in batches for n in numbers_in(batch)]


def numbers_in(batch):
    ids, values, keys, headers = batch.to_pydict().values()
    assert keys == headers == [None] * len(ids)  # This broker sends none.
    found = [int.from_bytes(i[:8], "big") - 1000 for i in ids]
    assert values == [b"%d" % n * n for n in found]
    assert batch.num_rows
    return found


def asked_after(transport):
    return [request.path.partition("after=")[2][:40] for request in transport.requests]


async def test_batches_are_handed_out_as_they_arrive(make_client, transport):
    whole = stream([0, 1, 2], [3], [])
    transport.answer = lambda _: [whole[at : at + 7] for at in range(0, len(whole), 7)]
    async with make_client() as client:
        batches = [b async for b in client.read_arrow("ns1/t1", through=THROUGH)]
    assert [numbers_in(batch) for batch in batches] == [[0, 1, 2], [3]]
    assert batches[0].schema.names == ["id", "value", "key", "headers"]
    assert batches[0].select(["id", "value"]).schema == SCHEMA
    (request,) = transport.requests
    assert request.method == "GET"
    assert request.path.endswith(f"/t1/arrow?through={THROUGH.hex()}")


@pytest.mark.slow
async def test_a_stream_cut_off_anywhere_is_resumed_behind_the_last_message(make_client, transport):
    whole, rest = stream([0, 1, 2], [3, 4]), {2: stream([3, 4]), 4: stream()}
    for cut in range(0, len(whole), 9):
        answers = iter([[whole[:cut]], Unavailable("down")])
        transport.requests.clear()

        def answer(request, answers=answers):
            after = request.path.partition("after=")[2][:40]
            last = int(after[:16], 16) - 1000 if after else None
            return next(answers, [whole if last is None else rest[last]])

        transport.answer = answer
        async with make_client() as client:
            assert await numbers_of(client.read_arrow("ns1/t1", through=THROUGH)) == [*range(5)]
        asked = asked_after(transport)
        assert asked[0] == ""
        assert asked[1] == asked[2] in {"", message_id(2).hex(), message_id(4).hex()}


async def test_a_lost_connection_is_resumed(make_client, transport):
    whole = stream([0, 1, 2], [3, 4])
    answers = iter([[whole[:-60], Unavailable("lost")], [stream([3, 4])]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        got = client.read_arrow("ns1/t1", after=message_id(-1), through=THROUGH)
        assert await numbers_of(got) == [*range(5)]
    assert asked_after(transport) == [message_id(-1).hex(), message_id(2).hex()]


async def test_the_columns_may_come_in_any_order(make_client, transport):
    names = ("value", "id")
    answers = iter([[stream([0, 1, 2], names=names)[:-8]], [stream([3, 4], names=names)]])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        batches = client.read_arrow("ns1/t1", through=THROUGH)
        rows = [row async for batch in batches for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [message_id(n) for n in range(5)]
    assert asked_after(transport) == ["", message_id(2).hex()]


async def test_a_stream_that_stays_unavailable_ends_at_the_deadline(make_client, transport):
    transport.answer = lambda _: Unavailable("down")
    async with make_client(deadline_s=0.05, retry_delay_max_s=0.01) as client:
        with pytest.raises(Unavailable, match="down"):
            await numbers_of(client.read_arrow("ns1/t1", through=THROUGH))
    assert len(transport.requests) > 1


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (404, "topic_not_found", TopicNotFound),
        (400, "bad_request", BadRequest),
        (501, "not_installed", NotInstalled),
    ],
)
async def test_a_refusal_is_raised(make_client, transport, status, code, error):
    headers = {"broker-error": code, "broker-outcome": "refused"}
    transport.answer = lambda _: Reply(status, headers, b"no")
    async with make_client() as client:
        with pytest.raises(error):
            await numbers_of(client.read_arrow("ns1/t1", through=THROUGH))
    assert len(transport.requests) == 1


async def test_a_transaction_reads_with_its_snapshot(make_client, transport):
    transport.answer = lambda _: [stream([1])]
    snapshot = Snapshot(transaction_id=9, read_pointer=8, in_progress=[7])
    async with make_client() as client:
        got = client.read_arrow("ns1/t1", through=THROUGH, snapshot=snapshot)
        assert await numbers_of(got) == [1]
    (request,) = transport.requests
    assert request.method == "POST"
    assert encode_transaction(snapshot).hex().encode() in request.body


@pytest.mark.parametrize(
    "answer",
    [
        b"not a stream at all",
        END[:4] + b"\xff\xff\xff\xff",
        END[:4] + (1 << 30).to_bytes(4, "little"),
        END[:4] + (16).to_bytes(4, "little") + b"\xff" * 16,
        foreign("number"),
        foreign("id", "value"),
        damaged(),
    ],
)
async def test_a_body_that_is_no_arrow_stream_is_an_error(make_client, transport, answer):
    transport.answer = lambda _: [answer]
    async with make_client() as client:
        with pytest.raises(Unavailable, match="not as a broker does"):
            await numbers_of(client.read_arrow("ns1/t1", through=THROUGH))


def test_messages_are_split_wherever_pieces_end():
    whole = stream([0, 1, 2], [3])
    expected = [bytes(message) for message in MessageSplitter().feed(whole)]
    assert len(expected) == 3
    assert b"".join(expected) == whole.removesuffix(END)
    for size in (1, 2, 3, 8, 50, 1000):
        splitter = MessageSplitter()
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert [bytes(m) for piece in pieces for m in splitter.feed(piece)] == expected
        splitter.finish()
        assert splitter.feed(b"bytes behind the end") == []


async def test_without_pyarrow_the_extra_is_named(make_client, transport, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    async with make_client() as client:
        with pytest.raises(ImportError, match=r"tms-broker\[arrow\]"):
            await numbers_of(client.read_arrow("ns1/t1", through=THROUGH))
    assert not transport.requests

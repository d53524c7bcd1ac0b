"""The bodies that other implementations send and expect, byte for byte."""

import io
import json
from pathlib import Path

import fastavro
import pytest

from broker.model import Message, Poll, PublishRequest, RollbackRange, log_key
from broker.wire import avro, avrojson, transaction
from broker.wire import messages as wire_messages
from broker.wire.varint import END
from tests.kit import schemas
from tests.kit.poll_replies import block
from tests.kit.request_bodies import (
    poll_in_avro_json,
    publish_in_avro_json,
    read_poll,
    read_publish,
)

VECTORS = Path(__file__).parents[2] / "data" / "wire"
ID = bytes.fromhex("0000015896dfd000000100000000000000000000")

VALUES = {
    "publish-request.no-transaction": PublishRequest(None, [b"a", b"b"]),
    "publish-request.reference": PublishRequest(1, []),
    "publish-request.transactional": PublishRequest(1, [b"m2"]),
    "publish-response.range": RollbackRange(
        1, log_key(1480000000000, 2), log_key(1480000000000, 3)
    ),
    "consume-request.java-default": Poll(limit=2147483647),
    "consume-request.from-time": Poll(start=0, limit=10),
    "consume-request.after-id": Poll(start=ID, inclusive=False),
    "consume-request.transaction": Poll(
        snapshot=transaction.decode_transaction(
            (VECTORS / "transaction.in-progress.bin").read_bytes()
        )
    ),
}
DECODE = {
    "publish-request": read_publish,
    "publish-response": lambda codec, body: codec.decode_publish_response(body),
    "consume-request": read_poll,
}
ENCODE = {
    "publish-request": avro.encode_publish_request,
    "publish-response": avro.encode_publish_response,
    "consume-request": avro.encode_poll,
}
ENCODE_JSON = {
    "publish-request": publish_in_avro_json,
    "publish-response": avrojson.encode_publish_response,
    "consume-request": poll_in_avro_json,
}
SCHEMAS = {
    "publish-request": schemas.PUBLISH_REQUEST,
    "publish-response": schemas.PUBLISH_RESPONSE,
    "consume-request": schemas.CONSUME_REQUEST,
    "consume-response": schemas.CONSUME_RESPONSE,
}


def binary(name: str) -> bytes:
    return (VECTORS / f"{name}.bin").read_bytes()


def json_value(name: str) -> object:
    return json.loads((VECTORS / f"{name}.json").read_bytes())


def test_every_vector_has_a_test():
    names = {path.stem for path in VECTORS.glob("*.bin")}
    replies = {name for name in names if name.startswith("consume-response.")}
    assert names - replies - {"transaction.in-progress"} == set(VALUES)
    assert names == {path.stem for path in VECTORS.glob("*.json")}
    assert len(names) == 11


@pytest.mark.parametrize("name", VALUES)
def test_binary(name):
    record = name.split(".")[0]
    assert DECODE[record](avro, binary(name)) == VALUES[name]
    assert ENCODE[record](VALUES[name]) == binary(name)


@pytest.mark.parametrize("name", VALUES)
def test_json(name):
    record = name.split(".")[0]
    assert DECODE[record](avrojson, json.dumps(json_value(name)).encode()) == VALUES[name]
    assert json.loads(ENCODE_JSON[record](VALUES[name])) == json_value(name)


@pytest.mark.parametrize("name", sorted(path.stem for path in VECTORS.glob("[pc]*.bin")))
def test_the_schemas_say_the_same(name):
    datum = fastavro.schemaless_reader(io.BytesIO(binary(name)), SCHEMAS[name.split(".")[0]], None)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, SCHEMAS[name.split(".")[0]], datum)
    assert written.getvalue() == binary(name)
    text = io.StringIO()
    fastavro.json_writer(text, SCHEMAS[name.split(".")[0]], [datum])
    assert json.loads(text.getvalue()) == json_value(name)


@pytest.mark.parametrize(
    ("name", "messages"),
    [("consume-response.one", [Message(ID, b"m0")]), ("consume-response.empty", [])],
)
def test_replies(name, messages):
    assert block(messages) + END == binary(name)
    assert json.loads(b"[%b]" % avrojson.encode_items(messages)) == json_value(name)
    decoder = wire_messages.PollDecoder()
    assert decoder.feed(binary(name)) == messages
    decoder.finish()


def test_a_transaction():
    body = binary("transaction.in-progress")
    snapshot = transaction.decode_transaction(body)
    assert len(body) == 91
    assert transaction.encode_transaction(snapshot) == body
    assert transaction.decode_snapshot(json_value("transaction.in-progress")) == snapshot
    assert transaction.decode_snapshot(transaction.encode_snapshot(snapshot)) == snapshot
    assert (snapshot.transaction_id, list(snapshot.in_progress)) == (3, [2])

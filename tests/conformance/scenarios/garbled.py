"""Malformed bodies for every endpoint that reads one. They must not change the topic."""

from broker.model import Poll, PublishRequest, RollbackRange, log_key
from broker.wire import avro
from broker.wire.transaction import encode_transaction
from broker.wire.varint import encode_bytes, encode_long
from tests.conformance.exchange import Sent
from tests.conformance.script import AVRO, Script

NOT_A_VARINT = b"\x80" * 11
HUGE = 1 << 40


def _post(s: Script, action: str, label: str, body: bytes) -> None:
    s.send(f"{action}: {label}", Sent("POST", s.path("t", action), body, AVRO))


def _cut(s: Script, action: str, body: bytes) -> None:
    for size in range(len(body)):
        _post(s, action, f"{size} of {len(body)} bytes", body[:size])


def broken_publishes(s: Script) -> None:
    s.create("t")
    _cut(s, "publish", b"\x02\x04\x02a\x04bb\x00")
    _cut(s, "publish", avro.encode_publish_request(PublishRequest(s.tx(1), [b"a", b"b"])))
    broken = {
        "union branch 2": b"\x04\x02\x02a\x00",
        "union branch -1": b"\x01\x02\x02a\x00",
        "a union branch of 64 bits": encode_long(HUGE) + b"\x02\x02a\x00",
        "a pointer that never ends": b"\x00" + NOT_A_VARINT,
        "a count that never ends": b"\x02" + NOT_A_VARINT,
        "a count of many": b"\x02" + encode_long(1_000_000) + b"\x02a",
        "a length past the end": b"\x02\x02\x20a\x00",
        "a negative length": b"\x02\x02\x03a\x00",
        "a block of negative size": b"\x02\x01\x03\x02a",
        "no zero at the end": b"\x02\x02\x02a",
        "text": b"hello",
        "JSON": b'{"messages": []}',
        "zeros": bytes(40),
    }
    for label, body in broken.items():
        _post(s, "publish", label, body)
    s.poll("t")


def broken_stores(s: Script) -> None:
    s.create("t")
    _cut(s, "store", avro.encode_publish_request(PublishRequest(s.tx(1), [b"a", b"b"])))
    head = b"\x00" + encode_long(s.tx(1))
    broken = {
        "union branch 2": b"\x04\x02\x02a\x00",
        "a count of many": head + encode_long(1_000_000) + b"\x02a",
        "a length past the end": head + b"\x02\x20a\x00",
        "a negative length": head + b"\x02\x03a\x00",
        "text": b"hello",
    }
    for label, body in broken.items():
        _post(s, "store", label, body)
    s.publish("t", tx=1)
    s.poll("t")


def broken_rollbacks(s: Script) -> None:
    s.create("t")
    published = s.publish("t", "a", tx=1)
    assert published is not None
    valid = avro.encode_publish_response(RollbackRange(s.tx(1), log_key(1, 0), log_key(1, 0)))
    _cut(s, "rollback", valid)
    head = b"\x00" + encode_long(s.tx(1))
    broken = {
        "no pointer": b"\x02\x02\x00\x02\x00",
        "union branch 2": b"\x04\x02\x00\x02\x00",
        "a time that never ends": head + NOT_A_VARINT,
        "an int of 64 bits": head + b"\x02" + encode_long(HUGE) + b"\x02\x00",
        "text": b"hello",
    }
    for label, body in broken.items():
        _post(s, "rollback", label, body)
    _post(s, "rollback", "bytes after the end", published.raw + b"more")
    s.poll("t")
    s.poll("t", snapshot=s.snapshot(9), said="as of tx9")


def broken_polls(s: Script) -> None:
    s.create("t")
    s.publish("t", "a")
    _cut(s, "poll", avro.encode_poll(Poll(bytes(20), False, 7)))
    _cut(s, "poll", avro.encode_poll(Poll(1_480_000_000_000, True, None)))
    broken = {
        "start of branch 3": b"\x06\x01\x02\x02",
        "start of branch -1": b"\x01\x01\x02\x02",
        "an id of 0 bytes": b"\x00\x00\x01\x02\x02",
        "an id of 19 bytes": b"\x00" + encode_bytes(bytes(19)) + b"\x01\x02\x02",
        "an id of negative length": b"\x00\x03\x01\x02\x02",
        "an id past the end": b"\x00\x28\x01\x02\x02",
        "a boolean of 2": b"\x04\x02\x02\x02",
        "limit of branch 2": b"\x04\x01\x04\x02",
        "a limit of 64 bits": b"\x04\x01\x00" + encode_long(HUGE) + b"\x02",
        "transaction of branch 2": b"\x04\x01\x02\x04",
        "text": b"hello",
    }
    for label, body in broken.items():
        _post(s, "poll", label, body)
    s.poll_raw("t", b"\x04\x01\x02\x02more", label="bytes after the end")


def broken_snapshots(s: Script) -> None:
    s.create("t")
    s.publish("t", "a")
    valid = encode_transaction(s.snapshot(3, invalid=(1,), in_progress=(2,)))
    pieces = {f"{size} of {len(valid)} bytes": valid[:size] for size in range(0, len(valid), 6)}
    broken = pieces | {
        "a list of many": valid[:25] + b"\x0a\x40\x00\x00\x00" + valid[30:],
        "a list of negative size": valid[:25] + b"\x0a\xff\xff\xff\xff" + valid[30:],
        "a type that is none": b"\x77" + valid[1:],
        "text": b"hello",
    }
    for label, snapshot in broken.items():
        _post(s, "poll", label, b"\x04\x01\x02\x00" + encode_bytes(snapshot))


def snapshots_of_other_versions(s: Script) -> None:
    """The server skips unknown fields; missing lists are empty."""
    s.create("t")
    s.publish("t", "a", tx=1)
    s.publish("t", "b")
    s.poll("t")
    valid = encode_transaction(s.snapshot(3))
    unknown = b"\x0b\x00\x14\x00\x00\x00\x03abc"
    others = {
        "as it is": valid,
        "an unknown field": unknown + valid,
        "bytes after the end": valid + b"more",
        "without lists": valid[:22] + valid[-1:],
    }
    for label, snapshot in others.items():
        body = b"\x04\x01\x02\x00" + encode_bytes(snapshot)
        s.poll_raw("t", body, label=f"snapshot {label}")


SCENARIOS = (
    broken_publishes,
    broken_stores,
    broken_rollbacks,
    broken_polls,
    broken_snapshots,
    snapshots_of_other_versions,
)

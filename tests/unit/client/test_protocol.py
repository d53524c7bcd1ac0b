import json
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.client import protocol
from broker.client.client_request import Reply
from broker.client.node_directory import Leader
from broker.client.values import Published
from broker.errors import BadName, BadRequest
from broker.model import Poll, PublishRequest, Snapshot, TopicId
from broker.wire import attributes, messages

TOPIC = TopicId("ns1", "t1")
ID = bytes(range(20))


@pytest.mark.parametrize(
    "name", ["ns1/t1", ("ns1", "t1"), TOPIC], ids=["text", "pair", "identifier"]
)
def test_topics_are_named_in_several_ways(name):
    assert protocol.topic_id(name, "default") == TOPIC


def test_a_bare_name_lies_in_the_clients_namespace():
    assert protocol.topic_id("t1", "ns1") == TOPIC


@pytest.mark.parametrize("name", ["ns1/", "/t1", "ns-1/t1", "ns1/t1/x", "", ("a", "b c")])
def test_names_that_no_topic_can_have_are_refused(name):
    with pytest.raises(BadName):
        protocol.topic_id(name, "default")


def test_publish_is_the_original_wire():
    request = protocol.publish(TOPIC, PublishRequest(None, [b"a", b"b"]))
    assert request.method == "POST"
    assert request.path == "/v1/namespaces/ns1/topics/t1/publish"
    assert request.headers == {"Content-Type": "avro/binary"}
    assert request.body == bytes.fromhex("02040261026200")
    assert not request.repeatable


def test_a_publish_of_stored_messages_is_a_pointer_alone():
    assert protocol.publish(TOPIC, PublishRequest(1, [])).body == bytes.fromhex("000200")


def test_a_key_makes_a_publish_repeatable_and_a_lifetime_is_asked_for_in_the_query():
    request = protocol.publish(TOPIC, PublishRequest(None, [b"a"]), key="k1", ttl_s=60)
    assert request.repeatable
    assert not request.reading
    assert request.headers["Idempotency-Key"] == "k1"
    assert request.path.endswith("/publish?ttl=60")


def test_lag_is_asked_with_an_id_and_answered_with_a_number():
    request = protocol.lag(TOPIC, ID)
    assert (request.method, request.reading) == ("GET", True)
    assert request.path == f"/v1/namespaces/ns1/topics/t1/lag?after={ID.hex()}"
    body = b'{"after": "%s", "messages": 7}' % ID.hex().encode()
    assert protocol.lag_count(Reply(200, {}, body)) == 7


def test_a_range_is_asked_for_with_its_bounds():
    bounds = {"through": None, "messages": 9, "size": None, "parts": 1}
    request = protocol.topic_range(TOPIC, after=ID, **bounds)
    assert request.path.endswith(f"/t1/range?after={ID.hex()}&messages=9")
    unbound = protocol.topic_range(TOPIC, after=None, **{**bounds, "messages": None})
    assert unbound.path.endswith("/t1/range")
    told = dict.fromkeys(("earliest", "latest", "after", "through"), ID.hex())
    body = {**told, "messages": 7, "bytes": 8, "lost": 1, "ends": [ID.hex()]}
    found = protocol.range_found(Reply(200, {}, json.dumps(body).encode()))
    assert (found.through, found.messages, found.size, found.lost, found.ends) == (
        ID,
        7,
        8,
        1,
        [ID],
    )


def test_a_key_that_no_header_can_have_is_refused_before_it_is_sent():
    for key in ("a\r\nX-Other: header", "a b", ""):
        with pytest.raises(BadRequest, match="visible ASCII"):
            protocol.publish(TOPIC, PublishRequest(None, [b"a"]), key=key)
        with pytest.raises(BadRequest, match="visible ASCII"):
            protocol.store(TOPIC, PublishRequest(1, [b"a"]), key=key)


def test_store_has_a_pointer():
    request = protocol.store(TOPIC, PublishRequest(1, [b"m2"]))
    assert request.path.endswith("/store")
    assert request.body == bytes.fromhex("00020204 6d3200".replace(" ", ""))


def test_an_answer_to_a_transactional_publish_is_kept_as_it_came():
    assert protocol.published(Reply(200, {}, b"xyz")) == Published(rollback=b"xyz")
    assert protocol.published(Reply(200, {}, b"")) == Published()


def test_a_replayed_answer_says_so():
    reply = Reply(200, {"idempotency-replayed": "true"}, b"")
    assert protocol.published(reply).replayed


def test_an_answer_names_the_leader_that_acknowledged():
    headers = {"broker-leader": "http://b:8082;node=2;epoch=7"}
    leader = Leader("http://b:8082", 2, 7)
    assert protocol.published(Reply(200, headers, b"")) == Published(leader=leader)
    replayed = {**headers, "idempotency-replayed": "true"}
    assert protocol.published(Reply(200, replayed, b"x")) == Published(b"x", True, leader)


def test_an_answer_tells_the_ids_and_the_number_of_messages():
    headers = {"broker-first-id": "01" * 20, "broker-last-id": "02" * 20, "broker-count": "7"}
    told = Published(first_id=b"\1" * 20, last_id=b"\2" * 20, count=7)
    assert protocol.published(Reply(200, headers, b"")) == told
    for count in ("-1", "9" * 5000):  # int() refuses so many digits.
        garbled = {"broker-first-id": "x", "broker-last-id": "", "broker-count": count}
        assert protocol.published(Reply(200, garbled, b"")) == Published()


def test_rollback_sends_the_answer_back_and_may_be_repeated():
    request = protocol.rollback(TOPIC, b"xyz")
    assert (request.body, request.repeatable, request.reading) == (b"xyz", True, False)


def test_poll_is_the_original_wire_and_waits_on_request():
    request = protocol.poll(TOPIC, Poll(start=0, limit=10), wait_s=1.5)
    assert request.body == bytes.fromhex("020001001402")
    assert request.path.endswith("/poll?wait=1.5")
    assert request.reading
    assert protocol.poll(TOPIC, Poll()).path.endswith("/poll")


def test_only_requests_beyond_the_original_protocol_use_another_form():
    plain = protocol.publish(TOPIC, PublishRequest(None, [b"a"]))
    assert plain.headers["Content-Type"] == "avro/binary"
    keyed = PublishRequest(None, [b"a"], attributes=[attributes.encode(b"k", {})])
    for wanted in (keyed, PublishRequest(None, [b"a"], ttls_s=[5])):
        for request in (
            protocol.publish(TOPIC, wanted),
            protocol.store(TOPIC, wanted),
            protocol.store_staged(TOPIC, "17", wanted),
        ):
            assert request.headers["Content-Type"] == "avro/message"
            assert messages.decode_publish_request(request.body, messages_max=1) == wanted


def test_a_poll_asks_for_keys_and_headers():
    assert protocol.poll(TOPIC, Poll()).headers == {
        "Content-Type": "avro/binary",
        "Accept": "avro/message",
    }


def test_browse_asks_for_ids_times_and_moments():
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    bounds = protocol.browse_bounds(ID, moment, 7, descending=True, full=True)
    request = protocol.browse(TOPIC, bounds=bounds)
    assert request.path.endswith(
        f"/messages?from={ID.hex()}&to=1769817600000&limit=7&order=desc&payload=full"
    )
    assert request.method == "GET"


def test_browse_with_a_snapshot_posts_it():
    snapshot = Snapshot(transaction_id=3, read_pointer=3, in_progress=[2])
    request = protocol.browse(TOPIC, bounds={}, snapshot=snapshot)
    assert request.method == "POST"
    assert b"0a00010000000000000003" in request.body


def test_a_page_of_browsing_is_read():
    first = {
        "id": ID.hex(),
        "time": "2026-01-31T00:00:00.000Z",
        "timestamp_ms": 7,
        "size": 1,
        "expires_at": None,
        "kind": "inline",
        "tx_state": "published",
        "write_pointer": 5,
        "encoding": "base64",
        "payload": "/w==",
        "truncated": False,
        "consumable": True,
    }
    second = {**first, "kind": "reference", "payload": None}
    del second["consumable"]
    body = json.dumps({"messages": [first, second], "next": ID.hex()})
    page = protocol.browse_page(Reply(200, {}, body.encode()))
    first, second = page.messages
    assert (first.payload, first.write_pointer, first.consumable) == (b"\xff", 5, True)
    assert (second.payload, second.consumable) == (None, None)
    assert page.next == ID.hex()


def test_topic_properties_are_read():
    info = protocol.topic_info(TOPIC, Reply(200, {}, b'{"generation":"2","ttl":"60","x":"y"}'))
    assert (info.generation, info.ttl_s, info.properties["x"]) == (2, 60, "y")


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("now", "now"),
        (1_764_000_000_123, "1764000000123"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "1769860800000"),
    ],
)
def test_the_moment_of_a_purge(before: datetime | int, text: str) -> None:
    request = protocol.purge(TopicId("ns", "t"), before)
    assert request.path == f"/v1/namespaces/ns/topics/t/purge?before={text}"
    assert request.repeatable == (before != "now"), "a repeated 'now' is another moment"
    assert not request.reading


NAIVE = datetime(2026, 1, 31)  # noqa: DTZ001


@pytest.mark.parametrize("before", [-1, True, 1.5, "1h", b"now", None, "00" * 20, NAIVE])
def test_a_purge_refuses_an_unclear_moment(before: Any) -> None:
    with pytest.raises((BadRequest, TypeError), match="before"):
        protocol.purge(TopicId("ns", "t"), before)

"""CDAP's own Java client, unmodified, against this broker."""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.http import server
from broker.http.body import COUNTED_BYTES_MIN
from broker.http.budget import Bounds, BudgetKind, Budgets
from broker.model import PublishRequest, Snapshot, timestamp_of
from broker.wire import avro
from broker.wire.transaction import encode_transaction
from tests.conformance.exchange import Connection, Sent
from tests.conformance.script import AVRO
from tests.kit.served import ServedNode
from tests.kit.servers import JavaClient, JavaError
from tests.kit.servers.javaclient import JavaTopics

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

DEFAULT_TTL = "604800"
NAMESPACES = (f"java{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with ServedNode() as node:
        yield node


@pytest.fixture
def java(java_client: JavaClient, node: ServedNode) -> JavaTopics:
    """The Java client's calls, in this test's own namespace."""
    return java_client.at(node.port, namespace=next(NAMESPACES))


def pointer_now() -> int:
    """Return a write pointer like the ones that a transaction service gives now."""
    return time.time_ns()


def payloads(found: object) -> list[bytes]:
    assert isinstance(found, list)
    return [payload for _, payload in found]


def assert_throws(name: str, call: Callable[[], object], *, says: str = "") -> None:
    with pytest.raises(JavaError) as thrown:
        call()
    assert thrown.value.simple_name == name
    assert says in str(thrown.value)


def test_topics_are_administered(java: JavaTopics) -> None:
    assert java.list() == []
    java.create("t")
    java.create("a-b", ttl="60", owner="me")
    assert java.get("t") == {"generation": "1", "ttl": DEFAULT_TTL}
    assert java.get("a-b") == {"generation": "1", "ttl": "60", "owner": "me"}
    java.update("a-b", ttl="3600")
    assert java.get("a-b") == {"generation": "1", "ttl": "3600"}
    assert java.list() == ["a-b", "t"]
    java.delete("t")
    assert java.list() == ["a-b"]
    java.create("t", ttl="5")
    assert java.get("t") == {"generation": "2", "ttl": "5"}


def test_exceptions_have_the_names_of_the_original(java: JavaTopics) -> None:
    missing: tuple[Callable[[], object], ...] = (
        lambda: java.get("no"),
        lambda: java.update("no", ttl="5"),
        lambda: java.delete("no"),
        lambda: java.publish("no", b"x"),
        lambda: java.publish("no", b"x", write_pointer=pointer_now()),
        lambda: java.store("no", b"x", write_pointer=pointer_now()),
        lambda: java.fetch("no"),
    )
    for call in missing:
        assert_throws("TopicNotFoundException", call)
    java.create("t")
    assert_throws("TopicAlreadyExistsException", lambda: java.create("t"))
    assert_throws("IllegalArgumentException", lambda: java.create("u", ttl="0"))
    assert_throws("IllegalArgumentException", lambda: java.create("u", ttl="soon"))
    assert_throws("IllegalArgumentException", lambda: java.fetch("t", start=b"short"))
    published = java.publish("t", b"x", write_pointer=pointer_now())
    assert published is not None
    java.delete("t")
    assert_throws("TopicNotFoundException", lambda: java.rollback("t", published))


def test_messages_are_published_and_fetched(java: JavaTopics) -> None:
    java.create("t")
    assert java.fetch("t") == []
    assert java.publish("t", b"a") is None
    assert java.publish("t", b"b", b"", b"\x00\xff") is None
    found = java.fetch("t")
    assert payloads(found) == [b"a", b"b", b"", b"\x00\xff"]
    ids = [identifier for identifier, _ in found]
    assert ids == sorted(set(ids))


def test_fetches_begin_at_the_given_start(java: JavaTopics) -> None:
    java.create("t")
    java.publish("t", *(b"%d" % number for number in range(10)))
    found = list(java.fetch("t"))
    fourth = found[3][0]
    assert java.fetch("t", start=fourth) == found[3:]
    assert java.fetch("t", start=fourth, inclusive=False) == found[4:]
    assert java.fetch("t", start=fourth, inclusive=False, limit=2) == found[4:6]
    assert java.fetch("t", limit=1) == found[:1]
    assert java.fetch("t", start=timestamp_of(fourth)) == found
    assert java.fetch("t", start=timestamp_of(found[-1][0]) + 1) == []
    assert java.fetch("t", start=0, limit=3) == found[:3]


def test_a_transaction_is_published_and_rolled_back(java: JavaTopics) -> None:
    java.create("t")
    pointer = pointer_now()
    published = java.publish("t", b"a", b"b", write_pointer=pointer)
    assert published is not None
    assert published.write_pointer == pointer
    start = (published.start_timestamp, published.start_sequence_id)
    end = (published.end_timestamp, published.end_sequence_id)
    assert start < end
    found = java.fetch("t")
    assert [timestamp_of(identifier) for identifier, _ in found] == [start[0], end[0]]
    fields = {"transaction_id": pointer + 9, "invalids": [], "first_short": pointer}
    committed = fields | {"read_pointer": pointer, "in_progress": []}
    in_progress = fields | {"read_pointer": pointer, "in_progress": [pointer]}
    assert java.fetch("t", transaction=committed) == found
    assert java.fetch("t", transaction=in_progress) == []
    java.publish("t", b"after")
    java.rollback("t", published)
    assert payloads(java.fetch("t", transaction=committed)) == [b"after"]
    assert payloads(java.fetch("t")) == [b"a", b"b", b"after"]


def test_stored_messages_appear_with_their_reference(java: JavaTopics) -> None:
    java.create("t")
    pointer = pointer_now()
    java.store("t", b"a", b"b", write_pointer=pointer)
    java.store("t", b"c", write_pointer=pointer)
    assert java.fetch("t") == []
    published = java.publish("t", write_pointer=pointer)
    assert published is not None
    found = list(java.fetch("t"))
    assert payloads(found) == [b"a", b"b", b"c"]
    snapshot = Snapshot(transaction_id=pointer + 1, read_pointer=pointer)
    encoded = encode_transaction(snapshot)
    assert java.fetch("t", transaction=encoded) == found
    for number, (identifier, _) in enumerate(found):
        page = java.fetch("t", start=identifier, inclusive=False, limit=1, transaction=encoded)
        assert page == found[number + 1 : number + 2]
    assert_throws(
        "IOException",
        lambda: java.store("t", b"late", write_pointer=pointer),
        says="nothing can be added",
    )
    java.rollback("t", published)
    assert java.fetch("t", transaction=encoded) == []


def test_twenty_thousand_messages_in_one_request_keep_their_order(java: JavaTopics) -> None:
    java.create("t")
    sent = [b"%d" % number for number in range(20_000)]
    java.publish("t", *sent)
    assert payloads(java.fetch("t")) == sent


def test_a_fetch_may_end_early(java: JavaTopics) -> None:
    """The client disconnects during a reply that is larger than all buffers between the two sides."""
    java.create("t")
    body = avro.encode_publish_request(PublishRequest(None, [b"x" * 10_000] * 2000))
    path = f"/v1/namespaces/{java.namespace}/topics/t/publish"
    with Connection(java.host, java.port) as connection:
        assert connection.send(Sent("POST", path, body, AVRO)).status == 200
    for _ in range(3):
        assert len(java.fetch("t", take=2)) == 2
    java.publish("t", b"still here")
    assert len(java.fetch("t", limit=3)) == 3


def test_several_clients_at_once(node: ServedNode) -> None:
    def work(number: int) -> list[bytes]:
        with JavaClient() as client:
            java = client.at(node.port, namespace="crowd")
            for count in range(50):
                java.publish("t", b"%d/%d" % (number, count))
            return payloads(java.fetch("t"))

    with JavaClient() as client:
        crowd = client.at(node.port, namespace="crowd")
        crowd.create("t")
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        found = payloads(crowd.fetch("t"))
    for number in range(3):
        own = [payload for payload in found if payload.startswith(b"%d/" % number)]
        assert own == [b"%d/%d" % (number, count) for count in range(50)]
    assert len(found) == 150


def test_an_old_transaction_is_an_error_with_our_message(java: JavaTopics) -> None:
    java.create("t")
    says = "Transaction 7 began more than 90000 seconds ago"
    assert_throws("IOException", lambda: java.publish("t", b"x", write_pointer=7), says=says)
    assert_throws("IOException", lambda: java.store("t", b"x", write_pointer=7), says=says)
    assert java.fetch("t") == []


def test_the_client_sees_an_overloaded_broker_as_unavailable(
    java_client: JavaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Budgets] = []

    def budgets_of(bounds: dict[BudgetKind, Bounds]) -> Budgets:
        made.append(Budgets(bounds))
        return made[-1]

    monkeypatch.setattr(server, "Budgets", budgets_of)
    with ServedNode() as node:
        java = java_client.at(node.port)
        java.create("t")
        (budgets,) = made
        bounds = budgets.bounds
        budgets.bounds = {**bounds, BudgetKind.BODY_BYTES: Bounds(10_000, 10_000, 0)}
        payload = b"x" * COUNTED_BYTES_MIN
        assert_throws("ServiceUnavailableException", lambda: java.publish("t", payload))
        budgets.bounds = bounds
        java.publish("t", payload)
        assert payloads(java.fetch("t")) == [payload]


def test_the_client_sees_a_missing_broker_as_unavailable(java_client: JavaClient) -> None:
    with ServedNode() as node:
        port = node.port
    java = java_client.at(port)
    assert_throws("ServiceUnavailableException", lambda: java.publish("t", b"x"))

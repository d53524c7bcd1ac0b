"""The transactions that block the head of a topic, pruning, and the operations that show hidden messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from broker.api.transactions import advice
from broker.client import Client, NotAllowed
from broker.clock import SystemClock
from broker.config.sections import Config, ServerConfig, TopicsConfig, TransactionsConfig
from broker.errors import NotFound, Unavailable
from broker.model import PublishRequest, Snapshot, message_id_from_hex
from broker.node.transactions import ServiceElsewhere
from broker.topics import blockers as searching
from broker.wire import avro
from broker.wire.transaction import encode_transaction
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.served import RESETTING
from tests.kit.serving import Broker, Http, listening, topic_path

AVRO = {"Content-Type": "avro/binary"}
JSON = {"Content-Type": "application/json", "Accept": "application/json"}
THRIFT = {"Content-Type": "application/x-thrift", "Accept": "application/json"}
BLOCKERS = topic_path("t", "blockers")
SERVICE = "/v1/transactions"


async def publish(broker: Broker, *payloads: bytes, pointer: int | None = None) -> None:
    body = avro.encode_publish_request(PublishRequest(pointer, payloads))
    reply = await broker.call("POST", topic_path("t", "publish"), body, AVRO)
    assert reply.status == 200, reply


async def begun(broker: Broker, **sent: Any) -> int:
    reply = await broker.call("POST", SERVICE, json.dumps(sent).encode(), JSON)
    return int(reply.json["transaction_id"])


async def blockers(broker: Broker, query: str = "", body: bytes = b"") -> Any:
    reply = await broker.call("POST", BLOCKERS + query, body, THRIFT)
    assert reply.status == 200, reply
    return reply.json


async def test_nothing_blocks_a_topic_without_open_transactions(broker: Broker) -> None:
    await publish(broker, b"a", b"b")
    assert await blockers(broker) == {
        "snapshot_of": "now",
        "read_pointer": str((await broker.transactions.snapshot()).read_pointer),
        "blockers": [],
        "complete": True,
        "service_problem": None,
    }


async def test_each_open_transaction_is_told_in_the_order_of_its_first_message(
    broker: Broker,
) -> None:
    first, second = await begun(broker, client="cart"), await begun(broker, type="long")
    await publish(broker, b"free")
    await publish(broker, b"a", pointer=second)
    await publish(broker, b"b", b"b", pointer=first)
    await publish(broker, b"a", b"a", pointer=second)
    await publish(broker, b"behind", b"behind")
    told = (await blockers(broker))["blockers"]
    assert [int(each["transaction"]) for each in told] == [second, first]
    assert [(each["messages"], each["waiting"]) for each in told] == [(3, 6), (2, 5)]
    assert [each["state"] for each in told] == ["in_progress"] * 2
    assert [each["type"] for each in told] == ["long", "short"]
    assert told[1]["client"] == "cart"
    assert told[0]["started_at"] < told[0]["expires_at"]
    assert f"broker tx invalidate {second}" in told[0]["advice"]
    page = await broker.call("GET", topic_path("t", "messages"))
    assert told[0]["first"]["id"] == page.json["messages"][1]["id"]
    # Ended, it blocks no more.
    await broker.transactions.invalidate(second)
    assert [int(each["transaction"]) for each in (await blockers(broker))["blockers"]] == [first]
    await broker.transactions.commit(first)
    assert (await blockers(broker))["blockers"] == []


class OnceWrong(SystemClock):
    ahead_ms = 0

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_a_transaction_with_a_number_of_the_future_blocks_like_any_other() -> None:
    """Numbers rise strictly, so after a clock that was once wrong they tell nothing of a transaction's beginning."""
    clock = OnceWrong()
    broker = Broker(clock=clock)
    clock.ahead_ms = 10 * 365 * 24 * 3_600_000
    with capture_logs() as lines:
        await broker.transactions.commit(await begun(broker))
        clock.ahead_ms = 0
        await broker.call("PUT", topic_path("t"))
        await publish(broker, b"free")
        pointer = await begun(broker)
        await publish(broker, b"a", pointer=pointer)
        await publish(broker, b"behind")
    (told,) = (await blockers(broker))["blockers"]
    assert (int(told["write_pointer"]), told["waiting"]) == (pointer, 1)
    snapshot = encode_transaction(await broker.transactions.snapshot()).hex()
    page = await broker.call(
        "POST", topic_path("t", "messages"), json.dumps({"snapshot": snapshot}).encode(), JSON
    )
    assert [each["consumable"] for each in page.json["messages"]] == [True, False, False]
    (line,) = [each for each in lines if each["log_level"] == "warning"]
    assert "new transactions get a number of the future" in line["event"]
    assert "'New transactions have a number of the future'" in line["advice"]
    await broker.close()


async def test_a_blocker_is_found_by_its_checkpoints(broker: Broker) -> None:
    transaction = await begun(broker)
    pointer = (await broker.transactions.checkpoint(transaction)).write_pointer
    await publish(broker, b"x", pointer=pointer)
    (told,) = (await blockers(broker))["blockers"]
    assert (told["transaction"], told["write_pointer"]) == (str(transaction), str(pointer))
    assert told["state"] == "in_progress"


async def test_a_snapshot_in_the_body_is_the_consumers(broker: Broker) -> None:
    pointer = await begun(broker)
    await publish(broker, b"x", pointer=pointer)
    await broker.transactions.commit(pointer)
    old = Snapshot(transaction_id=pointer + 1, read_pointer=pointer + 1, in_progress=[pointer])
    bodies = [
        (encode_transaction(old), THRIFT),
        (json.dumps({"snapshot": encode_transaction(old).hex()}).encode(), JSON),
    ]
    for body, headers in bodies:
        reply = await broker.call("POST", BLOCKERS, body, headers)
        (told,) = reply.json["blockers"]
        assert (reply.json["snapshot_of"], told["write_pointer"]) == ("request", str(pointer))
        # The service has forgotten what was committed.
        assert told["state"] == "unknown"
        assert "newer snapshot" in told["advice"]


async def test_a_transaction_of_the_service_is_a_consumer(broker: Broker) -> None:
    older, mine = await begun(broker), await begun(broker)
    younger = await begun(broker)
    for pointer in (mine, older, younger):
        await publish(broker, b"x", pointer=pointer)
    await broker.transactions.commit(younger)
    told = await blockers(broker, f"?transaction={mine}")
    assert told["snapshot_of"] == "transaction"
    # It sees its own messages. It does not see those of a transaction that began after it, committed or not.
    assert [int(each["write_pointer"]) for each in told["blockers"]] == [older, younger]
    assert [int(each["write_pointer"]) for each in (await blockers(broker))["blockers"]] == [
        mine,
        older,
    ]


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        ("?transaction=5", b"", 404),
        ("?transaction=x", b"", 400),
        ("?transaction=-1", b"", 400),
        ("?limit=0", b"", 400),
        ("?limit=101", b"", 400),
        ("?from=x", b"", 400),
        ("?transaction=5", b"{}", 400),
        ("", b"{}", 400),
        ("", b"\xff", 400),
    ],
)
async def test_a_malformed_consumer_is_refused(
    broker: Broker, query: str, body: bytes, status: int
) -> None:
    assert (await broker.call("POST", BLOCKERS + query, body, JSON)).status == status


async def test_a_transaction_that_is_over_reads_nothing(broker: Broker) -> None:
    pointer = await begun(broker)
    await broker.transactions.invalidate(pointer)
    reply = await broker.call("POST", f"{BLOCKERS}?transaction={pointer}", b"", JSON)
    assert (reply.status, "invalid" in reply.json["message"]) == (400, True)


async def test_a_search_has_its_place_and_its_bounds(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointers = [await begun(broker) for _ in range(3)]
    for pointer in pointers:
        await publish(broker, b"x", pointer=pointer)
    told = await blockers(broker, "?limit=2")
    assert [int(each["write_pointer"]) for each in told["blockers"]] == pointers[:2]
    assert told["complete"] is False
    third = (await blockers(broker))["blockers"][2]["first"]["id"]
    told = await blockers(broker, f"?from={third}")
    assert [int(each["write_pointer"]) for each in told["blockers"]] == pointers[2:]
    behind = (int(third[:20], 16) + 1).to_bytes(10, "big") + bytes(10)
    assert (await blockers(broker, f"?from={behind.hex()}"))["blockers"] == []
    monkeypatch.setattr(searching, "ENTRIES_MAX", 1)
    monkeypatch.setattr(searching, "AT_ONCE_BYTES", 1)
    told = await blockers(broker)
    assert (len(told["blockers"]), told["complete"]) == (1, False)


async def test_a_search_goes_on_to_the_first_transaction_that_blocks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader from now on begins before it, so an answer without it would let the reader pass its messages."""
    pointer = await begun(broker)
    for number in range(5):
        await publish(broker, b"%d" % number)
    await publish(broker, b"x", pointer=pointer)
    monkeypatch.setattr(searching, "ENTRIES_MAX", 1)
    monkeypatch.setattr(searching, "AT_ONCE_BYTES", 1)
    told = await blockers(broker)
    assert [int(each["write_pointer"]) for each in told["blockers"]] == [pointer]


async def test_rolled_back_messages_block_nothing(broker: Broker) -> None:
    pointer = await begun(broker)
    body = avro.encode_publish_request(PublishRequest(pointer, [b"x"]))
    published = await broker.call("POST", topic_path("t", "publish"), body, AVRO)
    await broker.call("POST", topic_path("t", "rollback"), published.body, AVRO)
    assert (await blockers(broker))["blockers"] == []


async def test_a_reference_counts_as_what_it_shows(broker: Broker) -> None:
    pointer = await begun(broker)
    body = avro.encode_publish_request(PublishRequest(pointer, [b"a", b"b", b"c"]))
    assert (await broker.call("POST", topic_path("t", "store"), body, AVRO)).status == 200
    await publish(broker, pointer=pointer)
    (told,) = (await blockers(broker))["blockers"]
    assert told["messages"] == 3


async def test_the_service_may_be_silent_for_a_snapshot_of_the_body(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = await begun(broker)
    await publish(broker, b"x", pointer=pointer)

    async def silent(*_: object, **__: object) -> None:
        raise Unavailable("no node leads it")

    for name in ("listing", "show", "snapshot"):
        monkeypatch.setattr(broker.transactions, name, silent)
    old = Snapshot(transaction_id=pointer + 1, read_pointer=pointer + 1, in_progress=[pointer])
    told = await blockers(broker, body=encode_transaction(old))
    (blocker,) = told["blockers"]
    assert (blocker["state"], told["service_problem"]) == (None, "no node leads it")
    assert "does not answer" in blocker["advice"]
    assert (await broker.call("POST", BLOCKERS, b"", JSON)).status == 503


@pytest.mark.parametrize("state", ["in_progress", "committing", "invalid", "unknown", None])
def test_there_is_advice_for_each_state(state: str | None) -> None:
    assert advice(state, 7, 1_764_000_000_000).endswith(".")


# Pruning.


async def test_a_plan_changes_nothing_and_says_why_not_more(broker: Broker) -> None:
    plan = (await broker.call("GET", f"{SERVICE}/prune", b"", JSON)).json
    assert (plan["invalid"], plan["prunable"], plan["reason"]) == (0, 0, None)
    pointer = await begun(broker)
    await broker.transactions.invalidate(pointer)
    plan = (await broker.call("GET", f"{SERVICE}/prune", b"", JSON)).json
    assert (plan["invalid"], plan["prunable"], plan["oldest_left"]) == (1, 0, str(pointer))
    assert f"Transaction {pointer} is younger" in plan["reason"]
    done = (await broker.call("POST", f"{SERVICE}/prune", b"", JSON)).json
    assert done["removed"] == 0


# In a cluster any node answers, and so does a service elsewhere.


@pytest.mark.parametrize("leader", [0, 1])
@on_cluster(nodes=2)
async def test_any_node_of_a_cluster_tells_the_blockers(cluster: HttpCluster, leader: int) -> None:
    """One of these topic leaders also leads the service, and the other one does not."""
    await cluster.lead(leader)
    pointer = int((await cluster(0, "POST", SERVICE, b"", JSON)).json["transaction_id"])
    body = avro.encode_publish_request(PublishRequest(pointer, [b"x"]))
    assert (await cluster(0, "POST", topic_path("t", "publish"), body, AVRO)).status == 200
    for node in (0, 1):
        reply = await cluster(node, "POST", BLOCKERS, b"", JSON)
        assert [int(each["transaction"]) for each in reply.json["blockers"]] == [pointer]
        assert reply.json["blockers"][0]["state"] == "in_progress"
        assert reply.headers["Broker-Leader"] == f"{cluster.url(leader)};node={leader};epoch=1"
        reply = await cluster(node, "GET", f"{SERVICE}/prune", b"", JSON)
        assert (reply.status, reply.json["invalid"]) == (200, 0)


@pytest.mark.parametrize("leader", [0, 1])
@on_cluster(nodes=2)
async def test_any_node_tells_transactions_that_the_service_does_not_know(
    cluster: HttpCluster, leader: int
) -> None:
    await cluster.lead(leader)
    pointer = int((await cluster(0, "POST", SERVICE, b"", JSON)).json["transaction_id"])
    body = avro.encode_publish_request(PublishRequest(pointer, [b"x"]))
    assert (await cluster(0, "POST", topic_path("t", "publish"), body, AVRO)).status == 200
    assert (await cluster(0, "POST", f"{SERVICE}/{pointer}/commit", b"", JSON)).status == 200
    old = Snapshot(transaction_id=pointer + 1, read_pointer=pointer + 1, in_progress=[pointer])
    reply = await cluster(0, "POST", BLOCKERS, encode_transaction(old), THRIFT)
    (blocker,) = reply.json["blockers"]
    assert (blocker["state"], reply.json["service_problem"]) == ("unknown", None)
    reply = await cluster(0, "POST", f"{BLOCKERS}?transaction=5", b"", JSON)
    assert (reply.status, reply.json["code"]) == (404, "not_found")


async def test_a_service_elsewhere_is_asked_over_http() -> None:
    broker = Broker(RESETTING)
    pointer = await begun(broker)
    async with listening(broker) as http:
        await asked_elsewhere(broker, ServiceElsewhere(http.url, broker.clock), pointer)
    await broker.close()


async def asked_elsewhere(broker: Broker, elsewhere: ServiceElsewhere, pointer: int) -> None:
    try:
        assert list((await elsewhere.snapshot()).in_progress) == [pointer]
        assert (await elsewhere.show(pointer))["state"] == "in_progress"
        assert len((await elsewhere.list(limit=1))["in_progress"]) == 1
        with pytest.raises(NotFound):
            await elsewhere.show(5)
        await broker.transactions.invalidate(pointer)
        assert await elsewhere.truncate_invalid([pointer]) == 1
    finally:
        await elsewhere.close()


async def test_the_client_asks_the_same(broker: Broker, http: Http) -> None:
    pointer = await begun(broker)
    await publish(broker, b"x", pointer=pointer)
    async with Client(http.url, namespace="default") as client:
        for given in (
            {},
            {"snapshot": await client.transactions.snapshot()},
            {"start": message_id_from_hex("00" * 20), "limit": 5},
        ):
            found = await client.blockers("t", **given)  # type: ignore[arg-type]
            assert [int(each["transaction"]) for each in found["blockers"]] == [pointer]
        assert (await client.blockers("t", transaction=pointer))["blockers"] == []
        await client.transactions.invalidate(pointer)
        assert (await client.transactions.prune_plan())["invalid"] == 1
        assert (await client.transactions.prune())["removed"] == 0


# --- Operations that show hidden messages ----------------------------------------------------------

PATH = "/v1/transactions"
ALLOWED = TransactionsConfig(transactions_reset_allowed=True)


async def post(http: Http | Broker, path: str, sent: Any = None) -> Answered:
    call = http.call if isinstance(http, Broker) else http
    return await call("POST", PATH + path, b"" if sent is None else json.dumps(sent).encode(), JSON)


async def hidden(http: Http | Broker) -> int:
    """Publish a message in a transaction, make it invalid, and return its number."""
    begun = int((await post(http, "")).json["transaction_id"])
    call = http.call if isinstance(http, Broker) else http
    sent = json.dumps({"write_pointer": str(begun), "messages": ["hidden"]}).encode()
    assert (await call("POST", topic_path("t", "publish"), sent, JSON)).status == 200
    assert (await post(http, f"/{begun}/invalidate")).json == {"invalidated": True}
    return begun


async def seen(http: Http | Broker) -> list[str]:
    call = http.call if isinstance(http, Broker) else http
    snapshot = (await call("GET", f"{PATH}/snapshot", b"", JSON)).json
    sent = json.dumps({"snapshot": snapshot}).encode()
    polled = await call("POST", topic_path("t", "poll"), sent, JSON)
    return [each["payload"] for each in polled.json]


@pytest.mark.parametrize("how", ["reset", "ids", "before"])
async def test_hidden_messages_stay_hidden_unless_the_configuration_allows_more(
    broker: Broker, how: str
) -> None:
    begun = await hidden(broker)
    await post(broker, "")
    path, sent = {
        "reset": ("/reset", None),
        "ids": ("/truncate", {"ids": [begun]}),
        "before": ("/truncate", {"before_ms": 1}),
    }[how]
    reply = await post(broker, path, sent)
    assert (reply.status, reply.json["code"], reply.json["outcome"]) == (
        403,
        "not_allowed",
        "refused",
    )
    assert "1 write pointers in progress and 1 invalid" in reply.json["message"]
    assert "--transactions-reset-allowed true" in reply.json["message"]
    assert await seen(broker) == []


async def test_an_allowed_reset_says_what_it_shows_and_is_logged_with_its_caller() -> None:
    broker = Broker(Config(transactions=ALLOWED))
    await broker.call("PUT", topic_path("t"))
    async with listening(broker) as http:
        await hidden(http)
        await post(http, "")
        with capture_logs() as lines:
            reply = await post(http, "/reset")
        assert reply.json == {"in_progress": 1, "invalid": 1}
        (line,) = [each for each in lines if each["event"] == "hidden messages become visible"]
        assert (line["operation"], line["caller"], line["log_level"]) == (
            "reset",
            "127.0.0.1",
            "warning",
        )
        assert (line["in_progress"], line["invalid"]) == (1, 1)
        assert await seen(http) == ["hidden"]
    await broker.close()


async def test_who_ended_a_transaction_is_logged(broker: Broker, http: Http) -> None:
    with capture_logs() as lines:
        begun = await hidden(http)
    (line,) = [each for each in lines if each["event"] == "transactions ended by a caller"]
    assert (line["caller"], line["path"]) == ("127.0.0.1", f"{PATH}/{begun}/invalidate")


async def test_an_abort_that_shows_hidden_messages_is_logged_with_its_caller(http: Http) -> None:
    invalid = await hidden(http)
    own = int((await post(http, "")).json["transaction_id"])
    assert await seen(http) == []
    with capture_logs() as lines:
        await post(http, f"/{own}/abort")
        for _ in range(2):
            assert (await post(http, f"/{invalid}/abort")).status == 200
    assert await seen(http) == ["hidden"]
    (line,) = [each for each in lines if each["event"] == "hidden messages become visible"]
    assert (line["operation"], line["transaction"], line["caller"]) == (
        "abort",
        str(invalid),
        "127.0.0.1",
    )


async def test_the_headers_of_a_node_open_no_door_of_a_standalone_node(broker: Broker) -> None:
    node = {**JSON, "Broker-From": "1/a", "Broker-Protocol": "1"}
    reply = await broker.call("POST", f"{PATH}/reset", b"", node)
    assert (reply.status, reply.json["code"]) == (403, "forbidden")


@pytest.mark.parametrize("node", [0, 1])
@on_cluster(nodes=2, topic=False)
async def test_every_node_refuses(cluster: HttpCluster, node: int) -> None:
    await cluster.lead_all(0)
    await cluster(node, "POST", PATH, b"", JSON)
    reply = await cluster(node, "POST", f"{PATH}/reset", b"", JSON)
    assert (reply.status, reply.json["code"]) == (403, "not_allowed")
    # Headers of a node without the cluster's secret do not help.
    forged = {**JSON, "Broker-From": "1/a", "Broker-Protocol": "2", "Broker-Signature": "x"}
    reply = await cluster(node, "POST", f"{PATH}/reset", b"", forged)
    assert (reply.status, reply.json["code"]) == (403, "forbidden")


@on_cluster(nodes=2, topic=False, transactions=ALLOWED)
async def test_a_node_that_does_not_lead_passes_an_allowed_reset_on(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    await cluster(1, "POST", PATH, b"", JSON)
    reply = await cluster(1, "POST", f"{PATH}/reset", b"", JSON)
    assert (reply.status, reply.json) == (200, {"in_progress": 1, "invalid": 0})


async def test_the_client_raises_the_refusal(http: Http) -> None:
    async with Client(http.url) as client:
        with pytest.raises(NotAllowed):
            await client.transactions.reset()
        with pytest.raises(NotAllowed):
            await client.transactions.truncate(ids=[5])


async def test_pruning_needs_no_permission(broker: Broker) -> None:
    reply = await post(broker, "/prune")
    assert (reply.status, reply.json["removed"]) == (200, 0)


class Ahead(SystemClock):
    ahead_ms = 0

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_a_service_that_brokers_elsewhere_prune_forgets_only_what_is_past_its_life() -> None:
    clock = Ahead()
    broker = Broker(
        Config(
            topics=TopicsConfig(transaction_life_max_s=100),
            transactions=TransactionsConfig(transactions_prune_allowed=True),
        ),
        clock=clock,
    )
    await broker.call("PUT", topic_path("t"))
    begun = await hidden(broker)
    for sent in ({"ids": [str(begun)]}, {"before_ms": str(clock.now_ms() * 2)}, {"ids": []}):
        assert (await post(broker, "/truncate", sent)).json["code"] == "not_allowed"
    assert (await post(broker, "/reset")).json["code"] == "not_allowed"
    clock.ahead_ms = 200_000
    running = int((await post(broker, "")).json["transaction_id"])
    young = {"ids": [str(begun), str(running)]}
    assert (await post(broker, "/truncate", young)).json["code"] == "not_allowed"
    assert (await post(broker, "/truncate", {"ids": [str(begun)]})).json == {"removed": 1}
    await broker.close()


async def test_lines_about_ended_transactions_are_bounded(http: Http) -> None:
    with capture_logs() as lines:
        for _ in range(40):
            begun = (await post(http, "")).json["transaction_id"]
            assert (await post(http, f"/{begun}/invalidate")).json == {"invalidated": True}
    told = [each for each in lines if each["event"] == "transactions ended by a caller"]
    assert 0 < len(told) < 40


def test_the_default_is_off() -> None:
    assert not Config(server=ServerConfig()).transactions.transactions_reset_allowed

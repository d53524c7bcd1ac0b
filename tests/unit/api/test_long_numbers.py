"""Numbers of 64 bits in JSON are strings in every reply, and a client that rounds them gets no other transaction's number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.clock import SystemClock
from broker.config.sections import Config, Role, ServerConfig, TransactionsConfig
from broker.errors import Unavailable
from broker.model import PublishRequest
from broker.wire import avro
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, in_memory, topic_path

PATH = "/v1/transactions"
JSON = {"Content-Type": "application/json", "Accept": "application/json"}
EXACT = 1 << 53


async def ask(broker: Broker, method: str, path: str, sent: Any = None) -> Answered:
    return await broker.call(method, path, b"" if sent is None else json.dumps(sent).encode(), JSON)


def large_numbers(value: object) -> Iterator[int]:
    """Yield the numbers in a JSON value that a double may not hold."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from large_numbers(each)
    elif isinstance(value, int) and abs(value) > EXACT:
        yield value


async def test_no_reply_has_a_number_that_a_double_does_not_hold(broker: Broker) -> None:
    replies = []

    async def told(method: str, path: str, sent: Any = None) -> Any:
        reply = await ask(broker, method, path, sent)
        assert reply.status == 200, reply
        replies.append(reply.json)
        return reply.json

    begun = await told("POST", PATH)
    identifier = begun["transaction_id"]
    checked = await told("POST", f"{PATH}/{identifier}/checkpoint")
    await told("POST", PATH, {"type": "long"})
    publish, messages = topic_path("t", "publish"), topic_path("t", "messages")
    sent = {"write_pointer": checked["write_pointer"], "messages": ["a", "b"]}
    published = await told("POST", publish, sent)
    await told("GET", messages)
    snapshot = await told("GET", f"{PATH}/snapshot")
    await told("POST", messages, {"snapshot": snapshot})
    await told("POST", topic_path("t", "blockers"))
    await told("POST", topic_path("t", "blockers"), {"snapshot": snapshot})
    await told("GET", topic_path("t", "stats"))
    await told("GET", topic_path("t", "range"))
    assert (await ask(broker, "POST", topic_path("t", "rollback"), published)).status == 200
    await told("GET", PATH)
    await told("GET", f"{PATH}/{identifier}")
    await told("POST", f"{PATH}/{identifier}/invalidate")
    await told("GET", f"{PATH}/{identifier}")
    await told("GET", f"{PATH}/prune")
    assert list(large_numbers(replies)) == []
    # What the broker wrote, it reads.
    assert identifier in (await told("GET", f"{PATH}/snapshot"))["invalids"]


def as_javascript(value: Any) -> Any:
    """Return a JSON value as JavaScript sends it after it has parsed it: each number is a double."""
    return json.loads(json.dumps(value), parse_int=lambda text: int(float(text)))


async def test_a_client_that_keeps_numbers_as_doubles_publishes_in_its_own_transactions(
    broker: Broker,
) -> None:
    for _ in range(100):
        begun = as_javascript((await ask(broker, "POST", PATH)).json)
        sent = as_javascript({"write_pointer": begun["write_pointer"], "messages": ["x"]})
        reply = await ask(broker, "POST", topic_path("t", "publish"), sent)
        assert reply.status == 200
        assert (await ask(broker, "POST", f"{PATH}/{begun['transaction_id']}/commit")).status == 200
    page = await ask(broker, "GET", f"{topic_path('t', 'messages')}?limit=100")
    assert len({each["write_pointer"] for each in page.json["messages"]}) == 100


BODIES: list[Callable[[object], tuple[str, object]]] = [
    lambda number: (topic_path("t", "publish"), {"write_pointer": number, "messages": ["x"]}),
    lambda number: (topic_path("t", "store"), {"write_pointer": number, "messages": ["x"]}),
    lambda number: (
        topic_path("t", "rollback"),
        {"write_pointer": number, "first_id": "0" * 40, "last_id": "0" * 40},
    ),
    lambda number: (
        topic_path("t", "stages/publish"),
        {"write_pointer": number, "stages": ["7"]},
    ),
    lambda number: (
        topic_path("t", "poll"),
        {"snapshot": {"transaction_id": number, "read_pointer": "1"}},
    ),
    lambda number: (
        topic_path("t", "messages"),
        {"snapshot": {"transaction_id": "1", "read_pointer": "1", "in_progress": [number]}},
    ),
    lambda number: (f"{PATH}/5/commit", {"write_pointer": number}),
    lambda number: (f"{PATH}/truncate", {"ids": [number]}),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body(0)[0])
async def test_a_number_that_no_double_holds_is_refused(
    body: Callable[[object], tuple[str, object]],
) -> None:
    broker = Broker(Config(transactions=TransactionsConfig(transactions_reset_allowed=True)))
    await broker.call("PUT", topic_path("t"))
    path, sent = body(1_764_000_000_000_000_001)
    reply = await ask(broker, "POST", path, sent)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert b"no double holds" in reply.body
    for exact in ("1764000000000000001", 1_764_000_000_000_000_000):
        path, sent = body(exact)
        assert b"double" not in (await ask(broker, "POST", path, sent)).body
    await broker.close()


# A pointer that is not in progress.


async def publish(broker: Broker, pointer: int) -> Answered:
    body = avro.encode_publish_request(PublishRequest(pointer, [b"x"]))
    headers = {"Content-Type": "avro/binary", "Accept": "application/json"}
    return await broker.call("POST", topic_path("t", "publish"), body, headers)


async def test_only_pointers_in_progress_take_messages(broker: Broker) -> None:
    begun = await broker.transactions.start()
    pointer = (await broker.transactions.checkpoint(begun.transaction_id)).write_pointer
    for own in (begun.transaction_id, pointer):
        assert (await publish(broker, own)).status == 200
    rounded = int(float(pointer)) + 256
    for wrong in (rounded, begun.transaction_id - 1, 5):
        reply = await publish(broker, wrong)
        assert (reply.status, reply.json["code"]) in (
            (409, "transaction_not_in_progress"),
            (422, "transaction_too_old"),
        )
    assert (await publish(broker, rounded)).json["code"] == "transaction_not_in_progress"
    await broker.transactions.commit(begun.transaction_id)
    for action, sent in (
        ("publish", {"messages": ["x"]}),
        ("store", {"messages": ["x"]}),
        ("stages/publish", {"stages": ["7"]}),
    ):
        under = {**sent, "write_pointer": str(pointer)}
        reply = await ask(broker, "POST", topic_path("t", action), under)
        assert (reply.status, reply.json["code"]) == (409, "transaction_not_in_progress"), action


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(server=ServerConfig(role=Role.TOPICS)),
        Config(transactions=TransactionsConfig(transactions_url="http://elsewhere:1")),
    ],
)
async def test_pointers_of_another_service_are_not_judged(config: Config) -> None:
    """No transaction was ever begun here, or the configuration names another service."""
    broker = Broker(config)
    await broker.call("PUT", topic_path("t"))
    if config != Config():
        await broker.transactions.start()
    assert (await publish(broker, broker.clock.now_ms() * 1_000_000)).status == 200
    await broker.close()


async def test_a_service_that_does_not_answer_refuses_no_publish(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await broker.transactions.start()

    async def unavailable(*_: object) -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(broker.transactions, "_read", unavailable)
    assert (await publish(broker, begun.transaction_id + 1)).status == 200


async def test_a_restarted_node_still_knows_which_pointers_are_in_progress() -> None:
    clock = SystemClock()
    stores = in_memory(clock)
    before = Broker(stores=stores, clock=clock)
    await before.call("PUT", topic_path("t"))
    begun = (await before.transactions.start()).transaction_id
    await before.close()
    after = Broker(stores=stores, clock=clock)
    assert (await publish(after, begun + 1)).status == 409
    assert (await publish(after, begun)).status == 200
    await after.close()


@on_cluster(nodes=2)
async def test_a_node_of_a_cluster_judges_what_it_knows(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    begun = int((await cluster(1, "POST", PATH, b"", JSON)).json["transaction_id"])
    headers = {"Content-Type": "avro/binary", "Accept": "application/json"}
    for pointer, status in ((begun, 200), (begun + 1, 409)):
        body = avro.encode_publish_request(PublishRequest(pointer, [b"x"]))
        reply = await cluster(1, "POST", topic_path("t", "publish"), body, headers)
        assert reply.status == status

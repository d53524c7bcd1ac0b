"""Odd values in JSON bodies, and numbers of 64 bits: each is read or refused, and none is changed on its way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from broker.clock import SystemClock
from broker.config.sections import Config, Role, ServerConfig, TransactionsConfig
from broker.errors import Unavailable
from broker.model import PublishRequest
from broker.wire import avro
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, in_memory, topic_path

JSON: Final = {"Content-Type": "application/json", "Accept": "application/json"}
NUMBERS: Final = [0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, 1.5, 1e308]
TEXTS: Final = ["", "x", "\ud800", "\x00", "0" * 40, "f" * 40]
LISTS: Final = [[], [1], ["x"], [None], [[]], [2**64], ["\ud800"]]
ODD: Final = [None, True, *NUMBERS, *TEXTS, *LISTS, {}, {"a": 1}]
SNAPSHOT: Final = {"transaction_id": 9, "read_pointer": 9}


class Body(NamedTuple):
    """A request whose fields get odd values, each alone. ``valid`` has valid values of some fields."""

    method: str
    path: str
    fields: str
    valid: dict[str, Any]

    def odd(self) -> Iterator[dict[str, Any]]:
        """Yield bodies in which one field is odd."""
        for field in self.fields.split():
            for value in ODD:
                yield {**self.valid, field: value}


SNAPSHOT_FIELDS: Final = (
    "transaction_id read_pointer write_pointer first_short_in_progress invalids in_progress checkpoint_pointers long "
    "visibility"
)
ENDS: Final = {"first_id": "0" * 40, "last_id": "0" * 40}
OF_TOPIC: Final = "/v1/namespaces/default/topics/t"
BODIES: Final = [
    Body("PUT", f"{OF_TOPIC}/properties", "ttl transactions generation purged_ms x", {}),
    Body("POST", f"{OF_TOPIC}/publish", "messages write_pointer", {"messages": ["a"]}),
    Body("POST", f"{OF_TOPIC}/store", "messages write_pointer", {"messages": ["a"]}),
    Body("POST", f"{OF_TOPIC}/rollback", "write_pointer first_id last_id count replayed", ENDS),
    Body("POST", f"{OF_TOPIC}/poll", "start inclusive limit snapshot", {}),
    Body("POST", f"{OF_TOPIC}/messages", "snapshot", {}),
    Body("POST", f"{OF_TOPIC}/blockers", "snapshot", {}),
    Body("PUT", f"{OF_TOPIC}/cursors/c", "after expected data", {"after": None, "expected": None}),
    Body("POST", "/v1/transactions", "type timeout_s client", {}),
    Body("POST", "/v1/transactions/1/can-commit", "changes", {}),
    Body("POST", "/v1/transactions/1/commit", "write_pointer", {}),
    Body("POST", "/v1/transactions/truncate", "ids", {}),
    Body("POST", "/v1/transactions/truncate", "before_ms", {}),
]


async def has_certain_outcome(broker: Broker, method: str, path: str, sent: object) -> None:
    reply = await broker.call(method, path, json.dumps(sent).encode(), JSON)
    outcome = reply.headers.get("Broker-Outcome", "done")
    assert (reply.status < 500, outcome != "unknown") == (True, True), (path, sent, reply)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{body.path} {body.fields}")
async def test_an_odd_value_of_a_field_is_read_or_refused(broker: Broker, body: Body) -> None:
    for sent in body.odd():
        await has_certain_outcome(broker, body.method, body.path, sent)


async def test_an_odd_part_of_a_message_is_read_or_refused(broker: Broker) -> None:
    message = Body("POST", topic_path("t", "publish"), "value key headers ttl base64", {})
    for sent in message.odd():
        await has_certain_outcome(broker, message.method, message.path, {"messages": [sent]})
    for value in ODD:
        with_header = {"value": "a", "headers": {"h": value}}
        await has_certain_outcome(broker, "POST", message.path, {"messages": [with_header]})


async def test_an_odd_part_of_a_snapshot_is_read_or_refused(broker: Broker) -> None:
    snapshot = Body("POST", topic_path("t", "poll"), SNAPSHOT_FIELDS, SNAPSHOT)
    for sent in snapshot.odd():
        await has_certain_outcome(broker, "POST", snapshot.path, {"snapshot": sent})


async def test_an_odd_part_of_a_publish_of_stages_is_read_or_refused(broker: Broker) -> None:
    path = topic_path("t", "stages")
    stage = (await broker.call("POST", path, b"", JSON)).json["stage"]
    stored = await broker.call(
        "POST", f"{path}/{stage}/store", b"x", {"Content-Type": "text/plain"}
    )
    assert stored.status == 200
    publish = Body("POST", f"{path}/publish", "write_pointer stages", {"stages": [stage]})
    for sent in publish.odd():
        await has_certain_outcome(broker, "POST", publish.path, sent)


# --- Numbers of 64 bits are strings in every reply.

PATH = "/v1/transactions"
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
    # This broker reads the bytes that it wrote.
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


WITH_NUMBERS: list[Callable[[object], tuple[str, object]]] = [
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


@pytest.mark.parametrize("body", WITH_NUMBERS, ids=lambda body: body(0)[0])
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

"""Transactions over HTTP, with names or without: on one node, and on any node of a cluster of two."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
from typing import Any

import pytest

from broker.client import (
    Client,
    SyncClient,
    TransactionFenced,
    TransactionNotInProgress,
    blocked_polls,
)
from broker.clock import SystemClock
from broker.config.sections import (
    ClusterConfig,
    Config,
    ConfigError,
    HBaseConfig,
    Role,
    ServerConfig,
    TransactionsConfig,
)
from broker.errors import Unavailable
from broker.storage.table import Table
from broker.transactions import service_state
from broker.wire.transaction import decode_snapshot, decode_transaction
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.served import ServedNode
from tests.kit.serving import Broker, Http, in_memory, topic_path
from tests.kit.transacting import PATH, Told, Transactors, pause, told_by

JSON = {"Content-Type": "application/json", "Accept": "application/json"}


async def call(broker: Broker, method: str, path: str = "", sent: Any = None) -> Answered:
    body = b"" if sent is None else json.dumps(sent).encode()
    return await broker.call(method, PATH + path, body, JSON)


async def begun(broker: Broker, **sent: Any) -> dict[str, Any]:
    reply = await call(broker, "POST", "", sent)
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def keys(*names: bytes) -> dict[str, Any]:
    return {"changes": [base64.b64encode(name).decode() for name in names]}


async def test_a_transaction_commits_and_is_visible(broker: Broker) -> None:
    one, two = await begun(broker), await begun(broker, timeout_s=5, client="me")
    assert (one["long"], (await begun(broker, type="long"))["long"]) == (False, True)
    assert two["in_progress"] == [one["transaction_id"]]
    path = f"/{one['transaction_id']}"
    assert (await call(broker, "POST", f"{path}/can-commit", keys(b"a", b"\xff"))).json == {}
    assert (await call(broker, "GET", path)).json["state"] == "committing"
    assert (await call(broker, "POST", f"{path}/commit")).json == {}
    reply = await call(broker, "POST", f"{path}/commit")
    assert (reply.status, reply.json["code"]) == (409, "transaction_not_in_progress")
    reply = await call(broker, "POST", f"/{two['transaction_id']}/can-commit", keys(b"\xff"))
    assert (reply.status, reply.json["code"]) == (409, "transaction_conflict")
    seen = decode_snapshot((await call(broker, "GET", "/snapshot")).json)
    assert seen.is_visible(int(one["transaction_id"]))
    assert not seen.is_visible(int(two["transaction_id"]))
    listed = (await call(broker, "GET", "?limit=1")).json
    assert [each["client"] for each in listed["in_progress"]] == ["me"]
    assert listed["in_progress_count"] == 2
    assert (listed["committing"], listed["committed"], listed["invalid"]) == (0, 1, 0)
    await broker.close()


async def test_transactions_as_tephras_bytes(broker: Broker) -> None:
    accept = {"Accept": "application/x-thrift"}
    reply = await broker.call("POST", PATH, b"", accept)
    snapshot = decode_transaction(reply.body)
    assert snapshot.transaction_id == snapshot.write_pointer > snapshot.read_pointer
    reply = await broker.call("GET", f"{PATH}/snapshot", b"", accept)
    assert list(decode_transaction(reply.body).in_progress) == [snapshot.transaction_id]


async def test_transactions_end_by_abort_or_as_invalid(broker: Broker) -> None:
    aborted, invalid = (await begun(broker))["transaction_id"], await begun(broker)
    assert (await call(broker, "POST", f"/{aborted}/abort")).json == {}
    assert (await call(broker, "POST", f"/{aborted}/abort")).json == {}
    path = f"/{invalid['transaction_id']}"
    checked = (await call(broker, "POST", f"{path}/checkpoint")).json
    assert checked["checkpoint_pointers"] == [checked["write_pointer"]]
    assert checked["transaction_id"] == invalid["transaction_id"] < checked["write_pointer"]
    assert (await call(broker, "POST", f"{path}/invalidate")).json == {"invalidated": True}
    assert (await call(broker, "POST", f"{path}/invalidate")).json == {"invalidated": False}
    assert (await call(broker, "GET", path)).json["state"] == "invalid"
    pointers = [checked["transaction_id"], checked["write_pointer"]]
    assert (await call(broker, "GET", "/snapshot")).json["invalids"] == pointers
    await broker.close()


async def test_invalid_pointers_are_truncated_where_that_is_allowed() -> None:
    broker = Broker(Config(transactions=TransactionsConfig(transactions_reset_allowed=True)))
    invalid = (await begun(broker))["transaction_id"]
    checked = (await call(broker, "POST", f"/{invalid}/checkpoint")).json["write_pointer"]
    await call(broker, "POST", f"/{invalid}/invalidate")
    removed = await call(broker, "POST", "/truncate", {"ids": [invalid, checked, 5]})
    assert removed.json == {"removed": 2}
    open_one = await begun(broker)
    before_ms = int(open_one["transaction_id"]) // 1_000_000 + 1000
    reply = await call(broker, "POST", "/truncate", {"before_ms": before_ms})
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert (await call(broker, "GET", "/7")).status == 404
    await broker.close()


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("", {"type": "medium"}),
        ("", {"timeout_s": 0}),
        ("", {"timeout_s": 10**400}),
        ("", {"timeout_s": True}),
        ("", {"timeout": 5}),
        ("", {"client": 5}),
        ("", {"client": "x" * 257}),
        ("", {"client": "\ud800"}),
        ("/x/commit", None),
        ("/99999999999999999999/commit", None),
        ("/5/can-commit", {"changes": ["!"]}),
        ("/5/can-commit", {"changes": "aa"}),
        ("/5/can-commit", {}),
        ("/5/commit", {"write_pointer": -1}),
        ("/5/abort", {"really": True}),
        ("/truncate", {}),
        ("/truncate", {"ids": [1], "before_ms": 1}),
        ("/truncate", {"ids": ["x"]}),
        ("/truncate", {"ids": [(1 << 60) + 1]}),
        ("/5/commit", {"write_pointer": (1 << 60) + 1}),
    ],
)
async def test_malformed_calls_are_refused(path: str, sent: Any) -> None:
    broker = Broker(Config(transactions=TransactionsConfig(transactions_reset_allowed=True)))
    reply = await call(broker, "POST", path, sent)
    assert (reply.status, reply.json["outcome"]) == (400, "refused")


async def test_a_change_set_is_bounded(broker: Broker) -> None:
    path = f"/{(await begun(broker))['transaction_id']}/can-commit"
    many = keys(*(b"%d" % number for number in range(10_001)))
    large = keys(b"a" * (1 << 19), b"b" * (1 << 19), b"c")
    for sent in (many, large):
        reply = await call(broker, "POST", path, sent)
        assert (reply.status, reply.json["code"]) == (413, "changes_too_large")


async def test_the_journal_is_not_reachable_as_a_topic(broker: Broker) -> None:
    await begun(broker)
    assert (await broker.call("GET", "/v1/namespaces")).json == ["default"]
    for path in ("/v1/namespaces/*/topics", "/v1/namespaces/%2A/topics/transactions"):
        reply = await broker.call("GET", path)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_name")


@pytest.mark.parametrize(
    ("role", "topics", "transactions"),
    [(Role.ALL, 200, 200), (Role.TOPICS, 200, 404), (Role.TRANSACTIONS, 404, 200)],
)
async def test_a_node_serves_the_requests_of_its_role(
    role: Role, topics: int, transactions: int
) -> None:
    broker = Broker(Config(server=ServerConfig(role=role)))
    told = await call(broker, "POST")
    assert told.status == transactions
    reply = await broker.call("PUT", "/v1/namespaces/ns/topics/t", b"", JSON)
    assert reply.status == topics
    for each in (told, reply):
        if each.status == 404:
            assert each.json["code"] == "not_found"
            assert f"server.role = {role}" in each.json["message"]
    assert (await broker.call("GET", "/ping")).status == 200
    await broker.close()


def test_the_nodes_of_a_cluster_serve_all() -> None:
    with pytest.raises(ConfigError, match=r"server\.role = transactions"):
        Config(
            server=ServerConfig(role=Role.TRANSACTIONS),
            cluster=ClusterConfig(zookeeper_hosts=("zk:2181",)),
            hbase=HBaseConfig(hbase_gateways=("hb:9090",)),
        )


# --- In a cluster of two nodes -----------------------------------------------------------------------

RESETTING = TransactionsConfig(transactions_reset_allowed=True)


async def ask(
    cluster: HttpCluster, node: int, method: str, path: str = "", sent: Any = None
) -> Answered:
    body = b"" if sent is None else json.dumps(sent).encode()
    return await cluster(node, method, PATH + path, body, JSON)


@on_cluster(nodes=2, topic=False, transactions=RESETTING)
async def test_any_node_takes_any_request(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    begun = [(await ask(cluster, node, "POST")).json["transaction_id"] for node in (0, 1, 1)]
    assert begun == sorted(begun)
    one, two, three = begun
    keys = {"changes": ["YQ=="]}
    assert (await ask(cluster, 1, "POST", f"/{one}/can-commit", keys)).json == {}
    reply = await ask(cluster, 1, "POST", f"/{one}/commit")
    assert reply.json == {}
    assert reply.headers["Broker-Leader"] == f"{cluster.url(0)};node=0;epoch=1"
    for node in (0, 1):
        reply = await ask(cluster, node, "POST", f"/{two}/can-commit", keys)
        assert (reply.status, reply.json["code"]) == (409, "transaction_conflict")
    assert (await ask(cluster, 1, "POST", f"/{two}/abort")).json == {}
    assert (await ask(cluster, 1, "POST", f"/{three}/invalidate")).json == {"invalidated": True}
    listed = [(await ask(cluster, node, "GET")).json for node in (0, 1)]
    assert listed[0] == listed[1]
    assert (listed[0]["leader"], listed[0]["invalid"]) == (0, 1)
    assert (await ask(cluster, 1, "GET", f"/{three}")).json["state"] == "invalid"
    accept = {"Accept": "application/x-thrift"}
    replies = [await cluster(node, "GET", f"{PATH}/snapshot", b"", accept) for node in (0, 1)]
    assert replies[0].body == replies[1].body
    assert (await ask(cluster, 1, "POST", "/truncate", {"ids": [three]})).json == {"removed": 1}


@on_cluster(nodes=2, topic=False)
async def test_clients_go_on_while_the_service_moves(cluster: HttpCluster) -> None:
    chance = random.Random(1)

    async def told(method: str, path: str, body: bytes) -> Told:
        answer = await cluster(chance.randrange(2), method, path, body, JSON)
        return told_by(answer.status, answer.headers, answer.body)

    async def long_pause(milliseconds: float) -> None:
        await pause(20 * milliseconds)

    async def move() -> None:
        for to in (1, 0, 1, 0):
            await cluster.lead_all(to)

    clients = Transactors(told, chance, long_pause)
    await cluster.lead_all(0)
    moving = asyncio.ensure_future(move())

    async def transact() -> None:
        while not moving.done():
            await clients.transact()

    await asyncio.gather(*(transact() for _ in range(4)))
    await clients.look()
    assert not clients.violations
    assert clients.unknown == 0
    assert len(clients.commits) > 15


@on_cluster(nodes=2, topic=False)
async def test_a_takeover_loses_nothing(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    begun = (await ask(cluster, 1, "POST")).json["transaction_id"]
    assert (await ask(cluster, 0, "POST", f"/{begun}/commit")).json == {}
    still = (await ask(cluster, 1, "POST")).json["transaction_id"]
    cluster.machines[0].kill()
    later = (await ask(cluster, 1, "POST")).json
    assert later["transaction_id"] > still
    assert later["in_progress"] == [still]
    assert begun <= later["read_pointer"]
    assert (await ask(cluster, 1, "POST", f"/{still}/commit")).json == {}


@on_cluster(nodes=2, topic=False)
async def test_a_node_that_led_until_now_forwards_the_changes(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    begun = [(await ask(cluster, 0, "POST")).json["transaction_id"] for _ in range(2)]
    paths, keys = [f"/{each}/can-commit" for each in begun], {"changes": ["YQ=="]}
    cluster.machines[0].pause()
    asking = asyncio.ensure_future(ask(cluster, 0, "POST", paths[0], keys))
    await cluster.lead_all(1)
    assert (await ask(cluster, 1, "GET", "/snapshot")).status == 200
    cluster.machines[0].resume()
    reply = await asking
    assert (reply.status, reply.json) == (200, {})
    assert (await ask(cluster, 0, "POST", f"/{begun[0]}/commit")).json == {}
    reply = await ask(cluster, 0, "POST", paths[1], keys)
    assert (reply.status, reply.json["code"]) == (409, "transaction_conflict")


@on_cluster(nodes=2, topic=False)
async def test_a_commit_whose_answer_is_lost_is_unknown_and_not_sent_twice(
    cluster: HttpCluster,
) -> None:
    await cluster.lead_all(0)
    begun = (await ask(cluster, 1, "POST")).json["transaction_id"]
    committing = ask(cluster, 1, "POST", f"/{begun}/commit")
    reply = await cluster.answer_lost(committing, by=1, to=0)
    assert (reply.status, reply.json["code"]) == (500, "outcome_unknown")
    assert len(cluster.forwarded(1, f"{begun}/commit")) == 1
    snapshot = (await ask(cluster, 1, "GET", "/snapshot")).json
    assert snapshot["read_pointer"] >= begun
    assert begun not in snapshot["in_progress"]


@on_cluster(nodes=2, topic=False)
async def test_nothing_is_answered_without_a_leader(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    cluster.kill_without_successor(0)
    for method, path in (("POST", ""), ("GET", "/snapshot"), ("GET", "")):
        reply = await cluster(1, method, PATH + path, b"", {**JSON, "Request-Timeout": "0.2"})
        assert (reply.status, reply.headers["Broker-Error"]) == (503, "no_leader")
        assert reply.headers["Broker-Outcome"] == "refused"


class JournalDown:
    """A table that can't read or write the rows of the service's journal."""

    def __init__(self, inner: Table) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if not callable(real):
            return real

        async def call(*arguments: Any, **named: Any) -> Any:
            if any(isinstance(key, bytes) and b"*:transactions:" in key for key in arguments):
                raise Unavailable("the journal's region is down")
            return await real(*arguments, **named)

        return call


@on_cluster(nodes=2, topic=False)
async def test_topics_go_on_while_the_service_is_down(cluster: HttpCluster) -> None:
    await ask(cluster, 0, "POST")
    for machine in cluster.machines:
        machine.kill()
        machine.storage = JournalDown(machine.storage)  # type: ignore[assignment]
        machine.start()
    for node, machine in enumerate(cluster.machines):
        assert await machine.served(60.0)
        topic = f"t{node}"
        assert (await cluster(node, "PUT", topic_path(topic))).status == 200
    for node in (0, 1):
        reply = await cluster(node, "POST", PATH, b"", {**JSON, "Request-Timeout": "1"})
        assert (reply.status, reply.json["outcome"]) == (503, "refused")
        publish = topic_path(f"t{node}", "publish")
        text = {"Content-Type": "text/plain"}
        assert (await cluster(node, "POST", publish, b"a", text)).status == 200
        pointer = cluster.sim.clock.now_ms() * 1_000_000
        sent = json.dumps({"write_pointer": str(pointer), "messages": ["b"]}).encode()
        assert (await cluster(node, "POST", publish, sent, JSON)).status == 200
        polled = await cluster(node, "POST", topic_path(f"t{node}", "poll"), b"{}", JSON)
        assert polled.json[0]["payload"] == "a"


# --- Transactions with names -----------------------------------------------------------------------

EPOCH = "Broker-Name-Epoch"


async def start(broker: Broker, **sent: Any) -> Answered:
    return await broker.call("POST", PATH, json.dumps(sent).encode(), JSON)


async def end(broker: Broker, identifier: str, action: str = "commit") -> Answered:
    return await broker.call("POST", f"{PATH}/{identifier}/{action}", b"", JSON)


async def test_the_next_start_under_a_name_ends_the_former_one(broker: Broker) -> None:
    former = (await start(broker, name="loader")).json
    other = (await start(broker, name="another")).json["transaction_id"]
    next_one = (await start(broker, name="loader", client="me")).json
    assert former["transaction_id"] in next_one["invalids"]
    assert next_one["in_progress"] == [other]
    snapshot = await broker.transactions.snapshot()
    assert list(map(str, snapshot.invalids)) == [former["transaction_id"]]
    reply = await end(broker, former["transaction_id"])
    assert (reply.status, reply.json["code"]) == (409, "transaction_not_in_progress")
    listed = (await broker.call("GET", PATH, b"", JSON)).json["in_progress"]
    assert [each["name"] for each in listed] == ["another", "loader"]
    assert (await end(broker, next_one["transaction_id"])).status == 200


async def test_the_snapshot_of_the_next_one_is_the_one_of_its_begin(broker: Broker) -> None:
    """The former one had checkpoints; others began before it and after it."""
    await start(broker)
    former = (await start(broker, name="n")).json["transaction_id"]
    pointer = (await end(broker, former, "checkpoint")).json["write_pointer"]
    await start(broker, type="long")
    begun = (await start(broker, name="n")).json
    assert begun["invalids"] == [former, pointer]
    now = (await broker.call("GET", f"{PATH}/snapshot", b"", JSON)).json
    assert now["invalids"] == begun["invalids"]
    assert [each for each in now["in_progress"] if each != begun["transaction_id"]] == begun[
        "in_progress"
    ]
    assert (begun["read_pointer"], begun["first_short_in_progress"]) == (
        now["read_pointer"],
        now["first_short_in_progress"],
    )


async def test_a_program_that_was_replaced_is_fenced(broker: Broker) -> None:
    first = await start(broker, name="loader")
    again = await start(broker, name="loader", epoch=first.headers[EPOCH])
    assert again.headers[EPOCH] == first.headers[EPOCH]
    replaced = await start(broker, name="loader")
    assert int(replaced.headers[EPOCH]) > int(first.headers[EPOCH])
    reply = await start(broker, name="loader", epoch=first.headers[EPOCH])
    assert (reply.status, reply.json["code"]) == (409, "transaction_fenced")
    # The refused start has ended nothing.
    assert (await end(broker, replaced.json["transaction_id"])).status == 200
    assert (await start(broker, name="loader", epoch=replaced.headers[EPOCH])).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        {"name": ""},
        {"name": 5},
        {"name": "\ud800"},
        {"name": "x" * 257},
        {"epoch": "5"},
        {"name": "n", "epoch": "x"},
        {"name": "n", "epoch": (1 << 60) + 1},
    ],
)
async def test_bad_names_are_refused(broker: Broker, sent: dict[str, Any]) -> None:
    assert (await start(broker, **sent)).status == 400


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_restarted_service_knows_the_names(snapshot: bool) -> None:
    clock = SystemClock()
    stores = in_memory(clock)
    before = Broker(stores=stores, clock=clock)
    first = await start(before, name="loader")
    if snapshot:
        await before.close()
    after = Broker(stores=stores, clock=clock)
    listed = (await after.call("GET", PATH, b"", JSON)).json["in_progress"]
    assert [(each["id"], each["name"]) for each in listed] == [
        (first.json["transaction_id"], "loader")
    ]
    assert (await start(after, name="loader", epoch=first.headers[EPOCH])).status == 200
    last = await start(after, name="loader")
    assert (await start(after, name="loader", epoch=first.headers[EPOCH])).status == 409
    listed = (await after.call("GET", PATH, b"", JSON)).json["in_progress"]
    assert [each["id"] for each in listed] == [last.json["transaction_id"]]
    await after.close()


async def test_the_names_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used one is forgotten, unless its transaction is in progress."""
    monkeypatch.setattr(service_state, "NAMES_MAX", 3)
    first = await start(broker, name="open")
    for number in range(10):
        begun = await start(broker, name=f"n{number}")
        await end(broker, begun.json["transaction_id"])
    state = broker.transactions.state
    assert state is not None
    assert list(state.names) == ["open", "n8", "n9"]
    assert (await start(broker, name="open", epoch=first.headers[EPOCH])).status == 200
    reply = await start(broker, name="n1", epoch="5")
    assert (reply.status, reply.json["code"]) == (409, "transaction_fenced")
    assert "forgotten" in reply.json["message"]


@on_cluster(nodes=2, topic=False)
async def test_any_node_of_a_cluster_takes_a_name(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    body = json.dumps({"name": "loader"}).encode()
    first = await cluster(1, "POST", PATH, body, JSON)
    second = await cluster(0, "POST", PATH, body, JSON)
    assert int(second.headers[EPOCH]) > int(first.headers[EPOCH])
    stale = json.dumps({"name": "loader", "epoch": first.headers[EPOCH]}).encode()
    reply = await cluster(1, "POST", PATH, stale, JSON)
    assert (reply.status, reply.json["code"]) == (409, "transaction_fenced")


# The client.


async def test_a_restarted_program_frees_the_readers_at_once(broker: Broker, http: Http) -> None:
    del broker
    async with Client(http.url, namespace="default") as died, Client(http.url) as restarted:
        block = died.transaction(name="loader")
        tx = await block.__aenter__()
        await tx.publish("t", "lost")
        await tx.checkpoint()
        await died.publish("t", "behind")
        snapshot = await died.transactions.snapshot()
        assert await died.poll("t", snapshot=snapshot) == []
        for number in range(2):
            async with restarted.transaction(name="loader") as again:
                await again.publish("default/t", f"new {number}")
        snapshot = await died.transactions.snapshot()
        seen = [message.payload for message in await died.poll("t", snapshot=snapshot)]
        assert seen == [b"behind", b"new 0", b"new 1"]
        with pytest.raises(TransactionNotInProgress):
            await block.__aexit__(None, None, None)
        with pytest.raises(TransactionFenced):
            async with died.transaction(name="loader"):
                pass
        async with restarted.transaction(name="loader"):
            pass


def test_the_blocking_client_has_names() -> None:
    with ServedNode() as node, SyncClient(node.url) as one, SyncClient(node.url) as two:
        with (
            pytest.raises(TransactionNotInProgress),
            one.transaction(name="n"),
            two.transaction(name="n"),
        ):
            pass
        with pytest.raises(TransactionFenced), one.transaction(name="n"):
            pass
        assert two.in_transaction(lambda tx: tx.id, begin=lambda: two.transaction(name="n"))


async def test_a_reader_that_waits_for_a_transaction_says_so(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blocked_polls, "TOLD_AFTER_S", 0.0)
    begun = await broker.transactions.start()
    seen: list[bytes] = []
    async with Client(http.url, namespace="default") as client:
        await client.publish("t", "held", pointer=begun.transaction_id)
        subscriber = client.subscriber(
            "t", "reader", lambda message: seen.append(message.payload), transactional=True
        )
        running = asyncio.create_task(subscriber.run())
        while "began at" not in caplog.text:
            await client.topic("t")
        assert seen == []
        await broker.transactions.commit(begun.transaction_id)
        while not seen:
            await client.topic("t")
        subscriber.stop()
        await running
    (record,) = [each for each in caplog.records if "began at" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert f"polls of default/t wait for transaction {begun.transaction_id}, which began at 20" in (
        record.getMessage()
    )


def test_waits_are_told_once_they_last_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    from broker.model import TopicId  # noqa: PLC0415

    waits, topic = blocked_polls.BlockedPolls(), TopicId("a", "t")
    for now_s in (0.0, 0.5, 1.0, 2.0, 30.0, 31.0, 32.0):
        waits.note(topic, "1764000000000000000", now_s)
    assert len(caplog.records) == 2
    assert "2025-11-24T16:00:00.000Z: since 31 s" in caplog.records[1].getMessage()
    waits.note(topic, None, 33.0)
    for now_s in (34.0, 34.5):
        waits.note(topic, "7", now_s)
    assert len(caplog.records) == 2
    for number in range(2 * blocked_polls.TOPICS_MAX):
        waits.note(TopicId("a", f"t{number}"), "7", 40.0)
    assert len(waits._waits) == blocked_polls.TOPICS_MAX

"""Transactions in a cluster of two nodes over HTTP: any node takes any request, and the service's leader answers it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from broker.config.sections import TransactionsConfig
from broker.errors import Unavailable
from broker.storage.table import Table
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.serving import topic_path
from tests.kit.transacting import PATH, Told, Transactors, pause, told_by

RESETTING = TransactionsConfig(transactions_reset_allowed=True)
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


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

"""Transactions in a cluster of two nodes: any node takes any request, one answers it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from broker.errors import Unavailable
from broker.topics.reserved import TRANSACTIONS
from tests.kit.openapi import Answered
from tests.kit.ring import Ring, request_lost, ring_of
from tests.kit.serving import eventually, topic_path
from tests.kit.transacting import PATH, Told, Transactors, told_by

JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    """Two nodes that listen; the first leads."""
    async with ring_of(2) as ring:
        yield ring


async def ask(ring: Ring, node: int, method: str, path: str = "", sent: Any = None) -> Answered:
    body = b"" if sent is None else json.dumps(sent).encode()
    return await ring.nodes[node].http(method, PATH + path, body, JSON)


async def test_any_node_takes_any_request(ring: Ring) -> None:
    begun = [(await ask(ring, node, "POST")).json["transaction_id"] for node in (0, 1, 1)]
    assert begun == sorted(begun)
    one, two, three = begun
    keys = {"changes": ["YQ=="]}
    assert (await ask(ring, 1, "POST", f"/{one}/can-commit", keys)).json == {}
    reply = await ask(ring, 1, "POST", f"/{one}/commit")
    assert (reply.json, reply.headers["Broker-Leader"]) == (
        {},
        f"{ring.infos[0].url};node=0;epoch=1",
    )
    for node in (0, 1):
        reply = await ask(ring, node, "POST", f"/{two}/can-commit", keys)
        assert (reply.status, reply.json["code"]) == (409, "transaction_conflict")
    assert (await ask(ring, 1, "POST", f"/{two}/abort")).json == {}
    assert (await ask(ring, 1, "POST", f"/{three}/invalidate")).json == {"invalidated": True}
    listed = [(await ask(ring, node, "GET")).json for node in (0, 1)]
    assert listed[0] == listed[1]
    assert (listed[0]["leader"], listed[0]["invalid"]) == (0, 1)
    assert (await ask(ring, 1, "GET", f"/{three}")).json["state"] == "invalid"
    accept = {"Accept": "application/x-thrift"}
    replies = [
        await ring.nodes[node].http("GET", f"{PATH}/snapshot", b"", accept) for node in (0, 1)
    ]
    assert replies[0].body == replies[1].body
    assert (await ask(ring, 1, "POST", "/truncate", {"ids": [three]})).json == {"removed": 1}


async def test_clients_go_on_while_the_service_moves(ring: Ring) -> None:
    chance = random.Random(1)

    async def told(method: str, path: str, body: bytes) -> Told:
        answer = await ring.nodes[chance.randrange(2)].http(method, path, body, JSON)
        return told_by(answer.status, answer.headers, answer.body)

    async def pause(_: float) -> None:
        """Go on at once: the nodes are real."""

    clients = Transactors(told, chance, pause)

    async def transact() -> None:
        for _ in range(9):
            await clients.transact()

    def has_gone_on(starts: int) -> Callable[[], bool]:
        return lambda: clients.starts > starts + 3 or all(each.done() for each in transacting)

    transacting = [asyncio.ensure_future(transact()) for _ in range(4)]
    moves = 0
    while not all(each.done() for each in transacting):
        starts = clients.starts
        await ring.move(1 - ring.leader, [TRANSACTIONS])
        moves += 1
        await eventually(has_gone_on(starts), lambda: f"{clients.starts} transactions began")
    await asyncio.gather(*transacting)
    await clients.look()
    assert not clients.violations
    assert moves > 3
    assert clients.starts == 36
    assert clients.unknown == 0
    assert len(clients.commits) > 15


async def test_a_takeover_loses_nothing(ring: Ring) -> None:
    begun = (await ask(ring, 1, "POST")).json["transaction_id"]
    assert (await ask(ring, 0, "POST", f"/{begun}/commit")).json == {}
    still = (await ask(ring, 1, "POST")).json["transaction_id"]
    ring.leader = 1
    await ring.nodes[0].kill()
    later = (await ask(ring, 1, "POST")).json
    assert later["transaction_id"] > still
    assert later["in_progress"] == [still]
    assert begun <= later["read_pointer"]
    assert (await ask(ring, 1, "POST", f"/{still}/commit")).json == {}


async def test_a_lost_answer_is_unknown_and_a_commit_is_not_sent_twice(ring: Ring) -> None:
    begun = (await ask(ring, 1, "POST")).json["transaction_id"]

    async def done_but_lost(send: Any) -> Any:
        await send()
        return await request_lost(send)

    ring.nodes[1].peers.hooks.append(done_but_lost)
    reply = await ask(ring, 1, "POST", f"/{begun}/commit")
    assert (reply.status, reply.json["code"]) == (500, "outcome_unknown")
    assert (await ask(ring, 1, "POST", f"/{begun}/commit")).status == 409


@pytest.mark.slow
async def test_nothing_is_answered_without_a_leader(ring: Ring) -> None:
    ring.leader = -1
    for method, path in (("POST", ""), ("GET", "/snapshot"), ("GET", "")):
        reply = await ring.nodes[1].http(
            method, PATH + path, b"", {**JSON, "Request-Timeout": "0.2"}
        )
        assert (reply.status, reply.json["code"], reply.json["outcome"]) == (
            503,
            "no_leader",
            "refused",
        )


@pytest.mark.slow
async def test_topics_go_on_while_the_service_is_down(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else is answered where the service can't read its journal."""

    async def down(*_: object) -> None:
        raise Unavailable("the journal's region is down")

    for node in ring.nodes:
        monkeypatch.setattr(node.transactions._journal, "_replayed", down)
        reply = await ring.nodes[node.instance].http(
            "POST", PATH, b"", {**JSON, "Request-Timeout": "0.2"}
        )
        assert (reply.status, reply.json["outcome"]) == (503, "refused")
    for node in ring.nodes:
        topic = f"t{node.instance}"
        assert (await node.http("PUT", topic_path(topic))).status == 200
        publish = await node.http(
            "POST", topic_path(topic, "publish"), b"a", {"Content-Type": "text/plain"}
        )
        assert publish.status == 200
        sent = json.dumps({"write_pointer": 5, "messages": ["b"]}).encode()
        await node.http("POST", topic_path(topic, "publish"), sent, JSON)
        polled = await node.http("POST", topic_path(topic, "poll"), b"{}", JSON)
        assert [each["payload"] for each in polled.json][:1] == ["a"]

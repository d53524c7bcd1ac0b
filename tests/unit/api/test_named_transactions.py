"""The next start under a name ends the former transaction of that name, and fences the program that began it."""

from __future__ import annotations

import asyncio
import json
import logging
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
from broker.transactions import service_state
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.served import ServedNode
from tests.kit.serving import Broker, Http, in_memory

PATH = "/v1/transactions"
JSON = {"Content-Type": "application/json", "Accept": "application/json"}
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

"""Faults of a cluster under load: three node processes, a real ZooKeeper and a real HBase.

Each test injects a fault while publishers and consumers work, waits until the work goes on, and lets the checkers judge
the history. Each fault of these tests is also a separate case in chaos.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from broker.client import Client, Leader, Snapshot, admin
from broker.local import LocalCluster, Member, Sizes
from broker.model import TopicId
from broker.testing.hbase_server import HBaseServer
from broker.testing.local_state import state_of
from chaos.workloads.beside import RAW
from tests.integration.leaders import DEADLINE_S, until_led
from tests.kit.keepalive import KeepAlive
from tests.kit.load import READING, ClusterLoad

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

SESSION_S = 2.0
MOVES, MOVES_IN_SHORT, MOVE_EVERY_S = 12, 4, 1.0
CLIENTS, TOPICS, PUBLISHERS = 64, 3, 9
PLAIN = CLIENTS - TOPICS * (PUBLISHERS + len(READING))
"""The number of plain HTTP clients in a rolling restart."""


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    return shared_cluster


@asynccontextmanager
async def load(
    cluster: LocalCluster, name: str, topics: int = 2, publishers: int = 4, **options: float
) -> AsyncIterator[ClusterLoad]:
    """Put the cluster under load, and judge the history at the end."""
    names = [f"faults/{name}-{number}" for number in range(topics)]
    async with ClusterLoad(
        cluster.urls, names, publishers=publishers, state=lambda: state_of(cluster), **options
    ) as one:
        await one.acknowledged(100)
        yield one
    verdict = one.verdict
    assert verdict.violations == (), (one.counts, one.errors[-5:])
    assert verdict.is_known


async def leader(cluster: LocalCluster, topic: str) -> Leader:
    async with Client(cluster.urls) as client:
        return await client.leader(topic)


async def held(cluster: LocalCluster) -> dict[int, str]:
    """Return the ZooKeeper session that each node reports."""
    async with Client(cluster.urls) as client:
        told = (await client.ask(admin.status()))["nodes"]
    return {row["node"]: row["view"]["zookeeper"]["session"] for row in told if row["view"]}


async def in_contact(
    cluster: LocalCluster, *, ended: Collection[str | None] = ()
) -> dict[int, str]:
    """Wait until all nodes are members and have contact with ZooKeeper; return their sessions.

    Sessions in ``ended`` do not count: a node reports the session of its membership, and after the end of a session it
    has contact again a moment before it is a member again.
    """
    told: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(DEADLINE_S), Client(cluster.urls) as client:
            while True:
                told = (await client.ask(admin.status()))["nodes"]
                views = [row["view"] for row in told if row["view"]]
                seen = [
                    view["zookeeper"]["session"]
                    for view in views
                    if view["zookeeper"]["contact"] == "connected"
                ]
                if len(seen) == len(cluster.nodes) and not {None, *ended} & set(seen):
                    return await held(cluster)
    except TimeoutError:
        raise AssertionError(f"no contact in {DEADLINE_S} s: {told}; {state_of(cluster)}") from None


async def leading_node(cluster: LocalCluster, topic: str) -> Member:
    url = (await leader(cluster, topic)).url
    return next(node for node in cluster.nodes if node.url == url)


async def test_another_node_takes_over_from_a_killed_leader_which_returns_with_its_id(
    cluster: LocalCluster,
) -> None:
    async with load(cluster, "killed") as work:
        node = await leading_node(cluster, "faults/killed-0")
        before = (await leader(cluster, "faults/killed-0")).node
        await asyncio.to_thread(node.kill)
        await work.acknowledged(200)
        await asyncio.to_thread(node.start)
        await work.acknowledged(100)
        # It has the same address, so it gets its instance id at once, and with it its topics.
        assert (await leader(cluster, "faults/killed-0")).node == before


async def test_the_writes_of_a_leader_that_was_paused_for_long_are_fenced(
    cluster: LocalCluster,
) -> None:
    topic = "faults/asleep-0"
    async with load(cluster, "asleep") as work:
        node = await leading_node(cluster, topic)
        epoch = (await leader(cluster, topic)).epoch
        await asyncio.to_thread(node.pause)
        try:
            # These requests wait in its sockets. It reads them after the pause, long after their deadlines.
            with late_publishes(work, node, topic, 20):
                began = time.monotonic()
                await work.acknowledged(200)
                while time.monotonic() - began < 3 * SESSION_S:
                    await work.acknowledged(20)
                others = [url for url in cluster.urls if url != node.url]
                async with Client(others) as client:
                    assert (await client.leader(topic)).epoch != epoch
                await asyncio.to_thread(node.resume)
                await work.acknowledged(200)
        finally:
            await asyncio.to_thread(node.resume)


async def frozen_for(cluster: LocalCluster, topic: str) -> float:
    """Freeze a topic's leader; return the seconds until a publish with a key is acknowledged."""
    async with Client(cluster.urls) as client:
        await client.create_topic(topic)
        await client.publish(topic, b"before", idempotency_key="before")
        node = await leading_node(cluster, topic)
        began = time.monotonic()
        await asyncio.to_thread(node.pause)
        try:
            await client.publish(topic, b"after", idempotency_key="after")
            took_s = time.monotonic() - began
        finally:
            await asyncio.to_thread(node.resume)
        await in_contact(cluster)
        assert [each.payload for each in await client.poll(topic)] == [b"before", b"after"]
    return took_s


@pytest.mark.nightly
def test_a_frozen_leader_delays_a_publisher_with_keys_for_a_session_and_a_second_at_most(
    shared_hbase: HBaseServer,
) -> None:
    """The median of three counts: other work on this machine delays each of the four processes that take part."""
    settings = {"cluster.session_timeout_ms": 4000}
    with LocalCluster(Sizes(nodes=3), gateway=shared_hbase.gateway, settings=settings) as cluster:
        took_s = [asyncio.run(frozen_for(cluster, f"faults/frozen-{each}")) for each in range(3)]
    print(f"acknowledged after SIGSTOP: {took_s}")  # noqa: T201  Print the figures.
    assert sorted(took_s)[1] <= 4 + 1, took_s


@pytest.mark.parametrize("away_s", [4 * SESSION_S, pytest.param(20.0, marks=pytest.mark.nightly)])
async def test_leaders_go_on_without_zookeeper(cluster: LocalCluster, away_s: float) -> None:
    name = f"alone-{away_s:g}"
    topics = [f"faults/{name}-{number}" for number in range(2)]
    async with load(cluster, name) as work:
        before = [await leader(cluster, topic) for topic in topics]
        sessions = await held(cluster)
        (zookeeper,) = cluster.zookeepers
        await asyncio.to_thread(zookeeper.kill)
        began = time.monotonic()
        while time.monotonic() - began < away_s:
            await work.acknowledged(20)
        assert [await leader(cluster, topic) for topic in topics] == before
        await asyncio.to_thread(zookeeper.start)
        after = await in_contact(cluster)
        await work.acknowledged(100)
        for topic, led in zip(topics, before, strict=True):
            # If the session outlived the outage, no topic was claimed again, not even by the same node.
            if after[led.node] == sessions[led.node]:
                assert await leader(cluster, topic) == led


async def test_the_loss_of_zookeepers_data_loses_no_message(cluster: LocalCluster) -> None:
    topic = "faults/wiped-0"
    async with load(cluster, "wiped") as work:
        before = await leader(cluster, topic)
        sessions = await held(cluster)
        (zookeeper,) = cluster.zookeepers
        await asyncio.to_thread(zookeeper.kill)
        await asyncio.to_thread(shutil.rmtree, zookeeper.folder / "data" / zookeeper.name)
        await asyncio.to_thread(zookeeper.start)
        # No session outlives this: every node returns with a new session and its own instance id.
        after = await in_contact(cluster, ended=sessions.values())
        await work.acknowledged(200)
        assert set(after) == set(sessions), "every node has its number again"
        led = await leader(cluster, topic)
        assert led.node == before.node
        # The checkers verify one log with all acknowledged messages and rising ids.
        assert (led.epoch or 0) >= (before.epoch or 0) > 0


@pytest.mark.parametrize("moves", [MOVES_IN_SHORT, pytest.param(MOVES, marks=pytest.mark.nightly)])
async def test_a_topic_that_is_moved_every_second_stays_one_log(
    cluster: LocalCluster, moves: int
) -> None:
    name = f"bounced-{moves}"
    topic, identifier = f"faults/{name}-0", TopicId("faults", f"{name}-0")
    async with load(cluster, name, topics=1) as work, Client(cluster.urls) as client:
        epochs = set()
        for turn in range(moves):
            # The next move begins a second after the begin of this one, or at its end if that is later.
            due = event_in(MOVE_EVERY_S)
            url = cluster.urls[turn % 2]
            await client.ask(admin.pin(identifier, url))
            await until_led(cluster, client, topic, url)
            await work.acknowledged(10)
            epochs.add((await client.leader(topic)).epoch)
            await due.wait()
        await client.ask(admin.unpin(identifier))
        assert len(epochs) == moves
    # Planned moves cause no failed request.
    assert work.counts["fail"] == work.counts["unknown"] == 0, work.errors


def event_in(seconds: float) -> asyncio.Event:
    """Return an event that is set after so many seconds."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, event.set)
    return event


async def roll(cluster: LocalCluster, rounds: int, between: int) -> ClusterLoad:
    """Restart one node after the other under load, ``between`` publishes apart; no client may see an error."""
    name = f"rolled-{rounds}"
    stop = asyncio.Event()
    async with load(cluster, name, topics=TOPICS, publishers=PUBLISHERS, pause_s=0) as work:
        addresses = cluster.urls
        plain = [
            KeepAlive(
                f"{RAW}{one}", addresses[one % 3 :], f"faults/{name}-{one % TOPICS}", work.history
            )
            for one in range(PLAIN)
        ]
        running = [asyncio.create_task(one.run(stop)) for one in plain]
        began, before = time.monotonic(), work.answered
        for _ in range(rounds):
            for node in cluster.nodes:
                assert await asyncio.to_thread(node.stop) == 0
                await asyncio.to_thread(node.start)
                await work.acknowledged(between)
        rate = (work.answered - before) / (took_s := time.monotonic() - began)
        stop.set()
        await asyncio.gather(*running)
        print(f"{rate:.0f} requests/s over {took_s:.0f} s")  # noqa: T201  Print the rate.
    assert work.counts["fail"] == work.counts["unknown"] == 0, work.errors
    assert work.unread == []
    assert [one.unanswered for one in plain] == [[]] * len(plain)
    assert [one.refused for one in plain] == [[]] * len(plain)
    return work


async def test_no_client_sees_an_error_in_a_rolling_restart(cluster: LocalCluster) -> None:
    await roll(cluster, 1, between=100)


@pytest.mark.nightly
async def test_no_client_sees_an_error_in_three_rolling_restarts(cluster: LocalCluster) -> None:
    await roll(cluster, 3, between=1000)


async def test_a_request_that_is_repeated_elsewhere_is_done_once(cluster: LocalCluster) -> None:
    topic = "faults/once"
    one, other, third = (Client(url, follow_leaders=False) for url in cluster.urls)
    async with load(cluster, "beside-once") as work, one, other, third:
        await one.create_topic(topic)
        pointer = time.time_ns()
        first = await one.publish(topic, [b"a", b"b"], idempotency_key="k-1", pointer=pointer)
        again = await other.publish(topic, [b"a", b"b"], idempotency_key="k-1", pointer=pointer)
        assert again.rollback == first.rollback
        node = await leading_node(cluster, topic)
        await asyncio.to_thread(node.kill)
        try:
            alive = one if node.url != cluster.urls[0] else other
            after = await alive.publish(topic, [b"a", b"b"], idempotency_key="k-1", pointer=pointer)
            assert after.rollback == first.rollback
            assert [m.payload for m in await alive.poll(topic)] == [b"a", b"b"]
        finally:
            await asyncio.to_thread(node.start)
        await work.acknowledged(50)


async def test_all_nodes_show_a_rollback_after_a_takeover(cluster: LocalCluster) -> None:
    topic = "faults/rolled-back"
    one, other, third = (Client(url, follow_leaders=False) for url in cluster.urls)
    async with load(cluster, "beside-rollback") as work, one, other, third:
        await one.create_topic(topic)
        await one.publish(topic, b"plain")
        pointer = time.time_ns()
        published = await one.publish(topic, b"taken back", pointer=pointer)
        node = await leading_node(cluster, topic)
        await asyncio.to_thread(node.kill)
        try:
            alive = one if node.url != cluster.urls[0] else other
            await alive.rollback(topic, published)
        finally:
            await asyncio.to_thread(node.start)
        await work.acknowledged(50)
        everything = Snapshot(transaction_id=pointer + 1, read_pointer=pointer + 1)
        for client in (one, other, third):
            shown = [m.payload for m in await client.poll(topic, snapshot=everything)]
            assert shown == [b"plain"]
            # As in the original, consumers without a transaction see the message nevertheless.
            assert [m.payload for m in await client.poll(topic)] == [b"plain", b"taken back"]


@contextmanager
def late_publishes(work: ClusterLoad, node: Member, topic: str, count: int) -> Iterator[None]:
    """Write publishes into a paused node's sockets. Their senders never get an answer."""
    parts = urlsplit(node.url or "")
    namespace, _, name = topic.partition("/")
    with ExitStack() as sockets:
        for number in range(count):
            payload = f"{RAW}late:{number}"
            asked = {"payloads": [payload], "pointer": None, "key": None, "generation": 1}
            ending = work.history.invoke(f"late-{number}", "publish", f"{namespace}:{name}", asked)
            address = (parts.hostname, parts.port)
            one = sockets.enter_context(socket.create_connection(address, timeout=DEADLINE_S))
            one.sendall(
                f"POST /v1/namespaces/{namespace}/topics/{name}/publish HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: text/plain\r\nContent-Length: {len(payload)}\r\n\r\n"
                f"{payload}".encode()
            )
            ending.unknown("never looked at")
        yield

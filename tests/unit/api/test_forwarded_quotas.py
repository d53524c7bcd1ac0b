"""Quotas in a cluster: the node that a request reaches charges its caller, the leader charges the topic, and none does twice."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.access.access_records import AccessRecords
from broker.access.grants import Grant
from broker.access.quotas import QuotaKind
from broker.config.sections import AccessConfig, AccessMode
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import topic_path

ACCESS: Final = AccessConfig(access_mode=AccessMode.REQUIRED)
REQUESTS: Final = QuotaKind.PUBLISH_REQUESTS_S
KNOWN_S: Final = 2.0
"""Within this every node knows a change of access."""


async def prepared(
    cluster: HttpCluster, who: str, limits: dict[QuotaKind, int | None]
) -> dict[str, str]:
    """Let node 0 lead the topic, set limits, and return the credentials of ``alice``."""
    records = AccessRecords(cluster.sim.records, cluster.sim.clock)
    token, _ = await records.create_token("alice")
    await records.grant(Grant("alice", "admin", "*"))
    await records.set_quota(who, limits)
    await cluster.lead_all(0)
    await cluster.sim.clock.sleep(KNOWN_S)
    sent = {"Authorization": f"Bearer {token}"}
    assert (await cluster(0, "PUT", topic_path("t"), headers=sent)).status == 200
    return sent


async def published(cluster: HttpCluster, node: int, sent: dict[str, str], times: int) -> list[int]:
    """Publish so many times at a node. Return the statuses."""
    return [(await cluster.publish(node, "a", **sent)).status for _ in range(times)]


@on_cluster(topic=False, access=ACCESS)
async def test_a_forwarded_publish_is_charged_where_it_came_in(cluster: HttpCluster) -> None:
    sent = await prepared(
        cluster, "alice", {REQUESTS: 6}
    )  # Two in a second, on each of three nodes.
    assert await published(cluster, 1, sent, 3) == [200, 200, 429]
    assert cluster.forwarded(by=1)
    assert await published(cluster, 0, sent, 3) == [200, 200, 429]
    assert await published(cluster, 2, sent, 3) == [200, 200, 429]
    await cluster.sim.clock.sleep(1)
    assert await published(cluster, 1, sent, 3) == [200, 200, 429]


@on_cluster(topic=False, access=ACCESS)
async def test_a_refusal_waits_so_that_it_costs_the_node_little(cluster: HttpCluster) -> None:
    """A client that ignores Retry-After takes no time of others: on a connection it gets four refusals in a second."""
    sent = await prepared(cluster, "alice", {REQUESTS: 3})
    assert await published(cluster, 0, sent, 1) == [200]
    began = cluster.sim.clock.monotonic()
    assert await published(cluster, 0, sent, 2) == [429, 429]
    assert 0.5 <= cluster.sim.clock.monotonic() - began < 0.7


@on_cluster(topic=False, access=ACCESS)
async def test_a_nodes_part_of_a_rate_grows_when_another_node_dies(cluster: HttpCluster) -> None:
    sent = await prepared(cluster, "alice", {REQUESTS: 6})
    cluster.machines[2].kill()
    await cluster.sim.clock.sleep(30)
    assert await published(cluster, 1, sent, 4) == [200, 200, 200, 429]


@on_cluster(topic=False, access=ACCESS)
async def test_the_leader_charges_the_topic_for_all_nodes(cluster: HttpCluster) -> None:
    sent = await prepared(cluster, "topic:default/t", {REQUESTS: 3})
    assert [(await published(cluster, node, sent, 1))[0] for node in (1, 2, 0)] == [200, 200, 200]
    reply = await cluster.publish(1, "a", **sent)
    assert (reply.status, reply.headers["Broker-Error"]) == (429, "quota_exceeded")
    assert (reply.headers["Broker-Outcome"], reply.headers["Retry-After"]) == ("refused", "1")


@on_cluster(topic=False, access=ACCESS)
async def test_a_topic_belongs_to_the_caller_at_the_node_that_forwards(
    cluster: HttpCluster,
) -> None:
    sent = await prepared(cluster, "alice", {QuotaKind.TOPICS: 2})
    assert [
        (await cluster(node, "PUT", topic_path(name), headers=sent)).status
        for node, name in ((1, "u"), (2, "v"), (0, "w"))
    ] == [200, 429, 429]


@on_cluster(topic=False, access=ACCESS)
async def test_a_wait_counts_on_the_node_that_the_client_reaches(cluster: HttpCluster) -> None:
    """The leader would count it, too: then one wait would take two."""
    sent = await prepared(cluster, "alice", {QuotaKind.WAITS: 1})
    target, headers = topic_path("t", "poll?wait=5"), {**sent, "Content-Type": "application/json"}
    at_other = asyncio.ensure_future(cluster(1, "POST", target, b"{}", headers))
    await cluster.sim.clock.sleep(0.5)
    at_leader = asyncio.ensure_future(cluster(0, "POST", target, b"{}", headers))
    await cluster.sim.clock.sleep(0.5)
    assert (await cluster(1, "POST", target, b"{}", headers)).status == 429
    assert (await cluster(0, "POST", target, b"{}", headers)).status == 429
    assert (await at_other).status == (await at_leader).status == 200

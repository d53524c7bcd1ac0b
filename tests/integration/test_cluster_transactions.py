"""The transaction service in a cluster of real processes loses no transaction in kills and restarts under load."""

from __future__ import annotations

import asyncio
import random

import aiohttp
import pytest

from broker.client import Client
from broker.local import LocalCluster, Member
from broker.testing.local_state import state_of
from tests.kit.transacting import PATH, Transactors, asking, pause

pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

DEADLINE_S = 60.0
CLIENTS = 4


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    return shared_cluster


async def leader(cluster: LocalCluster) -> Member:
    """Return the node that leads the service."""
    async with aiohttp.ClientSession() as session:
        for url in cluster.urls:
            async with session.get(f"{url}{PATH}/snapshot") as reply:
                told = reply.headers["Broker-Leader"].partition(";")[0]
                return next(node for node in cluster.nodes if node.url == told)
    raise AssertionError("no node serves")


async def until(commits: int, clients: Transactors, cluster: LocalCluster) -> None:
    """Wait for so many commits."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while len(clients.commits) < commits:
                await clients.progress.wait()
                clients.progress.clear()
    except TimeoutError:
        raise AssertionError(f"{len(clients.commits)} commits; {state_of(cluster)}") from None


async def restart(node: Member) -> None:
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.start)


async def kill(node: Member) -> None:
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.nightly)])
async def test_no_transaction_is_lost_when_the_leader_dies_or_stops(
    cluster: LocalCluster, rounds: int
) -> None:
    over = False
    async with Client(cluster.urls, deadline_s=20.0) as client:
        clients = Transactors(asking(client.transactions), random.Random(7), pause)

        async def transact() -> None:
            while not over:
                await clients.transact()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(transact())
            for number in range(2 * rounds):
                before = len(clients.commits)
                await until(before + 20, clients, cluster)
                await (kill, restart)[number % 2](await leader(cluster))
                before = len(clients.commits)
                await until(before + 5, clients, cluster)
            over = True
        await clients.look()
    assert not clients.violations

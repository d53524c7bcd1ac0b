"""Tephra's service on two nodes of a cluster: each of them answers every call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from broker.client import Client as BrokerClient
from broker.client import admin
from broker.clock import Clock, SystemClock
from broker.config.sections import (
    ClusterConfig,
    Config,
    HBaseConfig,
    ServerConfig,
    TransactionsConfig,
)
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.metrics import Metrics
from broker.node.ground import Ground, Stores
from broker.node.node import Node
from broker.routing.nodeheaders import PROTOCOL
from broker.storage.call_health import CallOutcome
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from tests.unit.tephra.clients import Client, connect
from tests.unit.tephra.test_tephra_service import message

CONFIG = Config(
    server=ServerConfig(port=0),
    cluster=ClusterConfig(zookeeper_hosts=("in-memory:1",)),
    hbase=HBaseConfig(hbase_gateways=("in-memory:1",)),
    transactions=TransactionsConfig(thrift_port=0),
)


class MemoryServers:
    """The storage and the coordination of one cluster, in memory."""

    protocol = PROTOCOL

    def __init__(self) -> None:
        self.table = MemoryTable(is_alone=False)
        self.coordination = MemoryCoordination(SystemClock())

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        del on_call_end
        logs = Logs(self.table, SystemClock())

        async def close() -> None:
            """Close nothing: the other node uses the stores, too."""

        return Stores(logs, Records(logs.resolver), close)

    async def coordinator(self) -> TreeCoordinator:
        return self.coordination.session()


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    servers = MemoryServers()

    def ground(config: Config, clock: Clock, metrics: Metrics) -> Ground:
        return Ground(config, clock, metrics, servers)

    nodes = [Node(CONFIG, ground=ground) for _ in range(2)]
    for each in nodes:
        await each.start()
    yield nodes
    for each in nodes:
        await each.stop()


async def begun(client: Client) -> int:
    client.send(message("startShort"))
    return int((await client.answer("startShort")).success.transactionId)


async def commit(client: Client, transaction: int) -> None:
    client.send(message("commitOrThrow", txId=transaction, wp=transaction))
    assert (await client.answer("commitOrThrow")).notInProgress is None


@pytest.mark.slow
async def test_one_node_commits_a_transaction_that_another_began(nodes: list[Node]) -> None:
    clients = [await connect(node.thrift_port or 0) for node in nodes]
    for first, second in (clients, clients[::-1]):
        await commit(second, await begun(first))
    open_ = [await begun(client) for client in clients]
    leading = await leader_of_transactions(nodes)
    await nodes.pop(leading).stop()
    assert await clients[leading].ended()
    assert await leader_of_transactions(nodes) == 0, "the other node has taken over"
    for transaction in open_:
        await commit(clients[1 - leading], transaction)
    for client in clients:
        client.close()
    await asyncio.gather(*(client.closed() for client in clients))


async def leader_of_transactions(nodes: list[Node]) -> int:
    """Return the index of the node that leads the transaction service."""
    async with BrokerClient(nodes[0].url) as client:
        leader = (await client.transactions.list())["leader"]
        rows = (await client.ask(admin.status()))["nodes"]
    (url,) = [row["url"] for row in rows if row["node"] == leader]
    return [node.url for node in nodes].index(url)

"""The start and end of a node's ground in a cluster, when a server does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from broker.config.sections import Config
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.coordination.ports import NodeInfo
from broker.errors import Unavailable
from broker.metrics import Metrics
from broker.model import TopicId
from broker.node import ground as grounds
from broker.node.ground import RELEASE_S, SECRET_KEY, Ground, Stores
from broker.routing.nodeheaders import PROTOCOL
from broker.routing.peers import HttpPeers
from broker.storage.call_health import CallOutcome
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Record, Records
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate

SAID = "left without releasing leases: ZooKeeper does not answer"
URL = "http://node:8080"


class MemoryServers:
    """Storage and coordination in memory."""

    records_type = Records

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = VirtualClock(loop)
        self.coordination = MemoryCoordination(self.clock)
        self.is_closed = False

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        del on_call_end
        logs = Logs(MemoryTable(is_alone=False), self.clock)
        return Stores(logs, self.records_type(logs.resolver), self.close)

    async def coordinator(self) -> TreeCoordinator:
        return self.coordination.session()

    async def close(self) -> None:
        self.is_closed = True

    def ground(self) -> Ground:
        return Ground(Config(), self.clock, Metrics("0"), self)


@pytest.mark.parametrize("has_lease", [False, True])
@pytest.mark.parametrize("is_silent", [False, True])
def test_a_node_ends_even_if_zookeeper_does_not_answer(is_silent: bool, has_lease: bool) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        servers = MemoryServers(loop)
        ground = servers.ground()
        await ground.open(URL)
        if has_lease:
            await ground.tenure.permit(TopicId("ns", "t"), loop.time() + 1)
            assert ground.tenure.slots_led == 1
        servers.coordination.delay_s = 1e6 if is_silent else 0.0
        began_s = loop.time()
        with capture_logs() as lines:
            await ground.close()
        assert loop.time() - began_s == (RELEASE_S if is_silent else 0.0)
        assert (SAID in [line["event"] for line in lines]) == is_silent
        assert servers.is_closed
        servers.coordination.delay_s = 0.0
        assert await servers.coordination.session().nodes() == {}

    simulate(scenario)


def test_a_node_that_does_not_start_leaves_no_task() -> None:
    class NoSecret(Records):
        @override
        async def get(self, key: bytes) -> Record | None:
            if key == SECRET_KEY:
                raise Unavailable("storage does not answer")
            return await super().get(key)

    async def scenario(loop: VirtualLoop) -> None:
        servers = MemoryServers(loop)
        servers.records_type = NoSecret
        ground = servers.ground()
        with pytest.raises(Unavailable):
            await ground.open(URL)
        await ground.close()
        await pass_time(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    simulate(scenario)


def test_a_node_forgets_the_connections_to_nodes_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[set[str]] = []

    class Noting(HttpPeers):
        @override
        def forget_others(self, urls: Collection[str]) -> None:
            kept.append(set(urls))

    monkeypatch.setattr(grounds, "HttpPeers", Noting)

    async def scenario(loop: VirtualLoop) -> None:
        servers = MemoryServers(loop)
        ground = servers.ground()
        await ground.open(URL)
        other = servers.coordination.session()
        membership = await other.join(NodeInfo(7, "life-7", "http://other:8080", "test", PROTOCOL))
        await pass_time(1)
        assert kept[-1] == {URL, "http://other:8080"}
        await membership.leave()
        await pass_time(1)
        assert kept[-1] == {URL}
        await other.close()
        await ground.close()

    simulate(scenario)

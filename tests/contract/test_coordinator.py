"""The contract of coordination over the coordinator in memory."""

import pytest

from broker.clock import SystemClock
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from tests.kit.contract.coordinator import FaultContract, LockContract, MembershipContract


class MemoryHarness:
    def __init__(self) -> None:
        self._clock = SystemClock()
        self._world = MemoryCoordination(self._clock, session_timeout_s=0.2)
        self._nodes: list[TreeCoordinator] = []

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def node(self) -> TreeCoordinator:
        node = self._world.session()
        self._nodes.append(node)
        return node

    async def expire(self, node: TreeCoordinator) -> None:
        self._world.expire(node)

    async def crash(self, node: TreeCoordinator) -> None:
        await self._world.crash(node)

    async def outage(self) -> None:
        self._world.outage()

    async def recover(self) -> None:
        self._world.recover()

    async def wipe(self) -> None:
        self._world.wipe()

    async def close(self) -> None:
        for node in self._nodes:
            await node.close()


class InMemory:
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class TestMembershipInMemory(InMemory, MembershipContract):
    pass


class TestLocksInMemory(InMemory, LockContract):
    pass


class TestFaultsInMemory(InMemory, FaultContract):
    pass

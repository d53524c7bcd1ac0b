from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broker.clock import Clock
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.leases import WAIT_S, Leases
from broker.coordination.memory import MemoryCoordination
from broker.errors import Unavailable
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time

SLOT = "slot/17"


def new_clock() -> Clock:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return VirtualClock(loop)


class Two:
    """The leases of two nodes, and the slots that they want."""

    def __init__(self) -> None:
        clock = new_clock()
        self.world = MemoryCoordination(clock)
        self.sessions: list[TreeCoordinator] = [self.world.session(), self.world.session()]
        self.unwanted: set[str] = set()
        self.one, self.two = (
            Leases(session, clock, lambda resource: resource not in self.unwanted)
            for session in self.sessions
        )

    async def close(self) -> None:
        await self.one.close()
        await self.two.close()
        for session in self.sessions:
            await session.close()


async def test_all_callers_share_one_lease() -> None:
    two = Two()
    tasks = {two.one.taking(SLOT) for _ in range(10)}
    assert len(tasks) == 1
    await asyncio.gather(*tasks)
    assert two.one.has(SLOT)
    assert two.one.resources == [SLOT]
    await two.close()
    assert two.one.resources == []


async def test_a_waiting_node_gets_a_released_lease() -> None:
    two = Two()
    await two.one.taking(SLOT)
    waiting = two.two.taking(SLOT)
    await pass_time(3 * WAIT_S + 1)
    assert waiting.done(), "an attempt is limited"
    assert not two.two.has(SLOT)
    waiting = two.two.taking(SLOT)
    await pass_time(1)
    await two.one.release(SLOT)
    await waiting
    assert two.two.has(SLOT)
    assert not two.one.has(SLOT)
    await two.close()


async def test_an_unwanted_lease_is_released_when_it_arrives() -> None:
    two = Two()
    await two.one.taking(SLOT)
    waiting = two.two.taking(SLOT)
    await pass_time(1)
    two.unwanted.add(SLOT)
    await two.one.release(SLOT)
    await waiting
    assert not two.two.has(SLOT)
    two.unwanted.clear()
    await two.one.taking(SLOT)
    assert two.one.has(SLOT)
    await two.close()


async def test_a_lease_whose_session_is_over_is_not_held() -> None:
    two = Two()
    await two.one.taking(SLOT)
    two.world.expire(two.sessions[0])
    await pass_time(1)
    assert not two.one.has(SLOT)
    assert two.one.resources == []
    await two.one.taking(SLOT)
    assert two.one.has(SLOT), "a new one, under the new session"
    await two.close()


async def test_after_a_fencing_only_a_verified_or_a_new_lease_is_good() -> None:
    two = Two()
    leases = two.one
    assert not await leases.is_good(SLOT, 0)
    await leases.taking(SLOT)
    assert await leases.is_good(SLOT, 0)
    leases.fencings += 1
    two.world.suspend(two.sessions[0])
    assert await leases.is_good(SLOT, 0)
    with pytest.raises(Unavailable):
        await leases.is_good(SLOT, 1)
    two.world.resume(two.sessions[0])
    assert await leases.is_good(SLOT, 1)
    two.world.suspend(two.sessions[0])
    assert await leases.is_good(SLOT, 1), "it was verified after that"
    two.world.resume(two.sessions[0])
    leases.fencings += 1
    two.world.nodes.end_session(two.sessions[0].tree.session)
    assert leases.has(SLOT), "it does not know yet"
    with pytest.raises(Unavailable):
        await leases.is_good(SLOT, 2)
    assert not await leases.is_good(SLOT, 2)
    assert not leases.has(SLOT)
    await leases.taking(SLOT)
    assert await leases.is_good(SLOT, 2)
    await two.close()


async def test_a_lease_whose_attempt_began_before_a_fencing_is_verified_once(
    record_verifications: Callable[[TreeCoordinator], list[str]],
) -> None:
    two = Two()
    verified = record_verifications(two.sessions[0])
    two.world.delay_s = 0.1
    taking = two.one.taking(SLOT)
    await pass_time(0.05)
    two.one.fencings += 1
    await taking
    together = [two.one.is_good(SLOT, 1) for _ in range(5)]
    assert await asyncio.gather(*together) == [True] * 5
    assert verified == [SLOT]
    await two.close()


async def test_closing_ends_all_waits() -> None:
    two = Two()
    await two.one.taking(SLOT)
    waiting = two.two.taking(SLOT)
    await pass_time(1)
    await two.two.close()
    assert waiting.cancelled()
    await two.close()


async def test_a_long_outage_leaves_nothing_to_be_done_at_its_end() -> None:
    two = Two()
    resources = [f"slot/{number}" for number in range(10)]
    two.world.outage()
    tasks = len(asyncio.all_tasks())
    for _ in range(100):
        waiting = [two.one.taking(resource) for resource in resources]
        await pass_time(WAIT_S + 1)
        assert all(task.done() for task in waiting)
    assert len(asyncio.all_tasks()) == tasks
    two.world.recover()
    await asyncio.gather(*map(two.one.taking, resources))
    assert sorted(two.one.resources) == resources
    await two.close()

"""The contract of coordination on a real ZooKeeper, with losses of sessions, data and servers."""

import asyncio
import itertools
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs
from typing_extensions import override

from broker.clock import SystemClock
from broker.coordination import zookeeper
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.ports import Contact
from broker.errors import Unavailable
from broker.local.servers import free_ports
from broker.testing.virtual_time import within
from chaos.sessions import end_session
from tests.kit.contract.coordination import (
    PATIENCE_S,
    CallRecorder,
    ended,
    info,
    reaches,
)
from tests.kit.contract.coordinator import FaultContract, LockContract, MembershipContract
from tests.kit.servers import ZooKeeperServer
from tests.kit.servers.ensemble import ZooKeeperEnsemble

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase")]

SESSION_MS = 2000
ROOTS = itertools.count()


class ZooKeeperHarness:
    """A new root on a server that the tests of this module share."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._clock = SystemClock()
        self.root = f"/test/{next(ROOTS)}"
        self._nodes: list[TreeCoordinator] = []

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def node(self) -> TreeCoordinator:
        node = await zookeeper.connect(
            [self._server.hosts],
            root=self.root,
            session_timeout_ms=SESSION_MS,
            clock=self._clock,
        )
        self._nodes.append(node)
        return node

    async def expire(self, node: TreeCoordinator) -> None:
        await asyncio.to_thread(end_session, [self._server.hosts], node.tree.session)

    async def crash(self, node: TreeCoordinator) -> None:
        await asyncio.to_thread(break_off, node.tree._client)

    async def outage(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def recover(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def wipe(self) -> None:
        await self.outage()
        shutil.rmtree(self._server.folder / "data")
        await self.recover()

    async def close(self) -> None:
        await asyncio.gather(*(node.close() for node in self._nodes))


def break_off(client: KazooClient) -> None:
    """Stop a client without closing its session, as the end of its process does."""
    client._stopped.set()
    with suppress(OSError):
        client._connection._socket.shutdown(socket.SHUT_RDWR)
    client._connection.stop(10)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def operator(server: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


class OnZooKeeper:
    @pytest.fixture
    def harness(self, server: ZooKeeperServer) -> ZooKeeperHarness:
        return ZooKeeperHarness(server)


class TestMembershipOnZooKeeper(OnZooKeeper, MembershipContract):
    pass


class TestLocksOnZooKeeper(OnZooKeeper, LockContract):
    pass


class TestFaultsOnZooKeeper(OnZooKeeper, FaultContract):
    pass


async def test_a_node_notices_a_frozen_server_and_reconnects_to_it(server: ZooKeeperServer) -> None:
    harness = ZooKeeperHarness(server)
    node = await harness.node()
    member = await node.join(info(1))
    lease = await node.acquire("slot/1", harness.monotonic() + PATIENCE_S)
    server.suspend()
    try:
        await reaches(node, Contact.SUSPENDED)
        assert lease.valid
        with pytest.raises(Unavailable):
            await node.nodes()
    finally:
        server.resume()
    await reaches(node, Contact.CONNECTED)
    # The server may have ended the session. In both cases a valid lease is held, and the member is back.
    assert await lease.verify() == lease.valid
    again = await (await harness.node()).join(info(2))
    recorder = CallRecorder()
    again.on_change(recorder)
    await recorder.until(lambda: set(again.members.nodes) == {1, 2}, lambda: again.members)
    assert not member.stopped.done()
    await harness.close()


async def test_hundreds_of_locks_at_once(server: ZooKeeperServer) -> None:
    harness = ZooKeeperHarness(server)
    first, second = await harness.node(), await harness.node()
    deadline = harness.monotonic() + PATIENCE_S
    slots = [f"slot/{number}" for number in range(300)]
    leases = await asyncio.gather(*(first.acquire(slot, deadline) for slot in slots))
    waiting = [asyncio.create_task(second.acquire(slot, deadline)) for slot in slots]
    await harness.expire(first)
    assert all(lease.valid for lease in await asyncio.gather(*waiting))
    for lease in leases:
        await ended(lease)
    await harness.close()


async def test_a_lease_is_invalid_after_its_lock_was_deleted(
    server: ZooKeeperServer, operator: KazooClient
) -> None:
    harness = ZooKeeperHarness(server)
    node = await harness.node()
    lease = await node.acquire("slot/1", harness.monotonic() + PATIENCE_S)
    await asyncio.to_thread(operator.delete, f"{harness.root}/locks/slot/1", recursive=True)
    assert not await lease.verify()
    assert not lease.valid
    assert await (await node.acquire("slot/1", harness.monotonic() + PATIENCE_S)).verify()
    await harness.close()


async def test_a_member_joins_again_after_its_entry_was_deleted(
    server: ZooKeeperServer, operator: KazooClient
) -> None:
    harness = ZooKeeperHarness(server)
    node, other = await harness.node(), await harness.node()
    await node.join(info(1))
    path = f"{harness.root}/nodes/001"
    await asyncio.to_thread(operator.delete, path)
    await asyncio.to_thread(appears, operator, path)
    assert await other.nodes() == {1: info(1)}
    await harness.close()


def appears(client: KazooClient, path: str) -> None:
    """Wait until a path exists."""
    there = threading.Event()
    if client.exists(path, watch=lambda _: there.set()) is None:
        assert there.wait(PATIENCE_S), f"{path} is not made"


async def test_invalid_entries_among_the_members_are_ignored(
    server: ZooKeeperServer, operator: KazooClient
) -> None:
    harness = ZooKeeperHarness(server)
    node = await harness.node()
    await node.join(info(1))
    for name, data in (("002", b"\xff"), ("003", b"[]"), ("x", b"{}"), ("004", info_of_five())):
        await asyncio.to_thread(operator.create, f"{harness.root}/nodes/{name}", data)
    assert set(await node.nodes()) == {1}
    assert set((await (await harness.node()).join(info(9))).members.nodes) == {1, 9}
    await harness.close()


def info_of_five() -> bytes:
    return json.dumps(info(5)._asdict()).encode()


async def test_a_node_that_was_stopped_for_long_has_no_contact_until_its_next_heartbeat(
    server: ZooKeeperServer,
) -> None:
    clock = StoppedClock()
    node = await zookeeper.connect(
        [server.hosts], root="/stopped", session_timeout_ms=SESSION_MS, clock=clock
    )
    assert node.contact is Contact.CONNECTED
    recorder = CallRecorder()
    node.on_contact(recorder)
    clock.ahead_s = SESSION_MS / 1000 + 1
    assert node.contact is Contact.SUSPENDED
    with pytest.raises(Unavailable):
        await node.nodes()  # Only the heartbeat sends requests now.
    await reaches(node, Contact.CONNECTED)
    await node.nodes()
    assert recorder.arguments == [Contact.SUSPENDED, Contact.CONNECTED]
    await node.close()


class StoppedClock(SystemClock):
    """A clock that a test sets forward, as if the process was stopped."""

    ahead_s = 0.0

    @override
    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(500, 1000), (3000, 3000), (60_000, 20_000)])
async def test_a_session_timeout_that_is_not_granted_is_logged(
    server: ZooKeeperServer, asked_ms: int, granted_ms: int
) -> None:
    with capture_logs() as lines:
        node = await zookeeper.connect(
            [server.hosts], root="/granted", session_timeout_ms=asked_ms, clock=SystemClock()
        )
    await node.close()
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["asked_ms"], line["granted_ms"]) for line in warnings] == (
        [] if asked_ms == granted_ms else [(asked_ms, granted_ms)]
    )


async def test_without_a_zookeeper_the_error_names_the_address() -> None:
    host = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(Unavailable, match=host):
        await zookeeper.connect(
            [host], root="/none", session_timeout_ms=1000, clock=SystemClock(), connect_s=0.5
        )


async def test_the_loss_of_the_ensembles_leader_ends_no_session() -> None:
    with ZooKeeperEnsemble() as ensemble:
        clock = SystemClock()
        nodes = [
            await zookeeper.connect(
                ensemble.hosts, root="/broker", session_timeout_ms=SESSION_MS, clock=clock
            )
            for _ in range(3)
        ]
        members = [await node.join(info(number)) for number, node in enumerate(nodes)]
        leases = [
            await node.acquire(f"slot/{number}", clock.monotonic() + PATIENCE_S)
            for number, node in enumerate(nodes)
        ]
        sessions = [member.session for member in members]
        recorders = [CallRecorder() for _ in nodes]
        for node, recorder in zip(nodes, recorders, strict=True):
            node.on_contact(recorder)
        await asyncio.to_thread(ensemble.leader.kill)
        for recorder in recorders:
            await recorder.at_least(2)
            assert recorder.arguments == [Contact.SUSPENDED, Contact.CONNECTED]
        for number, lease in enumerate(leases):
            assert await lease.verify()
            assert lease.session == sessions[number]
        assert set(await nodes[0].nodes()) == {0, 1, 2}
        waiter = asyncio.create_task(nodes[1].acquire("slot/0", clock.monotonic() + PATIENCE_S))
        await leases[0].release()
        assert (await within(PATIENCE_S, waiter, lambda: "not handed over")).valid
        await asyncio.gather(*(node.close() for node in nodes))


@pytest.mark.nightly
async def test_twenty_seconds_without_a_quorum_end_no_session() -> None:
    with ZooKeeperEnsemble() as ensemble:
        clock = SystemClock()
        node = await zookeeper.connect(
            ensemble.hosts, root="/broker", session_timeout_ms=SESSION_MS, clock=clock
        )
        lease = await node.acquire("slot/1", clock.monotonic() + PATIENCE_S)
        lost = ensemble.members[:2]
        await asyncio.gather(*(asyncio.to_thread(server.kill) for server in lost))
        await reaches(node, Contact.SUSPENDED)
        await clock.sleep(20.0)
        assert lease.valid
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in lost))
        await reaches(node, Contact.CONNECTED)
        assert await lease.verify()
        await node.close()

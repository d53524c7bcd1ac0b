"""A leader checks requests of other nodes: deadlines, lanes, epochs, protocols."""

from __future__ import annotations

import asyncio
import gc
from contextlib import nullcontext
from typing import Any

import pytest

from broker.clock import SystemClock
from broker.errors import NoLeader
from broker.node.ground import cluster_secret
from broker.routing.nodeheaders import Envelope, LaneTicket, NodeHeaders, Repeat, Sender
from broker.routing.peer_requests import NUMBERS_KEPT, Receiving, SeenNumbers
from broker.testing import simulated
from broker.testing.mutants import in_force
from broker.testing.virtual_time import pass_time
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import topic_path

PUBLISH = topic_path("t", "publish")
TEXT = {"Content-Type": "text/plain"}
OF_NODE_0 = "orders"
"""A topic that node 0 leads without a pin."""
ELSEWHERE = Sender(7, "life-7")


class FarNode:
    """Another node. It only sends requests to the leader, node 0."""

    def __init__(self, cluster: HttpCluster) -> None:
        self._cluster = cluster
        self._clock = cluster.sim.clock
        self.epoch: int | None = None
        self.number = 0

    async def send(self, payload: bytes, left_ms: int = 20_000, **named: Any) -> tuple[int, str]:
        """Forward a publish; return the status and the error code of the answer."""
        repeat = {"epoch": self.epoch, "key": payload.hex() * 4, **named}
        ticket = repeat.pop("ticket", None)
        deadline_ms = self._clock.now_ms() + left_ms
        headers = NodeHeaders(ELSEWHERE, deadline_ms, Repeat(**repeat), ticket)
        return (await self.raw(payload, await self.signed(payload, headers)))[:2]

    async def signed(self, payload: bytes, told: NodeHeaders, **changed: Any) -> dict[str, str]:
        """Return the headers of a publish, signed for node 0."""
        self.number += 1
        url = self._cluster.machines[0].url
        headers = {**TEXT, **told._replace(number=self.number).format(), **changed}
        return Envelope(url, "POST", PUBLISH).signed(headers, payload, await self.secret())

    async def secret(self) -> str:
        return await cluster_secret(self._cluster.sim.records, self._clock)

    async def raw(self, payload: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        async with self._cluster.connection(0) as http:
            await http.ask("POST", PUBLISH, payload, {**TEXT, **headers})
            reply = await http.reply()
        return reply.status, reply.headers.get("Broker-Error", ""), reply.body

    async def learn(self) -> None:
        """Learn the epoch, as a node does."""
        assert (await self.send(b"\1"))[0] == 421
        reply = await self._cluster.publish(0, "first")
        self.epoch = int(reply.headers["Broker-Leader"].rpartition("epoch=")[2])


async def far_node(cluster: HttpCluster) -> FarNode:
    far = FarNode(cluster)
    await far.learn()
    return far


async def payloads(cluster: HttpCluster, node: int = 0) -> list[str]:
    """Return all payloads but the first."""
    return (await cluster.payloads(node))[1:]


async def restart(cluster: HttpCluster, node: int) -> None:
    """Start a node again. It leads ``t`` again."""
    cluster.machines[node].kill()
    cluster.machines[node].start()
    assert await cluster.machines[node].served(30.0)
    await cluster.lead(node)


@on_cluster()
async def test_a_request_is_refused_after_its_deadline(cluster: HttpCluster) -> None:
    far = await far_node(cluster)
    assert await far.send(b"a", left_ms=0) == (503, "overloaded")
    assert await payloads(cluster) == []
    with in_force("deadline"):
        # The leader stores a copy whose sender has given up.
        assert (await far.send(b"a", left_ms=0))[0] == 200
    assert await payloads(cluster) == ["a"]


@on_cluster()
async def test_a_late_copy_is_refused(cluster: HttpCluster) -> None:
    far = await far_node(cluster)
    assert (await far.send(b"b", ticket=LaneTicket(1, 1, 1)))[0] == 200
    assert await far.send(b"a", ticket=LaneTicket(1, 0, 0)) == (503, "overloaded")
    assert await payloads(cluster) == ["b"]
    with in_force("lane-order"):
        # The client has the answer that the outcome is unknown, and has sent its next request.
        assert (await far.send(b"a", ticket=LaneTicket(1, 0, 0)))[0] == 200
    assert await payloads(cluster) == ["b", "a"]


@on_cluster()
async def test_a_request_waits_for_earlier_requests_of_its_lane(cluster: HttpCluster) -> None:
    far = await far_node(cluster)
    overtaking = asyncio.ensure_future(far.send(b"b", ticket=LaneTicket(1, 1, 0)))
    await pass_time(0.5)
    assert not overtaking.done()
    assert (await far.send(b"a", ticket=LaneTicket(1, 0, 0)))[0] == 200
    assert (await overtaking)[0] == 200
    assert await payloads(cluster) == ["a", "b"]


@on_cluster()
async def test_without_lanes_a_request_overtakes_earlier_ones(cluster: HttpCluster) -> None:
    far = await far_node(cluster)
    with in_force("lane-order"):
        assert (await far.send(b"b", ticket=LaneTicket(1, 1, 0)))[0] == 200
        assert (await far.send(b"a", ticket=LaneTicket(1, 0, 0)))[0] == 200
    assert await payloads(cluster) == ["b", "a"]


@on_cluster()
async def test_a_request_whose_turn_does_not_come_can_be_sent_again(cluster: HttpCluster) -> None:
    far = await far_node(cluster)
    assert await far.send(b"b", ticket=LaneTicket(1, 1, 0)) == (503, "no_leader")
    assert (await far.send(b"b", attempt=2, ticket=LaneTicket(1, 1, 1)))[0] == 200
    assert await payloads(cluster) == ["b"]


@simulated()
async def test_requests_that_stop_waiting_for_their_turn_leave_nothing_in_memory() -> None:
    clock = SystemClock()
    receiving = Receiving("secret", clock)

    async def wait(lane: int) -> None:
        headers = NodeHeaders(ELSEWHERE, 0, ticket=LaneTicket(lane, 1, 0))
        async with receiving.turn(headers, clock.monotonic() + 30):
            raise AssertionError("it is not its turn")

    def events() -> int:
        gc.collect()
        return sum(type(each) is asyncio.Event for each in gc.get_objects())

    before = events()
    waiting = [asyncio.ensure_future(wait(lane)) for lane in range(10)]
    await pass_time(0.1)
    assert events() >= before + 10
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    del waiting, each
    assert events() <= before


@on_cluster()
async def test_a_late_copy_of_an_earlier_epoch_is_refused(cluster: HttpCluster) -> None:
    # The leader of the next epoch does not know the lane. It refuses the copy because of its epoch.
    far = await far_node(cluster)
    await cluster.lead(1)
    await cluster.publish(0, "b")
    await cluster.lead(0)
    await cluster.publish(0, "c")
    headers = NodeHeaders(
        ELSEWHERE,
        cluster.sim.clock.now_ms() + 20_000,
        Repeat("61" * 4, epoch=far.epoch),
        LaneTicket(1, 0, 0),
    )
    status, code, body = await far.raw(b"a", await far.signed(b"a", headers))
    assert (status, code) == (421, "not_leader")
    assert b'"node":0' in body
    assert await payloads(cluster) == ["b", "c"]


@on_cluster()
async def test_a_key_is_known_in_a_later_epoch(cluster: HttpCluster) -> None:
    far = await far_node(cluster)
    assert (await far.send(b"a"))[0] == 200
    await cluster.lead(1)
    await cluster.publish(1, "b")
    await cluster.lead(0)
    far.epoch = None
    assert (await far.send(b"a", attempt=2))[0] == 421
    far.epoch = (await cluster(0, "GET", topic_path("t", "leader"))).json["epoch"]
    assert (await far.send(b"a", attempt=3))[0] == 200
    assert await payloads(cluster) == ["a", "b"]


@on_cluster()
async def test_a_node_without_the_secret_is_refused(cluster: HttpCluster) -> None:
    far = FarNode(cluster)
    headers = await far.signed(b"a", NodeHeaders(ELSEWHERE, 1 << 50, Repeat("61" * 4, epoch=1)))
    forged = {**headers, "Broker-Signature": "0" * 64}
    assert (await far.raw(b"a", forged))[:2] == (403, "forbidden")
    assert (await far.raw(b"b", headers))[:2] == (403, "forbidden")
    assert await cluster.payloads() == []
    with in_force("signature"):
        assert (await far.raw(b"a", forged))[0] != 403


@on_cluster()
async def test_a_copy_of_a_signed_request_is_refused(cluster: HttpCluster) -> None:
    far = await far_node(cluster)
    told = NodeHeaders(ELSEWHERE, cluster.sim.clock.now_ms() + 20_000, Repeat(epoch=far.epoch))
    headers = await far.signed(b"a", told)
    assert (await far.raw(b"a", headers))[0] == 200
    assert (await far.raw(b"a", headers))[:2] == (503, "no_leader")
    assert await payloads(cluster) == ["a"]
    with in_force("copies"):
        assert (await far.raw(b"a", headers))[0] == 200
    assert await payloads(cluster) == ["a", "a"]


def test_each_number_counts_once() -> None:
    seen = SeenNumbers()
    for number in (5, 7, 6, 7 + NUMBERS_KEPT, 8, 5 * NUMBERS_KEPT):
        seen.take(ELSEWHERE, number)
    for number in (7 + NUMBERS_KEPT, 8, 9, 5 * NUMBERS_KEPT):
        with pytest.raises(NoLeader):
            seen.take(ELSEWHERE, number)
    seen.take(Sender(7, "life-8"), 7)


@pytest.mark.parametrize("version", ["0", "1", "x", None])
@on_cluster()
async def test_a_node_of_another_protocol_is_refused(
    cluster: HttpCluster, version: str | None
) -> None:
    far = FarNode(cluster)
    given = {} if version is None else {"Broker-Protocol": version}
    told = NodeHeaders(ELSEWHERE, 1 << 50)
    unsigned = {name: text for name, text in told.format().items() if name != "Broker-Protocol"}
    url = cluster.machines[0].url
    headers = Envelope(url, "POST", PUBLISH).signed(
        {**TEXT, **unsigned, **given}, b"a", await far.secret()
    )
    status, code, body = await far.raw(b"a", headers)
    assert (status, code) == ((400, "bad_request") if version == "x" else (503, "no_leader"))
    if version == "1":
        assert b"serves the node protocol 2, not 1" in body


@pytest.mark.parametrize("has_lanes", [True, False])
@on_cluster()
async def test_a_delayed_request_is_refused_after_the_next_one_was_done(
    cluster: HttpCluster, *, has_lanes: bool
) -> None:
    """A publish of one client has an unknown outcome, the client's next one is done, then the first one arrives."""
    # By the leader's clock the deadline of the lost request has not passed when it arrives.
    cluster.machines[0].wall.step(-2000)
    await restart(cluster, 0)
    await cluster.publish(1, "first")
    async with cluster.connection(1) as http:

        async def publish(payload: bytes, seconds: str) -> int:
            await http.ask("POST", PUBLISH, payload, {**TEXT, "Request-Timeout": seconds})
            return (await http.reply()).status

        lost = cluster.strand(1, 0)
        assert await publish(b"lost", "0.05") == 500
        assert await publish(b"next", "20") == 200
        with nullcontext() if has_lanes else in_force("lane-order"):
            cluster.sim.network.land(lost)
            await pass_time(1.0)
    assert await payloads(cluster) == ["next"] + ["lost"] * (not has_lanes)


@on_cluster()
async def test_a_creation_is_sent_again_if_there_was_no_connection(cluster: HttpCluster) -> None:
    """A creation may not be done twice. Without a connection it was certainly not done."""
    cluster.machines[0].kill()
    assert (await cluster(1, "PUT", topic_path(OF_NODE_0))).status == 200

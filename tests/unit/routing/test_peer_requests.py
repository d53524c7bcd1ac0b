"""What a leader does with requests of other nodes: deadlines, lanes, epochs, protocols."""

import asyncio

import pytest
from multidict import CIMultiDict

from broker.clock import SystemClock
from broker.http.answer import NotSent
from broker.routing.nodeheaders import LaneTicket, NodeHeaders, Repeat, Sender
from broker.routing.peer_requests import Receiving
from broker.testing.mutants import in_force
from tests.kit.ring import Ring, passed, request_lost, ring_of
from tests.kit.serving import eventually, topic_path

PUBLISH = topic_path("t", "publish")
POLL = topic_path("t", "poll")
TEXT = {"Content-Type": "text/plain"}
ELSEWHERE = Sender(7, "life-7")


class FarNode:
    """A node of which there is nothing but the requests that it passes on to the ring's first."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.epoch: int | None = None

    async def send(self, payload: bytes, left_ms: int = 20_000, **named):
        told = {"epoch": self.epoch, "key": payload.hex() * 4, **named}
        ticket = told.pop("ticket", None)
        deadline_ms = self._ring.nodes[0].clock.now_ms() + left_ms
        headers = NodeHeaders(ELSEWHERE, deadline_ms, Repeat(**told), ticket)
        return await self.raw(payload, headers.format(self._ring.nodes[0].secret))

    async def raw(self, payload: bytes, headers):
        url = self._ring.infos[0].url + PUBLISH
        session = self._ring.nodes[0].http.session
        async with session.post(url, data=payload, headers={**TEXT, **headers}) as reply:
            return reply.status, reply.headers.get("Broker-Error"), await reply.read()

    async def learn(self) -> None:
        """Learn the epoch, as a node does."""
        assert (await self.send(b"\1"))[0] == 421
        reply = await self._ring.nodes[0].http("POST", PUBLISH, b"first", TEXT)
        self.epoch = int(reply.headers["Broker-Leader"].rpartition("epoch=")[2])


@pytest.fixture
async def far(ring: Ring) -> FarNode:
    far = FarNode(ring)
    await far.learn()
    return far


async def payloads(ring: Ring) -> list[str]:
    json = {"Content-Type": "application/json"}
    reply = await ring.nodes[0].http("POST", POLL, b"{}", json)
    return [message["payload"] for message in reply.json][1:]


async def test_what_is_past_its_deadline_is_not_done(ring: Ring, far: FarNode) -> None:
    assert (await far.send(b"a", left_ms=0))[:2] == (503, "overloaded")
    assert await payloads(ring) == []
    with in_force("deadline"):
        # A late copy is stored after its sender was told that it was too late.
        assert (await far.send(b"a", left_ms=0))[0] == 200
    assert await payloads(ring) == ["a"]


async def test_a_late_copy_is_not_done(ring: Ring, far: FarNode) -> None:
    assert (await far.send(b"b", ticket=LaneTicket(1, 1, 1)))[0] == 200
    assert (await far.send(b"a", ticket=LaneTicket(1, 0, 0)))[:2] == (503, "overloaded")
    assert await payloads(ring) == ["b"]
    with in_force("lane-order"):
        # The client was told that nobody knows what became of it, and has gone on.
        assert (await far.send(b"a", ticket=LaneTicket(1, 0, 0)))[0] == 200
    assert await payloads(ring) == ["b", "a"]


async def test_a_request_waits_for_those_before_it_in_its_lane(ring: Ring, far: FarNode) -> None:
    overtaking = asyncio.create_task(far.send(b"b", ticket=LaneTicket(1, 1, 0)))
    waiting = ring.nodes[0].receiving._waiting
    await eventually(lambda: waiting, lambda: "nothing waits for its turn")
    assert (await far.send(b"a", ticket=LaneTicket(1, 0, 0)))[0] == 200
    assert (await overtaking)[0] == 200
    assert await payloads(ring) == ["a", "b"]
    assert not waiting


async def test_without_lanes_it_overtakes_them(ring: Ring, far: FarNode) -> None:
    with in_force("lane-order"):
        assert (await far.send(b"b", ticket=LaneTicket(1, 1, 0)))[0] == 200
        assert (await far.send(b"a", ticket=LaneTicket(1, 0, 0)))[0] == 200
    assert await payloads(ring) == ["b", "a"]


@pytest.mark.slow
async def test_who_waits_in_vain_for_its_turn_may_ask_again(ring: Ring, far: FarNode) -> None:
    status, code, _ = await far.send(b"b", ticket=LaneTicket(1, 1, 0))
    assert (status, code) == (503, "no_leader")
    assert (await far.send(b"b", attempt=2, ticket=LaneTicket(1, 1, 1)))[0] == 200
    assert await payloads(ring) == ["b"]


async def test_nothing_is_kept_of_who_stops_waiting_for_its_turn() -> None:
    receiving = Receiving("secret", SystemClock())
    told = NodeHeaders(ELSEWHERE, 0, ticket=LaneTicket(1, 1, 0))

    async def wait() -> None:
        async with receiving.turn(told, receiving._clock.monotonic() + 30):
            raise AssertionError("it is not its turn")

    waiting = asyncio.ensure_future(wait())
    await eventually(lambda: bool(receiving._waiting), lambda: "it does not wait")
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert receiving._waiting == {}


async def test_a_late_copy_of_an_earlier_epoch_is_not_done(ring: Ring, far: FarNode) -> None:
    # The lane is not known to the leader of the next epoch; the epoch itself keeps the copy out.
    await ring.move(1)
    await ring.nodes[0].http("POST", PUBLISH, b"b", TEXT)
    await ring.move(0)
    await ring.nodes[0].http("POST", PUBLISH, b"c", TEXT)
    status, code, body = await far.send(b"a", ticket=LaneTicket(1, 0, 0))
    assert (status, code) == (421, "not_leader")
    assert b'"node":0' in body
    assert await payloads(ring) == ["b", "c"]


async def test_a_key_comes_again_in_another_epoch(ring: Ring, far: FarNode) -> None:
    assert (await far.send(b"a"))[0] == 200
    await ring.move(1)
    await ring.move(0)
    far.epoch = None
    assert (await far.send(b"a", attempt=2))[0] == 421
    reply = await ring.nodes[0].http("GET", topic_path("t", "leader"))
    far.epoch = reply.json["epoch"]
    assert (await far.send(b"a", attempt=3))[0] == 200
    assert await payloads(ring) == ["a"]


async def test_a_node_without_the_secret_is_refused(ring: Ring, far: FarNode) -> None:
    told = NodeHeaders(ELSEWHERE, 1 << 50).format("0" * 64)
    assert (await far.raw(b"a", told))[:2] == (403, "forbidden")


async def test_the_last_release_is_served_without_lanes_and_epochs(ring: Ring, far) -> None:
    assert (await far.send(b"a", protocol=0))[0] == 200
    # Its first attempt may be a late copy, for all that this release knows, so its key is looked up.
    await ring.nodes[0].kill()
    await ring.move(1)
    json = {"Content-Type": "application/json"}
    reply = await ring.nodes[1].http("POST", POLL, b"{}", json)
    assert [message["payload"] for message in reply.json] == ["first", "a"]


@pytest.mark.parametrize("version", ["2", "99", "x", None])
async def test_other_protocols_are_told_so(ring: Ring, far: FarNode, version) -> None:
    told = NodeHeaders(ELSEWHERE, 1 << 50).format(ring.nodes[0].secret)
    del told["Broker-Protocol"]
    if version is not None:
        told["Broker-Protocol"] = version
    status, code, body = await far.raw(b"a", told)
    assert (status, code) == ((400, "bad_request") if version == "x" else (503, "no_leader"))
    if version == "2":
        assert b"serves the node protocols 1 and 0" in body


async def test_a_leader_of_the_last_release_is_spoken_to_as_it_understands() -> None:
    async with ring_of(2) as ring:
        ring.infos[0] = ring.infos[0]._replace(protocol=0)
        await ring.nodes[0].http("PUT", topic_path("t"))
        assert (await ring.nodes[1].http("POST", PUBLISH, b"a", TEXT)).status == 200
        (_, ask) = ring.nodes[1].peers.asked[-1]
        assert ask.headers["Broker-Protocol"] == "0"
        assert "Broker-Lane" not in ask.headers
        assert "Broker-Epoch" not in ask.headers


async def test_a_leader_of_an_older_release_is_not_asked() -> None:
    async with ring_of(2) as ring:
        ring.infos[0] = ring.infos[0]._replace(protocol=-1)
        reply = await ring.nodes[1].http("PUT", topic_path("t"), headers={"Request-Timeout": "0.1"})
        assert (reply.status, reply.headers["Broker-Error"]) == (503, "no_leader")
        assert b"protocol -1" in reply.body
        assert not ring.nodes[1].peers.asked


async def test_a_lost_request_that_arrives_after_all_comes_too_late(ring: Ring) -> None:
    # The whole way: a publish of unknown outcome, the next of the same client, and then the first.
    sender = ring.nodes[1]
    source = asyncio.Event()

    async def publish(payload: bytes, seconds: float):
        deadline = sender.clock.monotonic() + seconds
        return await sender.dispatch.call(
            "POST", PUBLISH, CIMultiDict(TEXT), payload, deadline=deadline, source=source
        )

    assert (await publish(b"first", 20)).status == 200
    sender.peers.hooks.extend([request_lost] * 1000)
    assert (await publish(b"lost", 0.05)).status == 500
    sender.peers.hooks.clear()
    (_, ask) = next(one for one in sender.peers.asked if one[1].body == b"lost")
    assert (await publish(b"next", 20)).status == 200
    late = {**ask.headers, "Broker-Deadline": str(sender.clock.now_ms() + 20_000)}
    status, _, _ = await FarNode(ring).raw(ask.body, late)
    assert status == 503
    assert await payloads(ring) == ["next"]


async def test_a_connection_that_was_never_made_leaves_no_doubt(ring: Ring) -> None:
    async def not_sent(_):
        raise NotSent("refused")

    ring.nodes[1].peers.hooks.extend([not_sent, passed])
    assert (await ring.nodes[1].http("PUT", topic_path("u"))).status == 200

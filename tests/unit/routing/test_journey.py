"""The path of one request if other nodes do not answer, or name a wrong leader, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import pytest

from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import HERE, TopicPlacement
from broker.errors import BrokerError, NoLeader, NotLeader, OutcomeUnknown, Unavailable
from broker.http.answer import HttpAnswer, NoAnswer, NotSent
from broker.http.outbound import Ask
from broker.metrics import Metrics
from broker.model import TopicId
from broker.operations.operation import RepeatEffect
from broker.routing.decisions import Call
from broker.routing.forwarder import READING_S, Forwarder
from broker.routing.nodeheaders import PROTOCOL, Sender
from broker.routing.peers import RelayedAnswer
from broker.routing.routing import Routing
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate

TOPIC = TopicId("default", "t")
NODES = [NodeInfo(n, f"life-{n}", f"http://node-{n}", "test", PROTOCOL) for n in range(4)]


NODE = {"x-request-id": "1"}
REFUSED = {"broker-error": NotLeader.code, "broker-outcome": "refused", **NODE}


class Whole:
    """A whole answer."""

    ended = True

    def __init__(self, status: int, body: object, headers: Mapping[str, str] = REFUSED) -> None:
        self.status = status
        self.headers = headers
        self._chunks = [b"", json.dumps(body).encode()]

    async def chunk(self, silence_s: float | None = None) -> bytes:
        del silence_s
        return self._chunks.pop()

    def close(self) -> None:
        pass


class Peers:
    """Other nodes. ``answers`` has the answers to the next requests; without one a node is silent."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.paths: list[str] = []
        self.answers: list[Callable[[], RelayedAnswer]] = []

    async def stream(self, url: str, ask: Ask, timeout_s: float) -> RelayedAnswer:
        self.asked.append((url, timeout_s))
        self.paths.append(ask.path)
        if self.answers:
            return self.answers.pop(0)()
        await pass_time(timeout_s)
        raise NoAnswer("silence")

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> HttpAnswer:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Node:
    """The first of four nodes. ``at`` is its belief where the topic is led."""

    def __init__(self, loop: VirtualLoop, peers: Peers | None = None) -> None:
        self.clock = VirtualClock(loop)
        self.peers = peers or Peers()
        self.at = TopicPlacement(here=False, node=NODES[1])
        self.locally: list[float] = []
        """The times at which its own handler was called."""
        forwarder = Forwarder(self.peers, self.clock, Sender(0, "life-0"), "secret")
        self.routing = Routing(
            self, forwarder, self.clock, Metrics("0"), me=NODES[0], leads=lambda _: False
        )

    def place(self, topic: TopicId) -> TopicPlacement:
        del topic
        return self.at

    async def permit(self, topic: TopicId, deadline: float) -> NoReturn:
        raise NotImplementedError

    def fenced(self, topic: TopicId) -> None:
        raise NotImplementedError

    async def answer(
        self,
        local: Callable[[], Awaitable[str]],
        *,
        kind: RepeatEffect = RepeatEffect.POLL,
        within_s: float,
        wait_s: float = 0.0,
    ) -> Any:
        async def noted(_: object) -> str:
            self.locally.append(self.clock.monotonic())
            return await local()

        now = self.clock.monotonic()
        until = now + wait_s
        call = Call(kind, "poll", TOPIC, "POST", "/", {}, b"", now + within_s, waits_until=until)
        return await self.routing.answer(call, noted)


async def read() -> str:
    return "read from storage"


async def no_storage() -> str:
    await pass_time(25.0)
    raise Unavailable("storage does not answer")


@pytest.mark.parametrize("wait_s", [0.0, 20.0, 27.0, 30.0, 60.0])
def test_a_poll_is_read_from_storage_if_its_leader_stays_silent(wait_s: float) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = Node(loop)
        within_s = max(30.0, wait_s + READING_S)
        assert await node.answer(read, within_s=within_s, wait_s=wait_s) == "read from storage"
        assert node.peers.asked == [(NODES[1].url, wait_s + READING_S)]

    simulate(main)


def test_the_next_node_gets_the_rest_of_the_wait() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = Node(loop)
        waiting = asyncio.ensure_future(node.answer(read, within_s=63.0, wait_s=60.0))
        await pass_time(20.0)
        node.at = TopicPlacement(here=False, node=NODES[2])
        node.peers.answers.append(lambda: Whole(200, {}, {}))
        await waiting
        (first, _), (second, silence_s) = node.peers.asked
        assert [first, second] == [NODES[1].url, NODES[2].url]
        waits = [float(path.removeprefix("/?wait=")) for path in node.peers.paths]
        assert waits == [60.0, pytest.approx(silence_s - READING_S, abs=0.001)]
        assert 38.0 < waits[1] <= 40.0

    simulate(main)


@pytest.mark.parametrize("kind", [RepeatEffect.POLL, RepeatEffect.READING])
def test_a_node_waits_for_a_silent_node_for_half_of_the_time_at_most(kind: RepeatEffect) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = Node(loop)
        assert await node.answer(read, kind=kind, within_s=1.0) == "read from storage"
        assert node.peers.asked == [(NODES[1].url, 0.5)]
        assert node.locally == [pytest.approx(0.5, abs=0.1)]

    simulate(main)


def test_silent_storage_is_not_read_again_at_the_deadline() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = Node(loop)
        node.at = TopicPlacement(here=False, node=None)
        with pytest.raises(NoLeader):
            await node.answer(no_storage, within_s=30.0)
        assert len(node.locally) == 2

    simulate(main)


def test_only_reads_are_answered_by_this_node_at_the_deadline() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = Node(loop)
        node.at = TopicPlacement(here=False, node=None)
        with pytest.raises(NoLeader):
            await node.answer(read, kind=RepeatEffect.ONCE, within_s=1.0)
        assert node.locally == []

    simulate(main)


@pytest.mark.parametrize("failures", [[NoAnswer], [NotSent, NotSent]], ids=["lost", "refused"])
def test_a_read_that_needs_the_leader_follows_it(failures: list[type[Exception]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = Node(loop)

        def fails_with(kind: type[Exception]) -> Callable[[], RelayedAnswer]:
            def fail() -> NoReturn:
                raise kind("the leader was killed")

            return fail

        async def moves() -> None:
            await pass_time(4.0)
            node.at = TopicPlacement(here=False, node=NODES[2])

        def answers() -> RelayedAnswer:
            if node.peers.asked[-1][0] == NODES[1].url:
                raise NotSent("connection refused")
            return Whole(200, {}, NODE)

        async def leads_not() -> str:
            raise NotLeader("another node leads", node=1, url=NODES[1].url)

        node.peers.answers += [fails_with(kind) for kind in failures] + [answers] * 1000
        moving = asyncio.ensure_future(moves())
        await node.answer(leads_not, kind=RepeatEffect.LED_READING, within_s=30.0)
        assert loop.time() < 5.0
        assert node.peers.asked[-1][0] == NODES[2].url
        assert node.locally == []
        await moving

    simulate(main)


class Hanging(Peers):
    """The first node takes requests and stays silent. The second one answers, or has no leader, either."""

    def __init__(self, *, answers: bool) -> None:
        super().__init__()
        self.answers_writes = answers
        self.got: set[str] = set()
        """The requests that the first node got."""
        self.attempts: list[tuple[str, str]] = []
        """The requests that the second node got, each with the number of its attempt."""

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> HttpAnswer:
        request = ask.headers["X-Request-Id"]
        if url == NODES[1].url:
            self.got.add(request)
            await pass_time(timeout_s)
            raise NoAnswer("silence")
        self.attempts.append((request, ask.headers["Broker-Attempt"]))
        if self.answers_writes:
            return HttpAnswer(200, NODE, b"")
        refused = {"broker-error": NoLeader.code, "broker-outcome": "refused", **NODE}
        return HttpAnswer(503, refused, b"")


@pytest.mark.parametrize("answers", [True, False])
def test_a_publish_that_waited_for_its_turn_was_not_sent(answers: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        peers = Hanging(answers=answers)
        node = Node(loop, peers)
        ended: dict[str, str] = {}

        async def nowhere(_: object) -> NoReturn:
            raise AssertionError("this node does not lead")

        async def publish(request: str) -> None:
            headers = {"X-Request-Id": request}
            deadline = loop.time() + 30.0
            call = Call(RepeatEffect.KEYED, "publish", TOPIC, "POST", "/", headers, b"", deadline)
            try:
                await node.routing.answer(call, nowhere)
                ended[request] = "done"
            except BrokerError as error:
                ended[request] = error.code

        requests = [str(number) for number in range(200)]
        publishing = [asyncio.ensure_future(publish(request)) for request in requests]
        await pass_time(4.0)
        node.at = TopicPlacement(here=False, node=NODES[2])
        await asyncio.gather(*publishing)
        assert 0 < len(peers.got) < len(requests)
        for request, attempt in peers.attempts:
            assert attempt == ("2" if request in peers.got else "1")
        for request in requests:
            unanswered = OutcomeUnknown.code if request in peers.got else NoLeader.code
            assert ended[request] == ("done" if answers else unanswered)

    simulate(main)


def test_a_client_gets_no_421_if_the_topic_comes_to_this_node_and_leaves_again() -> None:
    """Two nodes name other leaders. Then the topic comes to this node, and leaves during the poll."""

    async def main(loop: VirtualLoop) -> None:
        node = Node(loop)

        def sends_to(number: int) -> RelayedAnswer:
            return Whole(421, {"node": number, "url": NODES[number].url, "epoch": None})

        async def waits_here() -> str:
            if not node.at.here:
                return await read()
            await pass_time(5.0)
            node.at = TopicPlacement(here=False, node=NODES[2])
            raise NotLeader("it moved", node=2, url=NODES[2].url)

        def comes_here() -> RelayedAnswer:
            node.at = HERE
            return sends_to(3)

        node.peers.answers += [lambda: sends_to(2), comes_here]
        answer = await node.answer(waits_here, within_s=33.0, wait_s=30.0)
        assert answer == "read from storage"
        assert [url for url, _ in node.peers.asked] == [NODES[1].url, NODES[2].url]
        assert len(node.locally) == 2

    simulate(main)


class Stranger(Peers):
    """A server of another kind that listens at a node's address."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
        self.writes = 0

    async def exchange(self, url: str, ask: Ask, timeout_s: float) -> HttpAnswer:
        self.writes += 1
        return HttpAnswer(self.status, {"content-type": "text/html"}, b"<html>", url)


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 429, 500, 502])
@pytest.mark.parametrize("kind", [RepeatEffect.KEYED, RepeatEffect.ONCE])
def test_the_answer_of_a_stranger_at_a_nodes_address_is_none(
    status: int, kind: RepeatEffect
) -> None:
    async def main(loop: VirtualLoop) -> None:
        peers = Stranger(status)
        node = Node(loop, peers)
        node.at = TopicPlacement(here=False, node=NODES[1])

        async def nowhere(_: object) -> NoReturn:
            raise AssertionError("this node does not lead")

        call = Call(kind, "any", TOPIC, "POST", "/", {}, b"", loop.time() + 3.0)
        with pytest.raises(OutcomeUnknown, match=f"status {status}"):
            await node.routing.answer(call, nowhere)
        assert peers.writes == 1 if kind is RepeatEffect.ONCE else peers.writes > 1

    simulate(main)

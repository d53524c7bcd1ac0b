"""A node answers a poll from storage if the leader is silent. In virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.own_service import OwnService
from broker.api.polls import Polling
from broker.api.routed import Routed
from broker.api.routed_polls import RoutedPolls
from broker.coordination.ports import NodeInfo
from broker.coordination.tenure import TopicPlacement
from broker.http.answer import NoAnswer
from broker.http.reply import Reply
from broker.http.request import PathNames, Request
from broker.metrics import Metrics
from broker.model import Poll, PublishRequest, TopicId
from broker.operations.media_types import AVRO
from broker.routing.forwarder import READING_S, Forwarder
from broker.routing.nodeheaders import Sender
from broker.routing.peer_requests import Receiving
from broker.routing.routing import Routing
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.testing.memory import MemoryRecords
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.wire import avro
from broker.wire.blocks import PollDecoder

TOPIC = TopicId("default", "t")
ME, LEADER = (NodeInfo(n, f"life-{n}", f"http://node-{n}", "test", 1) for n in range(2))
DEADLINE_S = 30.0


class SilentNodes:
    """Other nodes that take requests and never answer."""

    def __init__(self) -> None:
        self.patience_s: list[float] = []

    async def stream(self, url: str, ask: object, timeout_s: float) -> Any:
        self.patience_s.append(timeout_s)
        await pass_time(timeout_s)
        raise NoAnswer("silence")


class Far:
    """A node that leads no topic, and the polls that it takes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = VirtualClock(loop)
        self.table, self.records = MemoryTable(is_alone=False), MemoryRecords()
        self.others = SilentNodes()
        elsewhere = SimpleNamespace(place=lambda _: TopicPlacement(here=False, node=LEADER))
        forwarder = Forwarder(self.others, self.clock, Sender(0, ME.incarnation), "secret")
        routing = Routing(
            elsewhere, forwarder, self.clock, Metrics("0"), me=ME, leads=lambda _: False
        )
        topics = self._topics(ME, tenure=elsewhere)
        receiving = Receiving("secret", self.clock)
        routed = Routed(routing, receiving, topics, deadline_s=DEADLINE_S)
        self.polls = RoutedPolls(routed, Polling(topics, OwnService(self.clock), wait_max_s=60.0))

    def _topics(self, node: NodeInfo, **tenure: Any) -> Topics:
        around = Surroundings(
            Logs(self.table, self.clock),
            self.clock,
            TopicSettings(),
            owner=node.incarnation,
            instance=node.instance,
            **tenure,
        )
        return Topics(around, self.records)

    async def stored(self, *payloads: bytes) -> None:
        """Let the leader store messages, and then stay silent."""
        leader = self._topics(LEADER)
        await leader.create(TOPIC, {"ttl": "600"})
        if payloads:
            await leader.publish(TOPIC, PublishRequest(None, payloads))
        await leader.close()

    async def poll(self, query: str, within_s: float = DEADLINE_S) -> list[bytes]:
        request = Request(
            "POST",
            "/v1/namespaces/default/topics/t/poll",
            query,
            {"Content-Type": AVRO},
            avro.encode_poll(Poll()),
            names=PathNames("default", TOPIC),
            deadline=self.clock.monotonic() + within_s,
        )
        answer = await self.polls.poll(request)
        assert isinstance(answer, Reply)
        assert answer.status == 200
        return [message.payload for message in PollDecoder().feed(answer.body)]


def virtually(main: Callable[[Far], Awaitable[None]]) -> None:
    async def run(loop: VirtualLoop) -> None:
        await main(Far(loop))

    simulate(run)


@pytest.mark.parametrize("wait_s", [0, 20, 26.9, 27, 30, 60])
def test_a_poll_of_any_wait_is_answered_from_storage(wait_s: float) -> None:
    async def main(far: Far) -> None:
        await far.stored(b"a")
        assert await far.poll(f"wait={wait_s}") == [b"a"]
        assert far.others.patience_s == [pytest.approx(wait_s + READING_S)]

    virtually(main)


@pytest.mark.parametrize("wait_s", [5, 30])
def test_a_wait_that_a_silent_leader_used_up_does_not_begin_again_at_storage(wait_s: float) -> None:
    async def main(far: Far) -> None:
        await far.stored()
        began = far.clock.monotonic()
        assert await far.poll(f"wait={wait_s}") == []
        assert far.clock.monotonic() - began < wait_s + READING_S + 0.5

    virtually(main)


def test_a_poll_that_does_not_wait_is_answered_before_its_deadline() -> None:
    async def main(far: Far) -> None:
        await far.stored(b"a")
        assert await far.poll("", within_s=2.0) == [b"a"]
        assert far.others.patience_s == [pytest.approx(1.0)]

    virtually(main)


def test_a_long_polls_wait_extends_its_deadline() -> None:
    async def main(far: Far) -> None:
        await far.stored(b"a")
        assert await far.poll("wait=20", within_s=2.0) == [b"a"]
        assert far.others.patience_s == [pytest.approx(20.0 + READING_S)]

    virtually(main)

"""Nodes of a simulated cluster, with access to their parts: topics, tenure, logs, and a table with hooks.

::

    @on_nodes(2)
    async def test_a_handoff(cluster: TopicCluster) -> None:
        home, other = await cluster.led(TOPIC)
        await cluster.move(TOPIC, other)

The nodes are the shipped ones (broker/testing/simulation). Requests by ``publish`` and the like go through a client and the
nodes' listeners. Requests to ``node.topics`` reach one node, which forwards nothing.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from broker.client import Client
from broker.client.values import Published
from broker.config.sections import SweepConfig, TopicsConfig
from broker.coordination import placement
from broker.coordination.cluster_tenure import ClusterTenure
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.placement import HINT
from broker.model import Message, Poll, PublishRequest, TopicId
from broker.storage.log import Logs
from broker.testing.simulation.cluster import SimCluster
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.node import Machine, SimGround
from broker.testing.simulation.trace import Trace
from broker.testing.simulation.world import in_world
from broker.testing.virtual_time import pass_time
from broker.topics.retention import SweepReport
from broker.topics.settings import NO_OPTIONS, PublishedIds, PublishOptions
from broker.topics.topics import Topics
from tests.kit.bench import LIFE_S, HookedTable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

MOVED_S = 0.2
"""The time in which a pinned topic is handed over."""
BELIEVED_S = 61.0
"""A node follows a step of its clock after this time (broker/clock.py)."""
SWEEP = SweepConfig(sweep_interval_s=1e6, sweep_margin_s=0.0, sweep_rest_s=0.0)
"""A node sweeps only when a test tells it to, and then removes expired messages at once."""

LONGEST_S = 600.0
"""A test that takes longer waits for an event that does not come."""
TOPICS = TopicsConfig(transaction_life_max_s=LIFE_S)


class TopicNode:
    """A machine of the cluster, and the parts of the node that runs on it."""

    def __init__(self, cluster: SimCluster, machine: Machine) -> None:
        """Put hooks before the machine's storage, so that a test can delay its calls."""
        self.machine = machine
        self.table = HookedTable(machine.storage)
        machine.storage = self.table
        self._cluster = cluster

    @property
    def ground(self) -> SimGround:
        """The node's storage and coordination (node.py)."""
        assert self.machine.ground is not None, "the node does not run"
        return self.machine.ground

    @property
    def topics(self) -> Topics:
        """The node's topics."""
        assert self.ground.topics is not None, "the node does not serve yet"
        return self.ground.topics

    @property
    def tenure(self) -> ClusterTenure:
        """The node's right to lead."""
        return self.ground.tenure

    @property
    def logs(self) -> Logs:
        """The node's access to the logs."""
        return self.ground.logs

    @property
    def instance(self) -> int:
        """The node's instance id."""
        return self.ground.instance

    @property
    def session(self) -> TreeCoordinator:
        """The node's session with the coordinator."""
        assert self.machine.session is not None, "the node has no session"
        return self.machine.session

    def now_ms(self) -> int:
        """Return the time by the node's clock."""
        return self.topics.around.clock.now_ms()

    async def step_clock(self, by_ms: float) -> None:
        """Set the machine's clock forward or back, and wait until its node follows."""
        self.now_ms()
        self.machine.wall.step(by_ms)
        self.now_ms()
        await pass_time(BELIEVED_S)
        self.now_ms()

    def leads(self, topic: TopicId) -> bool:
        """Return whether the node believes that it leads the topic."""
        return topic in self.machine.topics_led

    def client(self, deadline_s: float = 20.0) -> Client:
        """Return a client that sends all requests to this node."""
        return self._cluster.client("test", node=self.machine.url, deadline_s=deadline_s)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work in the node's process: it ends with the process, and uses its machine's network."""
        assert self.machine.process is not None, "the node does not run"
        return await self.machine.process.begin(work)

    async def sweep(self) -> SweepReport:
        """Sweep every topic that the node should lead."""
        assert self.machine.node is not None, "the node does not run"
        return await self.run(self.machine.node.sweep())

    async def publish(
        self, topic: TopicId, *payloads: bytes, options: PublishOptions = NO_OPTIONS
    ) -> PublishedIds:
        """Publish at this node's topics."""

        async def publish() -> PublishedIds:
            return await self.topics.publish(topic, PublishRequest(None, payloads), options)

        return await self.run(publish())

    def begin_publish(self, topic: TopicId, payload: bytes) -> asyncio.Future[PublishedIds]:
        """Begin to publish at this node's topics."""
        return asyncio.ensure_future(self.publish(topic, payload))

    async def poll(
        self, topic: TopicId, poll: Poll | None = None, *, anywhere: bool = False
    ) -> list[Message]:
        """Return all messages of a poll of this node's topics."""

        async def read() -> list[Message]:
            stream = await self.topics.poll(topic, poll or Poll(), anywhere=anywhere)
            return [
                Message(each.id, bytes(each.payload), each.key, each.headers)
                async for some in stream.messages()
                for each in some
            ]

        return await self.run(read())

    async def payloads(self, topic: TopicId, poll: Poll | None = None) -> list[bytes]:
        """Return the payloads of all messages of a poll of this node's topics."""
        return [message.payload for message in await self.poll(topic, poll)]


class TopicCluster:
    """A simulated cluster. Node n has instance id n."""

    def __init__(self, count: int, trace: Trace, **sections: Any) -> None:
        """Make the nodes; ``sections`` are sections of their configuration."""
        self.sim = SimCluster(
            nodes=count, seed=1, settings={"sweep": SWEEP, "topics": TOPICS, **sections}
        )
        self.trace = trace
        self.nodes = [TopicNode(self.sim, machine) for machine in self.sim.machines]
        self._clients: list[Client] = []

    @property
    def loop(self) -> SimLoop:
        """The loop."""
        return self.sim.loop

    async def start(self) -> None:
        """Start the nodes, one after the other, so that each has its number as instance id."""
        for node in self.nodes:
            node.machine.start()
            assert await node.machine.served(30.0), self.sim.shared.ended

    async def end(self) -> None:
        """End the clients and the nodes."""
        self.sim.heal()
        for client in self._clients:
            await client.close()
        for machine in self.sim.machines:
            machine.kill()

    @functools.cached_property
    def client(self) -> Client:
        """A client that knows every node."""
        client = self.sim.client("test")
        self._clients.append(client)
        return client

    def via(self, node: TopicNode, deadline_s: float = 20.0) -> Client:
        """Return a client that sends all requests to one node."""
        client = node.client(deadline_s)
        self._clients.append(client)
        return client

    async def create(self, topic: TopicId, ttl_s: int = 600) -> None:
        """Create a topic."""
        await self.client.create_topic(topic, ttl_s=ttl_s)

    async def publish(self, topic: TopicId, *payloads: bytes) -> Published:
        """Publish through the client, which sends to the topic's leader."""
        return await self.client.publish(topic, payloads)

    async def move(self, topic: TopicId, to: TopicNode) -> None:
        """Pin a topic to a node, and wait until it has been handed over."""
        await self.pin(topic, to)
        await pass_time(MOVED_S)

    async def pin(self, topic: TopicId, to: TopicNode) -> None:
        """Pin a topic to a node, and tell all nodes."""
        await placement.pin(self.sim.records, topic, to.instance)
        await self.hint()

    async def hint(self) -> None:
        """Tell all nodes to read the operators' settings again."""
        session = self.sim.coordination.session()
        await session.hint(HINT)
        await session.close()

    async def led(self, topic: TopicId) -> tuple[TopicNode, TopicNode]:
        """Create a topic, publish ``first``, and return its leader and one of the other nodes."""
        await self.create(topic)
        await self.publish(topic, b"first")
        (home,) = [node for node in self.nodes if node.leads(topic)]
        other = next((node for node in self.nodes if node is not home), home)
        return home, other


def on_nodes(
    count: int, **sections: Any
) -> Callable[
    [Callable[Concatenate[TopicCluster, Parameters], Awaitable[None]]],
    Callable[Parameters, None],
]:
    """Turn an asynchronous test into a plain one, which runs in a simulated world with a cluster of ``count`` nodes."""

    def decorate(
        test: Callable[Concatenate[TopicCluster, Parameters], Awaitable[None]],
    ) -> Callable[Parameters, None]:
        @functools.wraps(test)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            async def main(_: SimLoop, trace: Trace) -> None:
                cluster = TopicCluster(count, trace, **sections)
                await cluster.start()
                async with asyncio.timeout(LONGEST_S):
                    await test(cluster, *args, **kwargs)
                await cluster.end()

            in_world(1, main)

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(signature.parameters.values())[1:]
        )
        return run

    return decorate

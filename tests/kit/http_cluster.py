"""A simulated cluster for tests over HTTP: the test chooses the node of each request, and each topic's leader.

::

    @on_cluster(nodes=3)
    async def test_any_node_answers(cluster: HttpCluster) -> None:
        await cluster.lead(0)                              # node 0 leads the topic ``t``
        reply = await cluster(1, "GET", topic_path("t"))   # a request to node 1

Nodes, network, storage, coordinator and time are those of broker/testing/simulation. A wait takes no real time.
Every reply is checked against the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Self
from unittest import mock

from multidict import CIMultiDict
from typing_extensions import override

from broker.client import Client
from broker.coordination import placement
from broker.coordination.placement import HINT
from broker.model import TopicId
from broker.storage.table import Space
from broker.testing import simulated
from broker.testing.simulation.cluster import SimCluster
from broker.testing.simulation.connection_end import End
from broker.testing.simulation.node import PORT, Machine
from tests.kit.openapi import Answered, Checker
from tests.kit.serving import RawHttp, topic_path

Parameters = ParamSpec("Parameters")

TOPIC: Final = TopicId("default", "t")
CLIENTS: Final = "clients"
JSON: Final = {"Content-Type": "application/json"}
STARTED_S: Final = 30.0
MOVED_S: Final = 2.0
"""After this time every node knows a new leader, and the old one has handed the topic over."""
REQUEST: Final = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n(.*)", re.DOTALL)
SENT_S: Final = 0.02
"""After this time a request is at the leader, and its answer at the node that forwarded it."""


class NodeConnection(RawHttp):
    """A connection from the clients' machine to one node."""

    def __init__(self, machine: Machine, cluster: SimCluster) -> None:
        """Connect to the node of ``machine``."""
        super().__init__(PORT)
        self._machine = machine
        self._network = cluster.network

    @override
    async def __aenter__(self) -> Self:
        """Connect."""
        with self._network.calling_from(CLIENTS):
            self._reader, self._writer = await asyncio.open_connection(
                self._machine.address, PORT, limit=1 << 20
            )
        return self

    async def ask(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a request."""
        lines = {"Host": "localhost", **(headers or {})}
        if body:
            lines["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await self.send(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)


class Forwarded(NamedTuple):
    """A request that a node has sent to another node."""

    to: int
    method: str
    path: str
    headers: CIMultiDict[str]
    body: bytes


class HttpCluster:
    """A cluster with nodes numbered from 0, whose instance ids are these numbers.

    Attributes:
        sim: the simulated cluster, for faults.
    """

    def __init__(self, nodes: int, **settings: Any) -> None:
        """Make ``nodes`` machines; ``settings`` are sections of the nodes' configuration."""
        self.sim = SimCluster(nodes=nodes, settings=settings)
        self.machines = self.sim.machines
        self._checker = Checker()
        self._sent: list[tuple[str, str, bytes]] = []
        self._lost: list[End] = []
        sent, send = self._sent, End.send_here

        def noted(end: End, segment: bytes) -> None:
            sent.append((end.peer_address[0], end.own_address[0], segment))
            send(end, segment)

        self._tap = mock.patch.object(End, "send_here", noted)
        self._no_threads = mock.patch.object(asyncio, "to_thread", _at_once)

    async def __aenter__(self) -> Self:
        """Start the nodes one after the other, so that each has its number as instance id."""
        self._tap.start()
        self._no_threads.start()
        for machine in self.machines:
            machine.start()
            assert await machine.served(STARTED_S), self.sim.shared.ended
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all processes."""
        self._tap.stop()
        self._no_threads.stop()
        for machine in self.machines:
            machine.kill()

    # Requests.

    def url(self, node: int) -> str:
        """Return a node's address."""
        return self.machines[node].url

    def connection(self, node: int) -> NodeConnection:
        """Return a connection to a node, not opened yet."""
        return NodeConnection(self.machines[node], self.sim)

    def client(self, node: int, **settings: Any) -> Client:
        """Return the shipped client, which knows one node."""
        return self.sim.client(CLIENTS, **({"url": self.url(node)} | settings))

    async def __call__(
        self,
        node: int,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Send a request to a node on a new connection, and return its checked answer. Raises Undocumented."""
        async with self.connection(node) as http:
            await http.ask(method, target, body, headers)
            answered = await http.reply()
        self._checker.check(method, target, answered)
        return answered

    async def publish(self, node: int, payload: bytes | str, **headers: str) -> Answered:
        """Publish one message to ``t`` at a node; ``Request_Timeout="1"`` sends that header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = payload.encode() if isinstance(payload, str) else payload
        return await self(
            node, "POST", topic_path("t", "publish"), sent, {"Content-Type": "text/plain", **named}
        )

    async def payloads(self, node: int = 0) -> list[str]:
        """Poll ``t`` at a node, and return the payloads."""
        reply = await self(node, "POST", topic_path("t", "poll"), b"{}", JSON)
        assert reply.status == 200, reply
        return [message["payload"] for message in reply.json]

    async def metric(self, node: int, name: str, *labels: str) -> float:
        """Return the sum of a metric at a node, of the lines that have all these labels (``kind="publish"``)."""
        text = (await self(node, "GET", "/metrics")).body.decode()
        lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        chosen = [line for line in lines if all(label in line for label in labels)]
        return sum(float(line.rpartition(" ")[2]) for line in chosen)

    def forwarded(self, by: int, action: str = "publish") -> list[Forwarded]:
        """Return the requests that a node has sent to other nodes, in order, whose paths have ``action``."""
        numbers = {machine.address: machine.number for machine in self.machines}
        found = []
        for source, target, segment in self._sent:
            asked = REQUEST.match(segment)
            if numbers.get(source) == by and target in numbers and asked is not None:
                method, path, lines, body = asked.groups()
                named = [line.partition(": ")[::2] for line in lines.decode().splitlines()]
                if action in path.decode():
                    told = method.decode(), path.decode(), CIMultiDict(named), body
                    found.append(Forwarded(numbers[target], *told))
        return found

    # Leaders.

    async def lead(self, node: int, topic: TopicId = TOPIC) -> None:
        """Pin a topic to a node; the former leader hands it over. Return when every node knows the new leader."""
        via = self.sim.up[0].number
        path = f"/v1/cluster/pins/{topic.namespace}/{topic.topic}"
        reply = await self(via, "PUT", path, json.dumps({"node": str(node)}).encode(), JSON)
        assert reply.status == 200, reply
        await asyncio.sleep(MOVED_S)

    async def lead_all(self, node: int) -> None:
        """Let one node lead all topics without a pin, also those of the broker itself: drain all other nodes."""
        for machine in self.machines:
            change = placement.undrain if machine.number == node else placement.drain
            await change(self.sim.records, machine.number)
        session = self.sim.coordination.session()
        await session.hint(HINT)
        await session.close()
        await asyncio.sleep(MOVED_S)

    def kill_without_successor(self, node: int) -> None:
        """Kill a leader while the coordinator is out: no node takes over until ``coordinator_recovers``."""
        self.sim.coordination.outage()
        self.machines[node].kill()

    def coordinator_recovers(self) -> None:
        """End the outage of ``kill_without_successor``."""
        self.sim.coordination.recover()

    def cut_off_from_coordinator(self, node: int) -> None:
        """Cut a node off from the coordinator: it goes on with its last knowledge, also that it leads no topic."""
        assert self.machines[node].cut_session(None) is not None

    # Faults.

    def strand(self, source: int, target: int) -> list[End]:
        """Delay all data from one node to another on the present connections."""
        return self.sim.network.strand(self.machines[source].name, self.machines[target].name)

    async def request_lost(
        self, request: Awaitable[Answered], *, by: int, to: int, dies: bool = False
    ) -> Answered:
        """Send a request, lose it between node ``by`` and the leader ``to``, and return the answer.

        The connection breaks, or the leader dies (``dies``). ``land`` lets the lost bytes arrive after all.
        """
        self._lost = self.strand(by, to)
        return await self._broken(request, by, to, dies)

    async def answer_lost(
        self, request: Awaitable[Answered], *, by: int, to: int, dies: bool = False
    ) -> Answered:
        """Do the same, but storage makes the change: only the leader's answer to node ``by`` is lost."""
        self.sim.table.slow_s = dict.fromkeys(Space, 4 * SENT_S)
        try:
            return await self._broken(request, by, to, dies)
        finally:
            self.sim.table.slow_s = dict.fromkeys(Space, 0.0)

    async def _broken(self, request: Awaitable[Answered], by: int, to: int, dies: bool) -> Answered:
        asking = asyncio.ensure_future(request)
        await asyncio.sleep(SENT_S)
        assert not asking.done(), "the answer came too early"
        if dies:
            self.machines[to].kill()
        else:
            ends = self._lost or self.strand(by, to)
            assert ends, "the nodes have no connection"
            self.sim.network.break_off(ends)
        return await asking

    def land(self) -> None:
        """Let the lost request arrive."""
        self.sim.network.land(self._lost)
        self._lost = []


async def _at_once(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Do the work of a thread: virtual time has no threads."""
    return work(*args, **kwargs)


def on_cluster(
    nodes: int = 3, *, topic: bool = True, **settings: Any
) -> Callable[
    [Callable[Concatenate[HttpCluster, Parameters], Coroutine[Any, Any, None]]],
    Callable[Parameters, None],
]:
    """Run a test in virtual time, with a new cluster as its first argument.

    With ``topic`` the topic ``t`` exists, and node 0 leads it. ``settings`` are sections of the nodes' configuration.
    """

    def decorate(
        test: Callable[Concatenate[HttpCluster, Parameters], Coroutine[Any, Any, None]],
    ) -> Callable[Parameters, None]:
        @simulated()
        async def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            async with HttpCluster(nodes, **settings) as cluster:
                if topic:
                    assert (await cluster(0, "PUT", topic_path(TOPIC.topic))).status == 200
                    await cluster.lead(0)
                await test(cluster, *args, **kwargs)

        told = functools.wraps(test)(run)
        signature = inspect.signature(test)
        others = list(signature.parameters.values())[1:]
        told.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return told

    return decorate

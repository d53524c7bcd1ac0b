"""The measured cluster: ZooKeeper, HBase with one gateway, and three nodes, each in its own process.

No process is pinned to a core: a commit goes through four processes, and there may be fewer cores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks import occupancy, prepared
from benchmarks.load import Load, LoadFailed, Wire, ask, connect, http_request
from broker.coordination.assignment import Assignment
from broker.local import LocalCluster, Member, Sizes
from broker.local.cluster import init_storage
from broker.local.servers.process import tied_to_us
from broker.model import TopicId
from broker.testing.local_state import state_of

WAIT_S = 30.0
AGAIN_S = 0.002
TABLE = "default:broker_messages"
_CALLS, _FORWARDED = "broker_storage_calls_total", "broker_forwarded_total"
SIZES = Sizes(nodes=3, spares=3)
ALONE = {
    number: {
        "cluster.zookeeper_root": f"/alone-{number}",
        "hbase.hbase_table_prefix": f"alone_{number}_",
    }
    for number in range(SIZES.nodes + 1, SIZES.nodes + SIZES.spares + 1)
}
"""The settings of the spare nodes. With them each spare node is a cluster by itself, on the same servers."""


class Node(NamedTuple):
    """One node, with its instance id in the cluster."""

    instance: int
    port: int
    process: Member


class Counted(NamedTuple):
    """The numbers of storage calls, and of requests that nodes forwarded."""

    calls: float
    forwarded: float


class Ground:
    """The cluster, with requests to it and changes of it."""

    def __init__(self, cluster: LocalCluster) -> None:
        """Use a cluster that has started."""
        self.cluster = cluster
        self.nodes: list[Node] = []
        """The nodes, in the order of their instance ids."""
        self._made: set[str] = set()

    @property
    def members(self) -> Sequence[Member]:
        """The nodes of this ground."""
        return self.cluster.nodes

    async def look(self) -> None:
        """Find the instance id of each node."""
        member = self.members[0]
        answer = await self.get(_port(member), "/v1/cluster")
        numbers = {node["url"]: node["node"] for node in answer["nodes"]}
        self.nodes = sorted(
            Node(numbers[str(member.url)], _port(member), member) for member in self.members
        )

    async def get(self, port: int, path: str) -> Any:
        """Return the JSON of a node's answer."""
        return json.loads(await ask(port, http_request("GET", path)))

    async def leader(self, topic: str, port: int) -> int | None:
        """Return the leader of a topic, as the node at ``port`` sees it."""
        path = f"/v1/namespaces/{prepared.NAMESPACE}/topics/{topic}/leader"
        node: int | None = (await self.get(port, path))["node"]
        return node

    async def until_led(self, topics: Sequence[str], instance: int | None, port: int) -> None:
        """Wait until ``instance`` leads the topics; None: until the assigned node of each leads it."""
        assigned = Assignment([node.instance for node in self.nodes])
        for topic in topics:
            wanted = assigned.leader_of(_id(topic)) if instance is None else instance

            async def is_led(topic: str = topic, wanted: int | None = wanted) -> bool:
                return await self.leader(topic, port) == wanted

            await until(is_led, f"node {wanted} leads {topic}", lambda: state_of(self.cluster))

    def names(self, prefix: str, count: int, instance: int) -> list[str]:
        """Return names of topics that ``instance`` leads while all nodes live."""
        return names_led_by(prefix, count, instance, [node.instance for node in self.nodes])

    async def topics(self, prefix: str, count: int, instance: int) -> list[str]:
        """Create topics that ``instance`` leads. A repeated call returns the same topics."""
        names = self.names(prefix, count, instance)
        port = next(node.port for node in self.nodes if node.instance == instance)
        for name in names:
            if name not in self._made:
                await prepared.create_topic(port, name)
                self._made.add(name)
        return names

    async def pin(self, topic: str, instance: int, port: int) -> None:
        """Pin a topic to a node."""
        body = json.dumps({"node": instance}).encode()
        path = f"/v1/cluster/pins/{prepared.NAMESPACE}/{topic}"
        await ask(port, http_request("PUT", path, body, "application/json"))

    async def drain(self, instance: int, *, back: bool = False) -> None:
        """Drain a node, or undrain it with ``back``."""
        port = self.nodes[0].port
        action = "undrain" if back else "drain"
        await ask(port, http_request("POST", f"/v1/cluster/nodes/{instance}/{action}"))

    def start_alone(self) -> list[Node]:
        """Start the spare nodes, each a cluster by itself (see ``ALONE``). Blocks for seconds."""
        spares = self.cluster.spares
        for node in spares:
            init_storage(node.folder / f"{node.name}.toml")
            node.launch()
        for node in spares:
            node.await_ready()
        return [Node(0, _port(node), node) for node in spares]

    def end_alone(self) -> None:
        """End the spare nodes. Blocks."""
        for node in self.cluster.spares:
            node.stop()

    @staticmethod
    def cpu_s(nodes: Sequence[Node]) -> float:
        """Return the processor time of nodes so far."""
        return sum(occupancy.process_s(node.process.pid) for node in nodes)

    @staticmethod
    async def counted(nodes: Sequence[Node]) -> Counted:
        """Return the nodes' counters so far."""
        texts = [(await ask(node.port, http_request("GET", "/metrics"))).decode() for node in nodes]
        return Counted(
            *(sum(summed(text, name) for text in texts) for name in (_CALLS, _FORWARDED))
        )

    def pids(self) -> list[int]:
        """Return the running processes of the cluster."""
        return [member.pid for member in self.cluster.members if member.running]

    async def bare(self, senders: int, messages: int, seconds: float) -> Load:
        """Run bare commits in a separate process."""
        gateway = self.cluster.gateways[0].place.address
        return await _made_by("bare_commits", gateway, TABLE, senders, messages, seconds)


async def publishes(port: int, topics: Sequence[str], messages: int, seconds: float) -> Load:
    """Publish to a node in a separate process, like that of the bare commits."""
    return await _made_by("publishes", port, messages, seconds, *topics)


async def _made_by(module: str, *given: object) -> Load:
    command = [sys.executable, "-m", f"benchmarks.cluster.{module}", *map(str, given)]
    process = await asyncio.create_subprocess_exec(
        *tied_to_us(command),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{module} ended with {process.returncode}")
    result = json.loads(output)
    return Load(result["messages"], result["seconds"], array("q", result["latencies_ns"]))


class Publisher:
    """Publishes to one topic, one request at a time, and goes on when a request fails.

    Attributes:
        acks: The time of each acknowledgement so far, in ``perf_counter`` seconds.
        failed: The number of requests that got an error, or no answer.
    """

    def __init__(self, port: int, topic: str) -> None:
        """Publish through the node at ``port``."""
        self.acks: list[float] = []
        self.failed = 0
        self._port = port
        self._requests = prepared.publishes(topic, messages=1, requests=16)
        self._ended = False
        self._wire: Wire | None = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._ended:
            number += 1
            try:
                if self._wire is None:
                    self._wire = await connect(self._port)
                await self._wire.exchange(self._requests[number % len(self._requests)])
                self.acks.append(time.perf_counter())
            except (LoadFailed, OSError):
                self.failed += 1
                if self._wire is not None:
                    self._wire.close()
                self._wire = None
                await asyncio.sleep(AGAIN_S)

    async def more(self, count: int, state: Callable[[], str]) -> None:
        """Wait for ``count`` more acknowledgements."""
        wanted = len(self.acks) + count

        async def came() -> bool:
            return len(self.acks) >= wanted

        await until(came, f"{count} more acknowledgements ({self.failed} failed)", state)

    async def end(self) -> None:
        """Stop after the request in flight."""
        self._ended = True
        await self._task
        if self._wire is not None:
            self._wire.close()


async def until(ask_it: Callable[[], Any], goal: str, state: Callable[[], str]) -> None:
    """Call ``ask_it`` until it returns true. Raises TimeoutError with the text of ``state``."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if await ask_it():
                return
        except (LoadFailed, OSError):
            pass  # The node has just been killed, or knows no leader yet.
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {WAIT_S:.0f} s: {goal}; {state()}")
        await asyncio.sleep(AGAIN_S)


def longest_gap_s(acks: Sequence[float], began: float, ended: float) -> float:
    """Return the longest time between two acknowledgements in ``[began, ended]``.

    This includes the gap in which ``began`` lies, and the one in which ``ended`` lies.
    """
    gaps = (
        after - before
        for before, after in itertools.pairwise(acks)
        if after > began and before < ended
    )
    return max(gaps, default=0.0)


def names_led_by(prefix: str, count: int, instance: int, instances: Collection[int]) -> list[str]:
    """Return names of topics that are assigned to one of several nodes."""
    assigned = Assignment(instances)
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"{prefix}-{number}"
        if assigned.leader_of(_id(name)) == instance:
            names.append(name)
        number += 1
    return names


def summed(metrics: str, name: str) -> float:
    """Return the sum of a counter over its labels, from the text of ``/metrics``."""
    found = (line for line in metrics.splitlines() if line.partition("{")[0] == name)
    return sum(float(line.rpartition(" ")[2]) for line in found)


def _id(topic: str) -> TopicId:
    return TopicId(prepared.NAMESPACE, topic)


def _port(member: Member) -> int:
    port = urlsplit(str(member.url)).port
    assert port is not None, "a node's URL names its port"
    return port

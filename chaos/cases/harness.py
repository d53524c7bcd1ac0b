"""The scene of a case: its topics and processes, waits with a deadline, and evidence.

A **scene** is one playing of one case. It has a history, a folder, and for some cases a cluster without any
topic. The verdict depends on its history and on the calls of ``violation``. The case calls ``fault`` with the
evidence that its fault happened: from answers to clients, logs and files.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from broker.client import BrokerError, Published
from chaos.checkers import Violation
from chaos.history import History
from chaos.proxied_cluster import ChaosCluster
from chaos.workloads import REAL
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.finals import read_everywhere
from chaos.workloads.real import RealSurroundings

Result = TypeVar("Result")

WAIT_S: Final = 60.0
EVERY_S: Final = 0.05
AGAIN_S: Final = 0.1
SCALE: Final = replace(REAL, padded=False, deadline_s=30.0, final_s=30.0, again_s=0.2)
_FENCED: Final = "Another node leads topic"


class LeaderSighting(NamedTuple):
    """The leader of a topic: the name of the node, and the epoch."""

    node: str
    epoch: int


class Scene:
    """One playing of one case.

    Attributes:
        folder: A folder for the files of the case; empty at first.
        mutant: The mutant in force in the processes that the case starts; "" for none.
        history: The history of the case.
    """

    def __init__(self, folder: Path, mutant: str, cluster: ChaosCluster | None) -> None:
        """Begin with an empty history."""
        self.folder = folder
        self.mutant = mutant
        self.history = History(time.monotonic_ns)
        self.violations: list[Violation] = []
        self.faults: dict[str, bool] = {}
        self.evidence: dict[str, Any] = {}
        self._cluster = cluster
        self._topics = self._asked = 0
        urls = ["http://127.0.0.1:1"] if cluster is None else cluster.urls
        self.around = RealSurroundings(urls, seed=1, scale=SCALE, history=self.history)

    @property
    def cluster(self) -> ChaosCluster:
        """Return the cluster of a case that is played on one."""
        assert self._cluster is not None, "this case is played without a cluster"
        return self._cluster

    def serve_from(self, *urls: str) -> None:
        """Let new processes use these nodes, in place of the cluster's."""
        self.around = RealSurroundings(urls, seed=1, scale=SCALE, history=self.history)

    # Evidence.

    def fault(self, kind: str, *, happened: bool, **evidence: Any) -> None:
        """Record the fault of the case, whether it happened, and its evidence."""
        self.faults[kind] = happened
        self.evidence |= evidence
        ending = self.history.invoke("nemesis case", "fault", "", {"kind": kind})
        ending.ok({"happened": happened, **evidence})

    def violation(self, name: str, detail: str) -> None:
        """Add a violation that the checkers can't find."""
        self.violations.append(Violation(name, detail))

    # Calls.

    def process(self, name: str, node: str | None = None, **settings: Any) -> ClientProcess:
        """Return a process that uses one node, or all of them."""
        url = None if node is None else self.cluster.url(node)
        return ClientProcess(self.around, name, node=url, **settings)

    async def topic(self, *, ttl_s: int | None = None) -> TopicTarget:
        """Create a topic."""
        self._topics += 1
        async with self.process(f"creator-{self._topics}") as process:
            return await process.create(TopicTarget(f"case-{self._topics}"), ttl_s=ttl_s)

    async def publish(
        self, process: ClientProcess, topic: TopicTarget, count: int = 1
    ) -> list[Published]:
        """Publish one message after another; each must be acknowledged. Raises BrokerError."""
        return [await process.publish(topic, process.labels(1)) for _ in range(count)]

    async def attempt(
        self, process: ClientProcess, topic: TopicTarget, *, count: int = 1
    ) -> Published | None:
        """Publish messages as one request; return None if it is refused or of unknown outcome."""
        try:
            return await process.publish(topic, process.labels(count))
        except BrokerError:
            return None

    async def publish_at(
        self, topic: TopicTarget, node: str, name: str, **settings: Any
    ) -> Published | None:
        """Publish a message through one node, as a process of this name; return None if it fails."""
        async with self.process(name, node, **settings) as process:
            return await self.attempt(process, topic)

    def publishing_at(
        self, topic: TopicTarget, node: str, name: str, count: int
    ) -> list[asyncio.Task[Published | None]]:
        """Start ``publish_at`` of several messages, each as a process of its own."""
        return [
            asyncio.create_task(self.publish_at(topic, node, f"{name}-{one}"))
            for one in range(count)
        ]

    async def until(
        self,
        ask: Callable[[], Awaitable[Result | None]],
        problem: str,
        every_s: float = EVERY_S,
        wait_s: float = WAIT_S,
    ) -> Result:
        """Call ``ask`` until it returns an answer. Raises TimeoutError with the problem."""
        deadline = time.monotonic() + wait_s
        while True:
            answer = await ask()
            if answer is not None:
                return answer
            if time.monotonic() > deadline:
                state = "" if self._cluster is None else self._cluster.state()
                raise TimeoutError(f"{problem} in {wait_s:g} s; {state}")
            await asyncio.sleep(every_s)

    # Leaders of a cluster.

    async def led(self, topic: TopicTarget) -> LeaderSighting:
        """Publish once, and return the leader that acknowledged."""
        self._asked += 1
        async with self.process(f"asks-who-leads-{self._asked}") as process:
            published = await self.publish(process, topic)
        return self.by(published[0])

    def by(self, published: Published) -> LeaderSighting:
        """Return the leader that acknowledged a publish."""
        leader = published.leader
        assert leader is not None, "an acknowledgement of a cluster names its leader"
        assert leader.epoch is not None, "an acknowledgement has an epoch"
        return LeaderSighting(self.cluster.node_at(leader.url) or leader.url, leader.epoch)

    def another(self, *than: str) -> str:
        """Return a node that is none of these."""
        return next(node for node in self.cluster.nodes if node not in than)

    async def until_acknowledged(
        self,
        topic: TopicTarget,
        name: str,
        node: str | None = None,
        wanted: Callable[[LeaderSighting], bool] = lambda _: True,
    ) -> LeaderSighting:
        """Publish, as a process of this name, until a wanted leader acknowledges; return that leader."""

        async def once() -> LeaderSighting | None:
            published = await self.attempt(process, topic)
            leader = None if published is None else self.by(published)
            return leader if leader is not None and wanted(leader) else None

        async with self.process(name, node) as process:
            return await self.until(once, f"no expected acknowledgement of {topic.name}", AGAIN_S)

    async def succeeded(
        self, topic: TopicTarget, old: LeaderSighting, name: str = "successor"
    ) -> LeaderSighting:
        """Publish through another node until a later epoch acknowledges; return the new leader."""
        return await self.until_acknowledged(
            topic, name, self.another(old.node), lambda leader: leader.epoch > old.epoch
        )

    def session_of(self, node: str) -> str | None:
        """Return a node's session if the node reports contact with ZooKeeper, else None. Blocks."""
        view = self.cluster.own_view(node)
        if view is None or view["zookeeper"]["contact"] != "connected":
            return None
        session: str = view["zookeeper"]["session"]
        return session

    async def sessions(self) -> dict[str, str | None]:
        """Return ``session_of`` of each node."""
        nodes = self.cluster.nodes
        told = [await asyncio.to_thread(self.session_of, node) for node in nodes]
        return dict(zip(nodes, told, strict=True))

    def log_of(self, node: str, after: int = 0) -> str:
        """Return a node's log from a place on."""
        return self.cluster.member(node).log()[after:]

    def tried_in(self, epoch: int, log: str) -> bool:
        """Return True if storage refused an append of a leader because a later epoch has begun."""
        told = [json.loads(line) for line in log.splitlines() if '"topic let go"' in line]
        return any(one["epoch"] <= epoch and _FENCED in one["why"] for one in told)

    def acknowledged_late(self, node: str, epoch: int) -> int:
        """Count a node's acknowledgements in an epoch after a later epoch had acknowledged."""
        url, late, newest = self.cluster.url(node), 0, 0
        for event in self.history.events:
            if event.type == "ok" and event.op == "publish" and event.epoch is not None:
                late += event.node == url and event.epoch <= epoch < newest
                newest = max(newest, event.epoch)
        return late

    async def finish(self, *topics: TopicTarget) -> None:
        """Heal everything, and read the topics to their end through every node."""
        if self._cluster is not None:
            await self._cluster.mend()
        await read_everywhere(self.around, topics)

"""What cases share: topics, publishers and readers of one scene, waits with a deadline, and evidence.

A **scene** is one playing of one case: a history, a folder, and, where the case wants one, a cluster without
any topic. Everything that the verdict goes by is in its history, or is told by ``violation``; that the
fault happened is told by ``fault``, from what clients, logs and files show.
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
from chaos.workloads.real import RealStage

Result = TypeVar("Result")

WAIT_S: Final = 60.0
EVERY_S: Final = 0.05
AGAIN_S: Final = 0.1
SCALE: Final = replace(REAL, padded=False, deadline_s=30.0, final_s=30.0, again_s=0.2)
_FENCED: Final = "Another leads topic"


class LeaderSighting(NamedTuple):
    """Who leads a topic: the name of the node, and the epoch."""

    node: str
    epoch: int


class Scene:
    """One playing of one case.

    Attributes:
        folder: For whatever the case writes; empty at first.
        mutant: Which clause processes lack that the case starts; "" none.
        history: What clients asked and were told.
    """

    def __init__(self, folder: Path, mutant: str, cluster: ChaosCluster | None) -> None:
        """Begin where nothing has happened."""
        self.folder = folder
        self.mutant = mutant
        self.history = History(time.monotonic_ns)
        self.violations: list[Violation] = []
        self.faults: dict[str, bool] = {}
        self.evidence: dict[str, Any] = {}
        self._cluster = cluster
        self._topics = self._asked = 0
        urls = ["http://127.0.0.1:1"] if cluster is None else cluster.urls
        self.stage = RealStage(urls, seed=1, scale=SCALE, history=self.history)

    @property
    def cluster(self) -> ChaosCluster:
        """The cluster, of a case that is played on one."""
        assert self._cluster is not None, "this case is played without a cluster"
        return self._cluster

    def serve_from(self, *urls: str) -> None:
        """Let processes ask these nodes from now on, in place of the cluster's."""
        self.stage = RealStage(urls, seed=1, scale=SCALE, history=self.history)

    # Told.

    def fault(self, what: str, *, happened: bool, **evidence: Any) -> None:
        """Tell what was to go wrong, whether it did, and what proves it."""
        self.faults[what] = happened
        self.evidence |= evidence
        ending = self.history.invoke("nemesis case", "fault", "", {"kind": what})
        ending.ok({"happened": happened, **evidence})

    def violation(self, name: str, detail: str) -> None:
        """Tell of something wrong that the checkers don't see."""
        self.violations.append(Violation(name, detail))

    # Asked.

    def process(self, name: str, node: str | None = None, **settings: Any) -> ClientProcess:
        """Return a process that asks one node, or all of them."""
        url = None if node is None else self.cluster.url(node)
        return ClientProcess(self.stage, name, node=url, **settings)

    async def topic(self, *, ttl_s: int | None = None) -> TopicTarget:
        """Create a topic."""
        self._topics += 1
        async with self.process(f"creator-{self._topics}") as process:
            return await process.create(TopicTarget(f"case-{self._topics}"), ttl_s=ttl_s)

    async def publish(
        self, process: ClientProcess, topic: TopicTarget, count: int = 1
    ) -> list[Published]:
        """Publish one message after the other, all of which must be acknowledged. Raises BrokerError."""
        return [await process.publish(topic, process.labels(1)) for _ in range(count)]

    async def attempt(
        self, process: ClientProcess, topic: TopicTarget, *, count: int = 1
    ) -> Published | None:
        """Publish a request of messages; None if it is refused, or its outcome unknown."""
        try:
            return await process.publish(topic, process.labels(count))
        except BrokerError:
            return None

    async def until_acknowledged(
        self, process: ClientProcess, topic: TopicTarget, wanted: Callable[[Published], bool]
    ) -> Published:
        """Publish until an acknowledgement is as wanted."""

        async def once() -> Published | None:
            published = await self.attempt(process, topic)
            return published if published is not None and wanted(published) else None

        return await self.until(once, f"no acknowledgement as wanted of {topic.name}", AGAIN_S)

    async def until(
        self,
        ask: Callable[[], Awaitable[Result | None]],
        what: str,
        every_s: float = EVERY_S,
        wait_s: float = WAIT_S,
    ) -> Result:
        """Ask until there is an answer. Raises TimeoutError that says what was waited for."""
        deadline = time.monotonic() + wait_s
        while True:
            answer = await ask()
            if answer is not None:
                return answer
            if time.monotonic() > deadline:
                state = "" if self._cluster is None else self._cluster.state()
                raise TimeoutError(f"{what} in {wait_s:g} s; {state}")
            await asyncio.sleep(every_s)

    # Of a cluster.

    async def led(self, topic: TopicTarget) -> LeaderSighting:
        """Publish once, and return who leads."""
        self._asked += 1
        async with self.process(f"asks-who-leads-{self._asked}") as process:
            published = await self.publish(process, topic)
        return self.by(published[0])

    def by(self, published: Published) -> LeaderSighting:
        """Return who acknowledged."""
        leader = published.leader
        assert leader is not None, "a node of a cluster says who it is"
        assert leader.epoch is not None, "an acknowledgement has an epoch"
        return LeaderSighting(self.cluster.node_at(leader.url) or leader.url, leader.epoch)

    def another(self, *than: str) -> str:
        """Return a node that is none of these."""
        return next(node for node in self.cluster.nodes if node not in than)

    async def succeeded(
        self, topic: TopicTarget, old: LeaderSighting, name: str = "successor"
    ) -> LeaderSighting:
        """Publish through another node until one acknowledges in a later epoch; return who does."""
        async with self.process(name, self.another(old.node)) as process:
            published = await self.until_acknowledged(
                process, topic, lambda done: self.by(done).epoch > old.epoch
            )
        return self.by(published)

    def log_of(self, node: str, after: int = 0) -> str:
        """Return what a node has logged from a place on."""
        return self.cluster.member(node).log()[after:]

    def tried_in(self, epoch: int, log: str) -> bool:
        """Whether a leader was told by storage, on trying to append, that a later epoch has begun."""
        told = [json.loads(line) for line in log.splitlines() if '"topic let go"' in line]
        return any(one["epoch"] <= epoch and _FENCED in one["why"] for one in told)

    def acknowledged_late(self, node: str, epoch: int) -> int:
        """Return how often a node acknowledged in an epoch after a later one had acknowledged."""
        url, late, newest = self.cluster.url(node), 0, 0
        for event in self.history.events:
            if event.type == "ok" and event.op == "publish" and event.epoch is not None:
                late += event.node == url and event.epoch <= epoch < newest
                newest = max(newest, event.epoch)
        return late

    async def finish(self, *topics: TopicTarget) -> None:
        """Heal everything, and read the topics to their ends through every node."""
        if self._cluster is not None:
            await self._cluster.mend()
        await read_everywhere(self.stage, topics)

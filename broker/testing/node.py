"""A node in this process that can die and come back: real handlers, over storage that stays.

Handlers, topics and log store are the shipped ones; requests are values (``call``), so that a whole run
needs no socket and no second of real time. What a node was doing when it was killed stops where it was;
what it had sent may still arrive.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from multidict import CIMultiDict
from typing_extensions import override

from broker.api.dispatch import Dispatch
from broker.api.health import Health
from broker.api.openapi import document
from broker.api.replies import Reply
from broker.api.router import Router
from broker.api.routes import make_routes
from broker.config import Config
from broker.errors import BrokerError
from broker.storage.memory_cells import MemoryRecordStore
from broker.testing.adversary import AdversaryCells
from broker.testing.clock import VirtualClock
from broker.testing.world import Node
from broker.topics.retention import Sweeper, SweepReport
from broker.topics.service import Topics
from broker.topics.settings import TopicSettings

OUTCOME = "Broker-Outcome"


class Answered(NamedTuple):
    """A whole answer. ``is_cut``: its stream failed after the status had been sent."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    is_cut: bool = False

    @property
    def outcome(self) -> str:
        """What became of the request: ok, fail or unknown."""
        if self.status == 200:
            return "unknown" if self.is_cut else "ok"
        return "fail" if self.headers.get(OUTCOME) == "refused" else "unknown"


class WholeNode(Node):
    """One node with its interface. ``records`` and the cells outlive its incarnations."""

    def __init__(  # noqa: PLR0913 - All parts of a world, by name.
        self,
        name: str,
        cells: AdversaryCells,
        clock: VirtualClock,
        chance: random.Random,
        *,
        records: MemoryRecordStore,
        settings: TopicSettings,
        config: Config | None = None,
    ) -> None:
        """Start the first incarnation."""
        self._records = records
        self._settings = settings
        self._config = config or Config()
        self.starts = 0
        super().__init__(name, cells, clock, chance, instance=None)

    @override
    def _start(self) -> None:
        super()._start()
        self.starts += 1
        around = self._around
        around.settings = self._settings
        around.cache.bytes_max = self._settings.cache_bytes_max
        self.topics = Topics(around, self._records, seed=self._chance.randrange(1 << 30))
        health = Health(
            version="simulated",
            not_ready=lambda: None,
            metrics=around.metrics.render,
            openapi=document,
        )
        router = Router(make_routes(self.topics, self._config, health))
        self.dispatch = Dispatch(router, around.metrics)

    async def call(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answered:
        """Answer a request in this node's name. Raises NodeDied if it is killed meanwhile."""
        return await self.run(answered(self.dispatch, method, target, body, headers or {}))

    async def sweep(self) -> SweepReport:
        """Sweep every topic now. Raises NodeDied, BrokerError."""
        return await self.run(Sweeper(self.topics.leaders).sweep())


async def answered(
    dispatch: Dispatch, method: str, target: str, body: bytes, headers: dict[str, str]
) -> Answered:
    """Return the whole answer to a request, as far as it came."""
    answer = await dispatch.call(method, target, CIMultiDict(headers), body)
    told = CIMultiDict(answer.headers)
    if isinstance(answer, Reply):
        return Answered(answer.status, told, answer.body)
    chunks: list[bytes] = []
    try:
        async for chunk in answer.chunks:
            chunks.append(chunk)  # noqa: PERF401 - What came before an error counts.
    except BrokerError:
        return Answered(answer.status, told, b"".join(chunks), is_cut=True)
    return Answered(answer.status, told, b"".join(chunks))

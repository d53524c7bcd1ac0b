"""Whole nodes that die in the middle of whatever they do, over a storage at its worst.

What ``many_explored`` lets clients and a nemesis loose on: each node has its handlers, topics, leaders,
tenure and sweeper, a session of its own, and ends at any await. The storage is one for all.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from typing_extensions import override

from broker.api.dispatch import Dispatch
from broker.api.health import Health
from broker.api.openapi import document
from broker.api.router import Router
from broker.api.routes import make_routes
from broker.config import Config
from broker.errors import BrokerError
from broker.storage.control import HOLD_NONCE_BYTES
from broker.storage.tables import TableLogStore
from broker.testing.adversary import AdversaryCells
from broker.testing.bench import HookedStore
from broker.testing.many import Cluster, Member
from broker.testing.node import Answered, answered
from broker.testing.world import CALL_S, Mortal, NodeDied

LOOK_MS = 20.0
SETTINGS: dict[str, Any] = {
    "page_rows_max": 7,
    "cache_bytes_max": 6000,
    "batch_rows_max": 6,
    "payload_logs_open_max": 2,
    "clock_skew_ms_max": 1 << 40,
}


class MortalMember(Member, Mortal):
    """A whole node that can be killed at any await."""

    def __init__(self, cluster: Cluster, instance: int, incarnation: str) -> None:
        """Keep what it is made of."""
        Mortal.__init__(self, incarnation)
        Member.__init__(self, cluster, instance, incarnation)
        chance = random.Random(incarnation)
        store = TableLogStore(
            cluster.cells,
            self.clock,
            call_s=CALL_S,
            nonce=lambda: chance.randbytes(HOLD_NONCE_BYTES),
            chance=chance,
        )
        self.store = HookedStore(store)

    @override
    async def start(self) -> None:
        """Join, lead what is assigned, and answer requests."""
        await super().start()
        health = Health(
            version="simulated",
            not_ready=lambda: None,
            metrics=self.around.metrics.render,
            openapi=document,
        )
        router = Router(make_routes(self.topics, Config(), health))
        self.dispatch = Dispatch(router, self.around.metrics)

    async def answer(
        self, method: str, target: str, body: bytes, headers: dict[str, str]
    ) -> Answered:
        """Answer a request."""
        return await answered(self.dispatch, method, target, body, headers)

    async def kill(self) -> None:
        """Be gone, in the middle of whatever is under way. The session lives on for a while."""
        self.is_over = True
        self.tenure.abandon()
        self.die()
        await self.cluster.coordination.crash(self.coordinator)


class HostileCluster(Cluster):
    """Nodes that can be killed, over storage at its worst."""

    def __init__(self, cells: AdversaryCells) -> None:
        """Begin with no node."""
        super().__init__(**SETTINGS)
        self.cells = cells  # type: ignore[assignment]  # It keeps the port.
        self.lives = 0

    async def begin(self, instance: int) -> None:
        """Start a node that is not there; it tries until it can join."""
        while True:
            self.lives += 1
            member = MortalMember(self, instance, f"life-{self.lives}")
            try:
                await member.run(member.start())
            except (BrokerError, NodeDied):
                await member.coordinator.close()
                await asyncio.sleep(0.05)
                continue
            self.members[instance] = member
            return

    @property
    def living(self) -> list[MortalMember]:
        """The nodes that can be asked."""
        return [
            member
            for member in self.members.values()
            if isinstance(member, MortalMember) and not member.is_over
        ]

    async def some_living(self) -> list[MortalMember]:
        """Return the nodes that can be asked, once there is one."""
        while not (living := self.living):  # noqa: ASYNC110 - Time is virtual.
            await asyncio.sleep(LOOK_MS / 1000)
        return living

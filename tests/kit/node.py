"""A node in this process that can die and come back: real handlers, over storage that stays.

Handlers, topics and logs are the shipped ones; requests are values (``call``), so that a whole run
needs no socket and no second of real time. What a node was doing when it was killed stops where it was;
what it had sent may still arrive.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from multidict import CIMultiDict

from broker.api.dispatch import Dispatch
from broker.api.health import Health
from broker.api.openapi import document
from broker.api.router import Router
from broker.api.routes import make_routes
from broker.config.sections import Config
from broker.errors import BrokerError
from broker.http.reply import Reply
from broker.storage.hold import PageBounds
from broker.storage.log import Logs
from broker.storage.memory.adversary import AdversaryTable
from broker.storage.records import NONCE_BYTES, Records
from broker.testing.virtual_time import VirtualClock
from broker.topics.retention import Sweeper, SweepReport
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from broker.transactions.service_settings import TransactionSettings
from tests.kit.mortal import Mortal

OUTCOME = "Broker-Outcome"
CALL_S = 0.25


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


class WholeNode(Mortal):
    """One node with its interface. The table outlives its incarnations; it starts with the first."""

    def __init__(
        self,
        name: str,
        table: AdversaryTable,
        clock: VirtualClock,
        chance: random.Random,
        *,
        settings: TopicSettings,
        bounds: PageBounds,
        transactions: TransactionSettings | None = None,
    ) -> None:
        """Start. ``bounds`` say when a page is full."""
        super().__init__(name)
        self.starts = 0
        self._table = table
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._bounds = bounds
        self._of_transactions = transactions
        self._start()

    def _start(self) -> None:
        self.starts += 1
        chance = self._chance
        logs = Logs(
            self._table,
            self._clock,
            bounds=self._bounds,
            call_s=CALL_S,
            nonce=lambda: chance.randbytes(NONCE_BYTES),
        )
        records = Records(logs.resolver, lambda: chance.randbytes(NONCE_BYTES))
        around = Surroundings(logs, self._clock, self._settings, owner=f"{self.name}.{self.starts}")
        self.topics = Topics(around, records, seed=chance.randrange(1 << 30))
        health = Health(
            version="simulated",
            not_ready=lambda: None,
            metrics=around.metrics.render,
            openapi=document,
        )
        self.transactions = Transactions(self.topics.leaders, self._of_transactions)
        router = Router(make_routes(self.topics, Config(), health, transactions=self.transactions))
        self.dispatch = Dispatch(router, around.metrics)

    def kill(self) -> None:
        """Kill this incarnation and start the next: nothing but storage is kept."""
        self.die()
        self._start()

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
            chunks.append(bytes(chunk))  # noqa: PERF401 - What came before an error counts.
    except BrokerError:
        return Answered(answer.status, told, b"".join(chunks), is_cut=True)
    return Answered(answer.status, told, b"".join(chunks))

"""Clients in a simulated cluster: the shipped client, with each client process on its own machine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Final

from typing_extensions import override

from broker.client import Client
from broker.client.client_request import ClientRequest, Reply
from broker.client.connection import ClientConnection
from broker.client.transport import HttpTransport
from broker.client.values import Settings
from broker.errors import BrokerError
from broker.model import TopicId
from broker.testing.simulation.layers import Layers
from broker.testing.simulation.network import Network

REPEATED_S: Final = 20.0


class Repeater:
    """Sends some requests twice, if they have an idempotency key or a producer's number.

    Attributes:
        repeated: the number of repeated requests.
    """

    def __init__(self, chance: random.Random) -> None:
        """Repeat nothing yet."""
        self.repeated = 0
        self._wanted = Layers[float]()
        self._chance = chance
        self._sending: dict[asyncio.Task[None], None] = {}

    @property
    def probability(self) -> float:
        """The probability that it repeats a request."""
        return self._wanted.top or 0.0

    def repeat(self, probability: float) -> Callable[[], None]:
        """Repeat requests with a probability, until the caller calls the returned function.

        Of several probabilities the last one counts.
        """
        return self._wanted.add(probability)

    def heal(self) -> None:
        """Repeat no more requests."""
        self._wanted.clear()

    def sent(self, request: ClientRequest, transport: PlacedTransport) -> None:
        """Perhaps send a request again, a little later, on a new connection."""
        is_once = "Idempotency-Key" in request.headers or "Producer-Number" in request.headers
        if not is_once or not self.probability:
            return
        if self._chance.random() < self.probability:
            sending = asyncio.ensure_future(self._again(request, transport))
            self._sending[sending] = None
            sending.add_done_callback(self._sending.pop)

    async def _again(self, request: ClientRequest, transport: PlacedTransport) -> None:
        await asyncio.sleep(self._chance.expovariate(20))
        with contextlib.suppress(BrokerError):
            connection = await transport.connect_alone(request.topic)
            self.repeated += 1
            try:
                await connection.send(request, REPEATED_S)
            finally:
                connection.close()


class PlacedTransport(HttpTransport):
    """The shipped transport, with all connections from one machine."""

    def __init__(
        self, settings: Settings, network: Network, machine: str, repeater: Repeater
    ) -> None:
        """Connect from ``machine``."""
        super().__init__(settings)
        self._network = network
        self._machine = machine
        self._repeater = repeater

    async def connect_alone(self, topic: TopicId | None) -> ClientConnection:
        """Open a connection for one request, without repetition. Raises Unavailable."""
        return await super().connect(topic)

    @override
    async def connect(self, topic: TopicId | None) -> ClientConnection:
        connection = await super().connect(topic)
        send = connection.send

        async def send_and_repeat(request: ClientRequest, timeout_s: float) -> Reply:
            self._repeater.sent(request, self)
            return await send(request, timeout_s)

        connection.send = send_and_repeat  # type: ignore[method-assign]
        return connection

    @override
    async def _open(
        self, headers: Mapping[str, str], url: str, timeout_s: float
    ) -> ClientConnection:
        with self._network.calling_from(self._machine):
            return await super()._open(headers, url, timeout_s)


def placed_client(network: Network, machine: str, settings: Settings, repeater: Repeater) -> Client:
    """Return a client whose connections come from ``machine``."""
    transport = PlacedTransport(settings, network, machine, repeater)
    return Client(settings=settings, transport=transport)

"""The event loop of a simulated cluster: hosts, virtual time, and a network instead of sockets.

It has those of asyncio's doors to the network that servers and clients here use, so that both run as they
are: listening, connecting, draining a listener's queue.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from typing_extensions import override

from broker.testing.simulation.hosts import HostLoop
from broker.testing.simulation.network import Network
from broker.testing.simulation.sockets import Address, ListeningSocket

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BaseProtocol)


class SimServer:
    """A listener, as ``create_server`` returns one."""

    def __init__(self, network: Network, listening: ListeningSocket) -> None:
        """Accept for as long as it is not closed."""
        self._network = network
        self._listening = listening

    @property
    def sockets(self) -> Sequence[ListeningSocket]:
        """What it listens on."""
        listening = self._listening
        return (listening,) if listening.is_open and listening.is_named else ()

    def is_serving(self) -> bool:
        """Whether it listens."""
        return self._listening.is_open

    def close(self) -> None:
        """Listen no more."""
        self._network.unlisten(self._listening)

    async def wait_closed(self) -> None:
        """Return: there is nothing to wait for."""


class SimLoop(HostLoop):
    """The loop. ``network`` is what its connections run over."""

    def __init__(self, seed: int | str) -> None:
        """Begin at 0 s, with an empty network."""
        super().__init__()
        self.network = Network(self, seed)

    @override
    async def create_connection(
        self,
        protocol_factory: Callable[[], AnyProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, AnyProtocol]:
        """Connect to an address."""
        assert not ssl, "there is no TLS in here"
        assert host is not None
        assert port is not None
        end = await self.network.connect((host, port))
        protocol = protocol_factory()
        end.attach(protocol)
        return end, protocol

    @override
    def close(self) -> None:
        """End, and give back what is real."""
        self.network.close()
        super().close()

    @override
    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: Any = None,
        backlog: int = 100,
        **_: Any,
    ) -> SimServer:
        """Listen."""
        del backlog
        if sock is None:
            assert host is not None
            assert port is not None
            sock = self.network.listen(host, port)
        assert isinstance(sock, ListeningSocket)
        sock.serve = protocol_factory
        sock.accept_all()
        return SimServer(self.network, sock)

    @override
    def remove_reader(self, fd: Any) -> bool:
        """Accept on as before, though the listener is named no more.

        A node that drains stops accepting, so as to take by itself who waits in its kernel's queue. Here
        nobody ever waits in one.
        """
        return self.network.unname(fd)

    @override
    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_: Any
    ) -> list[tuple[int, int, int, str, Address]]:
        """Return a name as its own address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

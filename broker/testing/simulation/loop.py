"""The event loop of a simulated cluster: hosts, virtual time, and a network instead of sockets.

It implements the methods of asyncio's loop that the servers and clients of this project use for the network. They
listen, connect, and drain a listener's queue. So servers and clients run unchanged.
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
        """Accept connections until it is closed."""
        self._network = network
        self._listening = listening

    @property
    def sockets(self) -> Sequence[ListeningSocket]:
        """The listening socket; none after the server was closed or unnamed."""
        listening = self._listening
        return (listening,) if listening.is_open and listening.is_named else ()

    def is_serving(self) -> bool:
        """Return whether it listens."""
        return self._listening.is_open

    def close(self) -> None:
        """Stop listening."""
        self._network.unlisten(self._listening)

    async def wait_closed(self) -> None:
        """Return at once: there is nothing to wait for."""


class SimLoop(HostLoop):
    """The loop. Its connections use ``network``."""

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
        assert not ssl, "the simulated network has no TLS"
        assert host is not None
        assert port is not None
        end = await self.network.connect((host, port))
        protocol = protocol_factory()
        end.attach(protocol)
        return end, protocol

    @override
    def close(self) -> None:
        """Close the loop, and the real descriptors of its network."""
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
        """Hide the listener from its server, and go on accepting connections.

        A node that drains calls this to stop asyncio's accepting. Then it accepts the connections in its kernel's
        queue by itself. In the simulation no connection waits in such a queue.
        """
        return self.network.unname(fd)

    @override
    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_: Any
    ) -> list[tuple[int, int, int, str, Address]]:
        """Return the name itself as the address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

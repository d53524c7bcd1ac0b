"""Toxiproxy: a TCP proxy that can make connections slow, silent or dead. It is controlled over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.local.servers.cache_folder import ServerMissing, place
from broker.local.servers.process import ASK_TIMEOUT_S, HOST, free_ports
from broker.testing.server_process import ServerProcess

VERSION = "2.12.0"


def binary() -> Path:
    """Return the path of the fetched program.

    Raises:
        ServerMissing: It was not fetched.
    """
    found = place("toxiproxy", VERSION) / "server"
    if not found.is_file():
        message = "toxiproxy is not fetched; in a checkout: make test-servers SERVERS=toxiproxy"
        raise ServerMissing(message)
    return found


class ToxiproxyServer(ServerProcess):
    """The proxy's process; ``url`` is its control interface.

    Args:
        seed: The seed of its random choices: whether a toxic with a toxicity below 1 applies.
        folder: See ``ServerProcess``.
    """

    name: ClassVar[str] = "toxiproxy"

    def __init__(self, *, seed: int = 1, folder: Path | None = None) -> None:
        super().__init__(folder=folder)
        self._seed = seed
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        """The root of its control interface."""
        return f"http://{HOST}:{self.port}"

    @override
    def command(self) -> Sequence[str]:
        return [str(binary()), "-host", HOST, "-port", str(self.port), "-seed", str(self._seed)]

    @override
    def answers(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=ASK_TIMEOUT_S)
        try:
            connection.request("GET", "/version")
            return connection.getresponse().status == 200
        except HTTPException:
            return False
        finally:
            connection.close()

"""Redis as a peer of the benchmarks; it syncs every write before it acknowledges (``appendfsync always``)."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.local.servers.process import ASK_TIMEOUT_S, HOST, free_ports, program
from broker.testing.server_process import ServerProcess


class RedisServer(ServerProcess):
    """A Redis on loopback; the program is Debian's ``redis-server``."""

    name: ClassVar[str] = "redis"

    def __init__(self, *, folder: Path | None = None, cpu: int | None = None) -> None:
        super().__init__(folder=folder, cpu=cpu)
        (self.port,) = free_ports(1)

    @override
    def command(self) -> Sequence[str]:
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        words = [word for key, value in settings.items() for word in (f"--{key}", value)]
        return [program("redis-server", "redis-server"), *words]

    @override
    def answers(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=ASK_TIMEOUT_S) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16) == b"+PONG\r\n"

"""The servers that are measured: ours, the peers, and a bare one; all on core 0, data side by side.

One is under load at a time. The others are frozen meanwhile (SIGSTOP), so that they cost nothing and
stay warm.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from typing_extensions import override

from broker.local.servers import KafkaServer, RedisServer, ServerProcess, TmsServer, free_ports
from broker.local.servers.process import ASK_TIMEOUT_S, HOST

SERVER_CPU = 0
LOAD_CPU = 1

_HEAP = ("-Xms1g", "-Xmx1g")


@runtime_checkable
class HttpServer(Protocol):
    """A server that is spoken to over HTTP."""

    @property
    def port(self) -> int:
        """The port that it listens on."""


class OurServer(ServerProcess):
    """``broker serve`` with its defaults, or with further flags."""

    name: ClassVar[str] = "ours"

    def __init__(self, *flags: str, folder: Path | None = None) -> None:
        super().__init__(folder=folder, cpu=SERVER_CPU)
        (self.port,) = free_ports(1)
        self._flags = flags

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"

    @override
    def command(self) -> Sequence[str]:
        serve = ("serve", "--port", str(self.port), "--data-dir", str(self.folder / "data"))
        return [sys.executable, "-m", "broker.cli", *serve, *self._flags]

    @override
    def answers(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=ASK_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        finally:
            connection.close()


class BareServer(ServerProcess):
    """A bare aiohttp server."""

    name: ClassVar[str] = "bare aiohttp"

    def __init__(self) -> None:
        super().__init__(cpu=SERVER_CPU)
        (self.port,) = free_ports(1)

    @override
    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "benchmarks.bare_server", str(self.port)]

    @override
    def answers(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=ASK_TIMEOUT_S)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == 200
        finally:
            connection.close()


def data_folder() -> Path:
    """Where the servers' folders lie: the same file system for all."""
    return Path(tempfile.gettempdir())


def cdap() -> TmsServer:
    """CDAP's own server; on one core, the serial collector is the one that costs least."""
    return TmsServer(jvm_options=(*_HEAP, "-XX:+UseSerialGC"), cpu=SERVER_CPU)


def kafka() -> KafkaServer:
    """One Kafka broker that syncs each appended batch."""
    return KafkaServer(jvm_options=(*_HEAP, "-XX:+UseG1GC"), cpu=SERVER_CPU)


def redis() -> RedisServer:
    """A Redis that syncs before it answers."""
    return RedisServer(cpu=SERVER_CPU)

"""The measured servers: ours, the peers, and a bare one. All run on core 0, with data on the same file system.

Only one is under load at a time. The others are frozen meanwhile (SIGSTOP), so that they use no processor time and
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

from broker.local.servers import free_ports
from broker.local.servers.process import ASK_TIMEOUT_S, HOST
from broker.testing.server_process import ServerProcess
from tests.kit.servers import KafkaServer, RedisServer, TmsServer

SERVER_CPU = 0
LOAD_CPU = 1

_HEAP = ("-Xms1g", "-Xmx1g")


@runtime_checkable
class HttpServer(Protocol):
    """A server that answers HTTP requests."""

    @property
    def port(self) -> int:
        """The port on which it listens."""


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
        return _answers_200(self.port, "/readyz")


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
        return _answers_200(self.port, "/")


def _answers_200(port: int, path: str) -> bool:
    connection = HTTPConnection(HOST, port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    finally:
        connection.close()


def data_folder() -> Path:
    """Return the folder of the servers' folders: the same file system for all."""
    return Path(tempfile.gettempdir())


def cdap() -> TmsServer:
    """Return CDAP's own server. On one core the serial garbage collector costs least."""
    return TmsServer(jvm_options=(*_HEAP, "-XX:+UseSerialGC"), cpu=SERVER_CPU)


def kafka() -> KafkaServer:
    """Return one Kafka broker that syncs each appended batch."""
    return KafkaServer(jvm_options=(*_HEAP, "-XX:+UseG1GC"), cpu=SERVER_CPU)


def redis() -> RedisServer:
    """Return a Redis that syncs before it answers."""
    return RedisServer(cpu=SERVER_CPU)

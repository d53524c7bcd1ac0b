"""Tephra's own Java client, unmodified, driven from Python: one JVM, one line per call.

The JVM runs the main class ``TephraClient`` of ``tests/java/tephra``, which documents the lines. One client can call
many servers, each by its port on loopback. ``serve`` starts Tephra's own server in the same JVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from tests.kit.servers.javaclient import JavaClient


class TephraClient(JavaClient):
    """The JVM with the client in it; a context manager, usable from several threads in turn."""

    name = "Tephra's client"
    project: ClassVar[str] = "tephra"
    main: ClassVar[str] = "TephraClient"

    @override
    def at(self, port: int, **more: Any) -> TephraCalls:  # type: ignore[override]
        """Return the client's calls to one server; ``attempts`` is the number of its tries, by default its own."""
        return TephraCalls(self, {"port": port, **more})

    def serve(self) -> int:
        """Start Tephra's own server, which stores nothing on disk, and return its port."""
        port: int = self.call({"op": "serve"})
        return port


@dataclass(frozen=True, slots=True)
class TephraCalls:
    """The calls to one server, by their names in ``TephraClient.java``. Each raises JavaError."""

    client: TephraClient
    where: dict[str, Any]

    def __call__(self, op: str, **arguments: Any) -> Any:
        """Make the call ``op``."""
        return self.client.call({"op": op, **self.where, **arguments})

"""CDAP's own messaging server; its answers define the wire protocol.

It runs alone, unmodified, on its LevelDB, started by the small main class of ``tests/java/tms``. It chooses a free
port itself and writes it to a file. It is ready when it answers a topic call, because ``/ping`` says OK even when no
topic call can succeed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.local.servers import jvm
from broker.local.servers.process import ASK_TIMEOUT_S, HOST
from broker.testing.server_process import ServerProcess

# Guice's cglib needs java.lang; LevelDB's unmapping needs sun.nio.ch; Netty's buffers the rest.
_ACCESS = (
    *jvm.opens("java.lang", "java.nio", "sun.nio.ch"),
    *jvm.exports("sun.nio.ch", "jdk.internal.misc"),
)


class TmsServer(ServerProcess):
    """CDAP's messaging server on loopback.

    Args:
        overrides: Keys of CDAP's configuration, such as ``data.tx.max.lifetime``.
        jvm_options: Heap and compiler; a benchmark passes its own, without ``QUICK``.
        folder: See ``ServerProcess``; the data are in its folder ``data``.
        cpu: See ``ServerProcess``.
    """

    name: ClassVar[str] = "tms"

    def __init__(
        self,
        *,
        overrides: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (*jvm.QUICK, "-Xmx512m"),
        folder: Path | None = None,
        cpu: int | None = None,
    ) -> None:
        super().__init__(folder=folder, cpu=cpu)
        self._overrides = dict(overrides or {})
        self._jvm_options = tuple(jvm_options)
        self._port_file = self.folder / "port"

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return HOST

    @property
    def port(self) -> int:
        """The port that the server chose; it is another one after each start."""
        return int(self._port_file.read_text())

    @property
    def url(self) -> str:
        """The root of the HTTP interface, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @override
    def command(self) -> Sequence[str]:
        folder = jvm.installed("tms")
        self._port_file.unlink(missing_ok=True)
        return [
            jvm.java(),
            *_ACCESS,
            *self._jvm_options,
            "-cp",
            jvm.class_path(folder),
            "TmsServer",
            str(self.folder / "data"),
            str(self._port_file),
            *(f"{key}={value}" for key, value in self._overrides.items()),
        ]

    @override
    def answers(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=ASK_TIMEOUT_S)
        try:
            connection.request("GET", "/v1/namespaces/system/topics")
            reply = connection.getresponse()
            return reply.status == 200 and isinstance(json.load(reply), list)
        except HTTPException:
            return False
        finally:
            connection.close()

"""One ZooKeeper, from the jars that come with HBase.

The server is ready when its answer to ``srvr`` has a mode: ``ruok`` answers imok before the server serves. A session
ends up to one tick after its time-out, so the tick is short: 200 ms. The server does not sync to disk: a ZooKeeper of
the tests survives a kill, but not a power failure.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.local.servers import archive, jvm
from broker.local.servers.process import ASK_TIMEOUT_S, HOST, ServerProcess, free_ports

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

SETTINGS: Mapping[str, str] = {
    "tickTime": "200",
    "initLimit": "25",
    "syncLimit": "13",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "ruok,srvr,mntr,cons,wchs,dump,stat,conf,isro,envi",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "20000",
    "maxClientCnxns": "0",
    "preAllocSize": "64",
    "forceSync": "no",
    "extendedTypesEnabled": "true",
    "standaloneEnabled": "true",
    "reconfigEnabled": "false",
}

LOG4J = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{2}: %m%n
"""


class ZooKeeperServer(ServerProcess):
    """A standalone ZooKeeper on loopback."""

    name: ClassVar[str] = "zookeeper"

    def __init__(self, *, folder: Path | None = None, cpu: int | None = None) -> None:
        super().__init__(folder=folder, cpu=cpu)
        (self.port,) = free_ports(1)

    @property
    def hosts(self) -> str:
        """The connection string for a client."""
        return f"{HOST}:{self.port}"

    @override
    def command(self) -> Sequence[str]:
        configuration = self.folder / "zoo.cfg"
        own = {
            "dataDir": f"{self.folder}/data",
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
        }
        configuration.write_text(properties({**SETTINGS, **own}))
        (self.folder / "log4j.properties").write_text(LOG4J)
        return [
            jvm.java(),
            *jvm.QUICK,
            "-Xmx128m",
            *archive.sharing(),
            "-cp",
            archive.class_path(self.folder),
            MAIN,
            str(configuration),
        ]

    @override
    def answers(self) -> bool:
        return serves(HOST, self.port)


def serves(host: str, port: int) -> bool:
    """Return whether a ZooKeeper serves: alone, or in an ensemble that has a leader.

    Raises:
        OSError: No server listens.
    """
    return "Mode:" in ask(host, port, "srvr")


def ask(host: str, port: int, word: str) -> str:
    """Send one of ZooKeeper's four-letter words, and return the answer.

    Raises:
        OSError: No server listens.
    """
    with socket.create_connection((host, port), timeout=ASK_TIMEOUT_S) as connection:
        connection.sendall(word.encode())
        with connection.makefile("rb") as stream:
            return stream.read().decode()


def properties(values: Mapping[str, str]) -> str:
    """Return the text of a properties file, one property on each line."""
    return "".join(f"{key}={value}\n" for key, value in values.items())

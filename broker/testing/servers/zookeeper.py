"""One ZooKeeper, from the jars that come with HBase.

Ready means that ``srvr`` names a mode: ``ruok`` says imok before anything is served. With a tick of
500 ms sessions of one second and more are granted. Nothing is forced to disk: a ZooKeeper of the
tests survives a kill, not a power cut.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.testing.servers import jvm
from broker.testing.servers.process import ASK_TIMEOUT_S, HOST, Server, free_ports

_CONFIGURATION = """\
tickTime=500
initLimit=10
syncLimit=5
dataDir={folder}/data
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr,cons,wchs,dump,stat,conf,isro,envi
minSessionTimeout=1000
maxSessionTimeout=20000
maxClientCnxns=0
preAllocSize=64
forceSync=no
extendedTypesEnabled=true
standaloneEnabled=true
reconfigEnabled=false
"""

_LOG4J = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{2}: %m%n
"""


class ZooKeeperServer(Server):
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
        folder = jvm.installed("hbase")
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(
            _CONFIGURATION.format(folder=self.folder, port=self.port, host=HOST)
        )
        (self.folder / "log4j.properties").write_text(_LOG4J)
        return [
            jvm.java(),
            *jvm.QUICK,
            "-Xmx128m",
            "-cp",
            jvm.class_path(folder, first=[self.folder]),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(configuration),
        ]

    @override
    def answers(self) -> bool:
        return "Mode:" in self.four_letters("srvr")

    def four_letters(self, word: str) -> str:
        """Ask one of ZooKeeper's four-letter words.

        Raises:
            OSError: Nothing listens.
        """
        with socket.create_connection((HOST, self.port), timeout=ASK_TIMEOUT_S) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as stream:
                return stream.read().decode()

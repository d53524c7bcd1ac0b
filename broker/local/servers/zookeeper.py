"""ZooKeeper, from the jars that come with HBase: its settings, and the question whether it serves.

A server is ready when its answer to ``srvr`` has a mode: ``ruok`` answers imok before the server serves. A session
ends up to one tick after its time-out, so the tick is short: 200 ms. A server does not sync to disk: a ZooKeeper of
the tests survives a kill, but not a power failure.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from broker.local.servers.process import ASK_TIMEOUT_S

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

"""HBase: its configuration, its command lines, and the question whether it serves.

A cluster on this machine runs each part of HBase as a process. For tests, and for the archive of its classes, all of it
also runs in one JVM. The main class is ``AllInOne`` of ``tests/java/hbase``; it starts the gateways when the master
answers. The data are in the local file system; a write that the region server acknowledges with FSYNC_WAL is synced
there.

A gateway serves when it has answered a call that goes through to the master. This module encodes the call itself, so
that a start needs no Thrift library::

    80 01 00 01 | length of name | name | sequence number | arguments, a struct | 00
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from broker.local.servers import jvm
from broker.local.servers.process import ASK_TIMEOUT_S, HOST

GATEWAY_MAIN = "org.apache.hadoop.hbase.thrift2.ThriftServer"

JVM = (
    "-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Xss512k",
    *jvm.opens(
        "java.lang",
        "java.lang.reflect",
        "java.nio",
        "java.nio.channels.spi",
        "java.util",
        "java.util.concurrent",
        "jdk.internal.misc",
        "jdk.internal.ref",
        "sun.nio.ch",
    ),
    *jvm.exports("jdk.internal.misc", "sun.net.dns", "sun.net.util", "sun.nio.ch"),
    "--add-exports",
    "java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)

# Durable, small, on loopback, and fast to start (5 s instead of 16). No gateway call blocks for more than about 8 s.
SITE: Mapping[str, str] = {
    "hbase.unsafe.stream.capability.enforce": "false",
    "hbase.wal.provider": "filesystem",
    "hbase.wal.hsync": "true",
    "hbase.hfile.hsync": "true",
    "hbase.master.info.port": "-1",
    "hbase.regionserver.info.port": "-1",
    "hbase.thrift.info.port": "-1",
    "hbase.master.ipc.address": HOST,
    "hbase.regionserver.ipc.address": HOST,
    "hbase.master.hostname": "localhost",
    "hbase.regionserver.hostname": "localhost",
    "hbase.zookeeper.quorum": HOST,
    "hbase.regionserver.handler.count": "16",
    "hbase.regionserver.metahandler.count": "5",
    "hbase.master.handler.count": "10",
    "hbase.master.start.timeout.localHBaseCluster": "60000",
    "hbase.regionserver.msginterval": "300",
    "hbase.master.wait.on.regionservers.mintostart": "1",
    "hbase.master.wait.on.regionservers.maxtostart": "1",
    "hbase.master.wait.on.regionservers.timeout": "500",
    "hbase.master.wait.on.regionservers.interval": "100",
    "hbase.procedure.worker.count": "8",
    "hbase.procedure.remote.dispatcher.delay.msec": "10",
    "zookeeper.session.timeout": "10000",
    "hbase.rpc.timeout": "5000",
    "hbase.client.operation.timeout": "8000",
    "hbase.client.meta.operation.timeout": "8000",
    "hbase.client.scanner.timeout.period": "10000",
    "hbase.client.retries.number": "6",
    "hbase.client.pause": "100",
}

LOG4J = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{2}: %m%n
log4j.logger.org.apache.zookeeper=WARN
log4j.logger.org.apache.hadoop.hbase.procedure2=WARN
"""


PORTS_OF_ALL: Final = 5
"""The ports of an HBase in one JVM: ZooKeeper, both gateways (Thrift-1, Thrift-2), master, region server."""


def all_in_one(
    folder: Path, ports: Sequence[int], options: Sequence[str], overrides: Mapping[str, str]
) -> list[str]:
    """Write the configuration of an HBase in one JVM into a folder, and return its command line."""
    zookeeper, thrift1, thrift2, master, region_server = map(str, ports)
    site = {
        **SITE,
        "hbase.cluster.distributed": "false",
        "hbase.rootdir": f"file://{folder}/data",
        "hbase.tmp.dir": f"{folder}/scratch",
        "hbase.zookeeper.property.dataDir": f"{folder}/zookeeper",
        "hbase.zookeeper.property.clientPort": zookeeper,
        "hbase.master.port": master,
        "hbase.regionserver.port": region_server,
        **overrides,
    }
    return command_line(folder, site, options, "AllInOne", thrift1, thrift2)


def all_answer(ports: Sequence[int]) -> bool:
    """Return whether both gateways of an HBase in one JVM answer. Raises OSError: not yet."""
    return _replies(HOST, ports[1], b"getTableNames", b"") and gateway_answers(HOST, ports[2])


def command_line(
    folder: Path, site: Mapping[str, str], options: Sequence[str], *main: str
) -> list[str]:
    """Write the configuration into ``conf`` of a folder, and return the command line of a program of HBase."""
    configuration = folder / "conf"
    configuration.mkdir(exist_ok=True)
    (configuration / "hbase-site.xml").write_text(site_xml(site))
    (configuration / "log4j.properties").write_text(LOG4J)
    classes = jvm.shared_class_path(configuration)
    return [jvm.java(), *JVM, *options, *jvm.sharing(), "-cp", classes, *main]


def site_xml(properties: Mapping[str, str]) -> str:
    """Return the text of an hbase-site.xml with these properties."""
    lines = [
        f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>"
        for key, value in properties.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])


def gateway_answers(host: str, port: int) -> bool:
    """Return whether a Thrift-2 gateway answers a call that goes through to the master.

    Raises:
        OSError: No server listens, or it does not answer.
    """
    return _replies(host, port, b"getTableNamesByNamespace", _text_field(1, b"default"))


def _text_field(number: int, value: bytes) -> bytes:
    return struct.pack(">bhi", 11, number, len(value)) + value


def _replies(host: str, port: int, method: bytes, arguments: bytes) -> bool:
    """Return whether a Thrift server answers a call with a result, not with an exception."""
    call = struct.pack(">Ii", 0x8001_0001, len(method)) + method + struct.pack(">i", 1)
    with socket.create_connection((host, port), timeout=2 * ASK_TIMEOUT_S) as connection:
        connection.sendall(call + arguments + b"\0")
        with connection.makefile("rb") as stream:
            head = stream.read(8 + len(method) + 4)
            result = stream.read(3)
    # A reply has message kind 2. In its struct, field 0 is the result; higher fields are exceptions.
    return head[:4] == b"\x80\x01\x00\x02" and result[1:] == b"\0\0"

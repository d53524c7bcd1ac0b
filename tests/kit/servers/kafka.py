"""Kafka as a peer of the benchmarks: one node without ZooKeeper, which by default syncs before it acknowledges.

``log.flush.interval.messages=1`` makes Kafka sync every appended batch; a client with ``acks=all`` waits for the
sync. The server is ready when it has answered a request for its API versions, which this module encodes itself::

    length | api key 18 | version 0 | correlation id | client id
    length | correlation id | error code | …
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.local.servers import jvm
from broker.local.servers.process import (
    ASK_TIMEOUT_S,
    HOST,
    ServerFailed,
    free_ports,
    start_child,
    tied_to_us,
)
from broker.testing.server_process import ServerProcess

_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_FORMAT_TIMEOUT_S = 60.0

_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""

_SYNCS = "log.flush.interval.messages=1\n"

_LOG4J = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{2}: %m%n
"""


class KafkaServer(ServerProcess):
    """A single Kafka broker on loopback, which is its own controller.

    Args:
        jvm_options: Heap and compiler; the default is for benchmarks.
        syncs: False is Kafka's own default: an acknowledged message is only in the page cache.
        folder: See ``ServerProcess``.
        cpu: See ``ServerProcess``.
    """

    name: ClassVar[str] = "kafka"

    def __init__(
        self,
        *,
        jvm_options: Sequence[str] = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC"),
        syncs: bool = True,
        folder: Path | None = None,
        cpu: int | None = None,
    ) -> None:
        super().__init__(folder=folder, cpu=cpu)
        self._jvm_options = tuple(jvm_options)
        self._syncs = syncs
        self.port, self._controller_port = free_ports(2)

    @property
    def bootstrap(self) -> str:
        """The address for a client."""
        return f"{HOST}:{self.port}"

    @override
    def command(self) -> Sequence[str]:
        class_path = jvm.class_path(jvm.installed("kafka"), first=[self.folder])
        configuration = self.folder / "server.properties"
        configuration.write_text(
            _CONFIGURATION.format(
                host=HOST,
                port=self.port,
                controller_port=self._controller_port,
                folder=self.folder,
            )
            + (_SYNCS if self._syncs else "")
        )
        (self.folder / "log4j.properties").write_text(_LOG4J)
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(class_path, configuration)
        return [
            jvm.java(),
            *self._jvm_options,
            "-cp",
            class_path,
            "kafka.Kafka",
            str(configuration),
        ]

    @override
    def answers(self) -> bool:
        request = struct.pack(">hhih", 18, 0, 7, -1)
        with socket.create_connection((HOST, self.port), timeout=ASK_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as stream:
                answer = stream.read(10)
        return answer[4:] == struct.pack(">ih", 7, 0)

    def _format(self, class_path: str, configuration: Path) -> None:
        tool = [jvm.java(), *jvm.QUICK, "-cp", class_path, "kafka.tools.StorageTool", "format"]
        with self.log_path.open("ab") as log:
            formatting = start_child(
                tied_to_us([*tool, "-t", _CLUSTER_ID, "-c", str(configuration)]), stderr=log
            )
        try:
            code = formatting.wait(_FORMAT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            formatting.kill()
            code = formatting.wait()
        if code != 0:
            raise ServerFailed(f"kafka: formatting ended with {code}:\n{self.log_tail()}")

"""HBase in one JVM, for tests: ZooKeeper, master, region server and both Thrift gateways.

HBase takes about 20 s for a clean end, so ``stop`` kills it: acknowledged rows survive a kill.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.local.plan import ListenAddress
from broker.local.servers import hbase, jvm
from broker.local.servers.process import HOST, free_ports
from broker.testing.server_process import ServerProcess


class HBaseServer(ServerProcess):
    """All of HBase on loopback.

    Attributes:
        zookeeper_port: The port of its ZooKeeper.
        thrift1_port: The Thrift-1 gateway, for scans, reads and administration (happybase).
        thrift2_port: The Thrift-2 gateway, for writes that must be synced.

    Args:
        overrides: Keys of hbase-site.xml that override ``SITE``.
        jvm_options: Heap and compiler.
        folder: See ``ServerProcess``; a server in the folder of an earlier one serves its data.
        cpu: See ``ServerProcess``.
    """

    name: ClassVar[str] = "hbase"
    ready_timeout_s: ClassVar[float] = 120.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(
        self,
        *,
        overrides: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (*jvm.QUICK, "-Xmx768m"),
        folder: Path | None = None,
        cpu: int | None = None,
    ) -> None:
        super().__init__(folder=folder, cpu=cpu)
        self._overrides = dict(overrides or {})
        self._jvm_options = tuple(jvm_options)
        self._ports = free_ports(hbase.PORTS_OF_ALL)
        self.zookeeper_port, self.thrift1_port, self.thrift2_port = self._ports[:3]

    @property
    def gateway(self) -> ListenAddress:
        """The address of the Thrift-2 gateway, for a cluster."""
        return ListenAddress(self.name, HOST, self.thrift2_port)

    @override
    def command(self) -> Sequence[str]:
        return hbase.all_in_one(self.folder, self._ports, self._jvm_options, self._overrides)

    @override
    def answers(self) -> bool:
        return hbase.all_answer(self._ports)

"""One more Thrift-2 gateway of an HBase, and the definition of its interface."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from broker.local.servers import jvm
from broker.local.servers.hbase import GATEWAY_MAIN, SITE, command_line, gateway_answers
from broker.local.servers.process import HOST, free_ports
from broker.testing.hbase_server import HBaseServer
from broker.testing.server_process import ServerProcess

_IDL = "org/apache/hadoop/hbase/thrift2/hbase.thrift"


class HBaseGateway(ServerProcess):
    """One more Thrift-2 gateway of a running HBase, for tests that kill it or need another configuration.

    Attributes:
        port: The port of the gateway.

    Args:
        server: The HBase that it connects to.
        overrides: Keys of hbase-site.xml that override ``SITE``.
    """

    name: ClassVar[str] = "hbase-gateway"

    def __init__(self, server: HBaseServer, *, overrides: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._overrides = dict(overrides or {})
        self._zookeeper_port = server.zookeeper_port
        (self.port,) = free_ports(1)

    @override
    def command(self) -> Sequence[str]:
        site = {
            **SITE,
            "hbase.zookeeper.property.clientPort": str(self._zookeeper_port),
            **self._overrides,
        }
        words = ("start", "-p", str(self.port), "-b", HOST, "--infoport", "-1")
        return command_line(self.folder, site, (*jvm.QUICK, "-Xmx128m"), GATEWAY_MAIN, *words)

    @override
    def answers(self) -> bool:
        return gateway_answers(HOST, self.port)


def thrift2_idl() -> Path:
    """Return the file of the Thrift-2 interface definition; it comes from HBase's own jar.

    Raises:
        ServerMissing: HBase is not fetched.
    """
    folder = jvm.installed("hbase")
    definition = folder / "hbase-thrift2.thrift"
    if not definition.is_file():
        (jar,) = (folder / "lib").glob("hbase-thrift-*.jar")
        with zipfile.ZipFile(jar) as archive:
            written = definition.with_suffix(".tmp")
            written.write_bytes(archive.read(_IDL))
            written.rename(definition)
    return definition

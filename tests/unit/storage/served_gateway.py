"""A gateway of Thrift's own bytes on a real socket."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TBufferedTransport, TSocket

from broker.storage.hbase_gateways import IDL, Address

DEADLINE_S = 20


class Handler:
    """Answers ``tableExists`` as the table's name says, and keeps tables in memory."""

    def __init__(self) -> None:
        self.namespaces = ["default"]
        self.tables: dict[tuple[bytes, bytes], tuple[Any, int]] = {}

    def getThriftServerType(self) -> int:  # noqa: N802  Thrift's name.
        return IDL.TThriftServerType.TWO

    def listNamespaces(self) -> list[str]:  # noqa: N802  Thrift's name.
        return self.namespaces

    def createNamespace(self, namespace: Any) -> None:  # noqa: N802
        self.namespaces.append(namespace.name)

    def createTable(self, descriptor: Any, splits: list[bytes]) -> None:  # noqa: N802
        name = descriptor.tableName
        self.tables[name.ns, name.qualifier] = descriptor, len(splits) + 1

    def disableTable(self, name: Any) -> None:  # noqa: N802
        assert (name.ns, name.qualifier) in self.tables

    def deleteTable(self, name: Any) -> None:  # noqa: N802
        del self.tables[name.ns, name.qualifier]

    def getTableDescriptor(self, name: Any) -> Any:  # noqa: N802
        return self.tables[name.ns, name.qualifier][0]

    def getAllRegionLocations(self, name: bytes) -> list[Any]:  # noqa: N802
        namespace, _, table = name.rpartition(b":")
        regions = self.tables[namespace or b"default", table][1]
        location = IDL.THRegionLocation(regionInfo=IDL.THRegionInfo(startKey=b""))
        return [location] * regions

    def tableExists(self, name: Any) -> bool:  # noqa: N802  Thrift's name.
        match name.qualifier:
            case b"error":
                raise IDL.TIOError(message="java.io.IOException: no\n\tat Some.java:1")
            case b"cut":
                raise ConnectionAbortedError
            case b"t":
                return True
        return (name.ns, name.qualifier) in self.tables


class Served(socketserver.ThreadingTCPServer):
    """Counts connections and can close them all."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.open: list[socket.socket] = []
        self.handler = Handler()
        super().__init__(("127.0.0.1", port), Conversation)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.server_address[1])

    def close_connections(self) -> None:
        for connection in self.open:
            connection.shutdown(socket.SHUT_RDWR)


class Conversation(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.server.open.append(self.request)
        processor = TProcessor(IDL.THBaseService, self.server.handler)
        transport = TBufferedTransport(TSocket(sock=self.request))
        protocol = TBinaryProtocol(transport)
        try:
            while True:
                processor.process(protocol, protocol)
        except Exception:  # noqa: BLE001  The connection is over, whatever the reason.
            self.request.close()


@contextmanager
def serving(port: int = 0) -> Iterator[Served]:
    """Serve in a thread."""
    with Served(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(DEADLINE_S)

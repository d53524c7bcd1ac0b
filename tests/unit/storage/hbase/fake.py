"""A fake HBase gateway on a real socket, over tables in memory. thriftpy2 encodes its bytes."""

# ruff: noqa: N802  The method names are Thrift's.

import itertools
import re
import socket
import socketserver
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TMessageType, TProcessor
from thriftpy2.transport import TBufferedTransport, TMemoryBuffer, TSocket

from broker.storage.hbase.gateways import GatewayAddress
from broker.storage.memory.row_space import MemoryRow, RowSpace
from broker.storage.table import HEAD, Cell

DEADLINE_S = 20
HOST = "127.0.0.1"
IDL = thriftpy2.load(
    str(Path(__file__).parents[3] / "data/hbase2.thrift"), module_name="hbase2_thrift"
)
FILTER = re.compile(
    rb"ColumnRangeFilter \('((?:[^']|'')*)', true, '((?:[^']|'')*)', true\)"
    rb"( AND KeyOnlyFilter \(true\))?",
    re.DOTALL,
)
FOR_EVER = 1 << 62


def encode(api: str, *arguments: Any, **by_name: Any) -> bytes:
    """Return a call as thriftpy2 writes it."""
    given = getattr(IDL.THBaseService, f"{api}_args")(*arguments, **by_name)
    return message(api, TMessageType.CALL, given)


def reply(api: str, **fields: Any) -> bytes:
    """Return an answer as thriftpy2 writes it."""
    result = getattr(IDL.THBaseService, f"{api}_result")()
    for name, value in fields.items():
        setattr(result, name, value)
    return message(api, TMessageType.REPLY, result)


def message(api: str, kind: int, struct: Any) -> bytes:
    """Return a message as thriftpy2 writes it."""
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    protocol.write_message_begin(api, kind, 0)
    struct.write(protocol)
    return bytes(buffer.getvalue())


class FakeHBase:
    """The handler of a gateway's calls.

    Attributes:
        calls: the names of the calls for rows.
        sent: how many bytes of values the gets have answered.
        endings: functions that replace the next checked changes. Each gets a function that applies the change.
    """

    def __init__(self) -> None:
        self.namespaces = [b"default"]
        self.descriptors: dict[tuple[bytes, bytes], tuple[Any, int]] = {}
        self.rows: dict[bytes, RowSpace] = defaultdict(RowSpace)
        self.calls: list[str] = []
        self.sent = 0
        self.endings: list[Any] = []
        self._clock = itertools.count(1)

    # Administration.

    def getThriftServerType(self) -> int:
        return IDL.TThriftServerType.TWO

    def listNamespaces(self) -> list[bytes]:
        return self.namespaces

    def createNamespace(self, namespace: Any) -> None:
        self.namespaces.append(namespace.name.encode())

    def createTable(self, descriptor: Any, splits: list[bytes]) -> None:
        name = descriptor.tableName
        self.descriptors[name.ns, name.qualifier] = descriptor, len(splits) + 1

    def disableTable(self, name: Any) -> None:
        assert (name.ns, name.qualifier) in self.descriptors

    def deleteTable(self, name: Any) -> None:
        del self.descriptors[name.ns, name.qualifier]

    def getTableDescriptor(self, name: Any) -> Any:
        return self.descriptors[name.ns, name.qualifier][0]

    def getAllRegionLocations(self, name: bytes) -> list[Any]:
        namespace, _, table = name.rpartition(b":")
        regions = self.descriptors[namespace or b"default", table][1]
        return [IDL.THRegionLocation(regionInfo=IDL.THRegionInfo(startKey=b""))] * regions

    def tableExists(self, name: Any) -> bool:
        match name.qualifier:
            case b"error":
                raise IDL.TIOError(message="java.io.IOException: no\n\tat Some.java:1")
            case b"cut":
                raise ConnectionAbortedError
            case b"t":
                return True
        return (name.ns, name.qualifier) in self.descriptors

    # Rows.

    def checkAndPut(
        self, table: bytes, row: bytes, family: bytes, column: bytes, expected: bytes, put: Any
    ) -> bool:
        assert (family, column, put.row) == (b"h", HEAD, row)
        assert put.durability == IDL.TDurability.FSYNC_WAL
        return self._change(table, row, expected, put, None)

    def checkAndMutate(
        self,
        table: bytes,
        row: bytes,
        family: bytes,
        column: bytes,
        compare: int,
        expected: bytes,
        mutations: Any,
    ) -> bool:
        assert (family, column, mutations.row) == (b"h", HEAD, row)
        assert compare == IDL.TCompareOp.EQUAL
        assert expected, "an absent value fails in HBase"
        first, second = mutations.mutations
        delete, put = first.deleteSingle, second.put
        assert {delete.durability, put.durability} == {IDL.TDurability.FSYNC_WAL}
        return self._change(table, row, expected, put, delete)

    def _change(self, table: bytes, row: bytes, expected: bytes, put: Any, delete: Any) -> bool:
        self.calls.append("change")
        puts = {}
        for cell in put.columnValues:
            assert cell.family == (b"h" if cell.qualifier == HEAD else b"e")
            assert cell.timestamp is None
            puts[cell.qualifier] = cell.value
        columns, clear = (), False
        if delete is not None:
            assert {(column.family, column.timestamp) for column in delete.columns} == {
                (b"e", FOR_EVER)
            }
            clear = delete.deleteType == IDL.TDeleteType.DELETE_FAMILY
            if not clear:
                assert delete.deleteType == IDL.TDeleteType.DELETE_COLUMNS
                columns = [column.qualifier for column in delete.columns]

        def apply() -> bool:
            rows, now = self.rows[table], next(self._clock)
            return rows.change(row, expected, puts, columns, now, clear=clear) is not None

        return self.endings.pop(0)(apply) if self.endings else apply()

    def get(self, table: bytes, get: Any) -> Any:
        self.calls.append("get")
        row = self.rows[table].get(get.row)
        if get.filterString is None:
            names = [column.qualifier for column in get.columns]
            assert [column.family for column in get.columns] == [
                b"h" if name == HEAD else b"e" for name in names
            ]
            return _result(get.row, row.get(names))
        first, last, lengths = FILTER.fullmatch(get.filterString).groups()
        columns = row.columns(first.replace(b"''", b"'"), last.replace(b"''", b"'"))
        found = row.get(columns[: get.storeLimit])
        if lengths:
            found = {name: _length_of(cell) for name, cell in found.items()}
        self.sent += sum(len(cell.value) for cell in found.values())
        return _result(get.row, found)

    def getScannerResults(self, table: bytes, scan: Any, count: int) -> list[Any]:
        self.calls.append("scan")
        assert [column.family for column in scan.columns] == [b"h"]
        assert scan.limit == scan.caching == count
        low, high = scan.startRow, scan.stopRow
        if scan.reversed:
            low, high = high, low
        heads = self.rows[table].scan(low, high, limit=1 << 30, reverse=bool(scan.reversed))
        heads = [(key, cell) for key, cell in heads if key != scan.stopRow]
        return [_result(key, {HEAD: cell}) for key, cell in heads[:count]]

    def put(self, table: bytes, put: Any) -> None:
        self.putMultiple(table, [put])

    def putMultiple(self, table: bytes, puts: list[Any]) -> None:
        self.calls.append("put")
        for put in puts:
            (cell,) = put.columnValues
            assert (cell.family, cell.qualifier) == (b"h", HEAD)
            assert put.durability == IDL.TDurability.FSYNC_WAL
            self.rows[table].put(put.row, cell.value, next(self._clock))

    def deleteMultiple(self, table: bytes, deletes: list[Any]) -> list[Any]:
        self.calls.append("delete")
        for delete in deletes:
            assert (delete.columns, delete.timestamp) == (None, FOR_EVER)
            self.rows[table].delete(delete.row)
        return []

    def row(self, table: bytes, key: bytes) -> MemoryRow:
        """Return a stored row."""
        return self.rows[table].get(key)


def _length_of(cell: Cell) -> Cell:
    return Cell(len(cell.value).to_bytes(4, "big"), cell.server_ms)


def _result(row: bytes, cells: dict[bytes, Cell]) -> Any:
    # As HBase: in the order of families and columns, with a field that the broker does not use.
    values = [
        IDL.TColumnValue(
            family=b"h" if name == HEAD else b"e",
            qualifier=name,
            value=cell.value,
            timestamp=cell.server_ms,
            type=4,
        )
        for name, cell in sorted(cells.items())
    ]
    return IDL.TResult(row=row if values else None, columnValues=values)


class Served(socketserver.ThreadingTCPServer):
    """The server of the fake. It keeps its connections and can close them all."""

    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        self.open: list[socket.socket] = []
        self.hbase = FakeHBase()
        self.handler = OneAtATime(self.hbase)
        super().__init__((HOST, port), Conversation)

    @property
    def address(self) -> GatewayAddress:
        return GatewayAddress(HOST, self.server_address[1])

    def close_connections(self) -> None:
        for connection in self.open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Conversation(socketserver.BaseRequestHandler):
    """One connection: the server reads a call and answers it, until the connection ends."""

    def handle(self) -> None:
        self.request.settimeout(DEADLINE_S)
        self.server.open.append(self.request)
        processor = TProcessor(IDL.THBaseService, self.server.handler)
        transport = TBufferedTransport(TSocket(sock=self.request))
        protocol = TBinaryProtocol(transport)
        try:
            while True:
                processor.process(protocol, protocol)
        except Exception:  # noqa: BLE001 - Any error ends the connection.
            self.request.close()


class OneAtATime:
    """Passes calls of all threads to a handler, one after the other."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            with self._lock:
                return getattr(self._handler, name)(*arguments)

        return call


@contextmanager
def serving(port: int = 0) -> Iterator[Served]:
    """Run a server in a thread."""
    with Served(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        server.close_connections()
        thread.join(DEADLINE_S)

"""The calls of a Thrift-2 gateway that the broker makes, over a table in memory."""

from collections.abc import Callable
from typing import Any

from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TMessageType
from thriftpy2.transport import TMemoryBuffer

from broker.storage.cells import Cell, CellsError, RowCells, bytes_of
from broker.storage.hbase_gateways import IDL
from broker.storage.hbase_requests import FAMILY
from broker.storage.memory_cells import MemoryTable


class FakeClient:
    """What a gateway answers: starts with ``start`` itself backwards, and so on."""

    def __init__(self) -> None:
        self.table = MemoryTable()
        self.calls: list[str] = []
        self.sent = 0
        """Bytes of rows that scans gave away whole."""

    def put(self, name: bytes, put: Any) -> None:
        self.calls.append("put")
        self._put(put)

    def putMultiple(self, name: bytes, puts: list[Any]) -> None:  # noqa: N802  Thrift's name.
        self.calls.append("putMultiple")
        for put in puts:
            self._put(put)

    def _put(self, put: Any) -> None:
        columns = {v.qualifier: Cell(v.timestamp, v.value) for v in put.columnValues}
        assert {v.family for v in put.columnValues} == {FAMILY}
        self.table.put(RowCells(put.row, columns))

    def get(self, name: bytes, get: Any) -> Any:
        self.calls.append("get")
        return _result(get.row, self.table.get(get.row) or {})

    def checkAndPut(  # noqa: N802  Thrift's name.
        self, name: bytes, row: bytes, family: bytes, column: bytes, expected: bytes, put: Any
    ) -> bool:
        self.calls.append("checkAndPut")
        (value,) = put.columnValues
        assert (value.family, value.qualifier, put.row) == (family, column, row)
        return self.table.check_and_put(row, expected, value.value)

    def deleteMultiple(self, name: bytes, deletes: list[Any]) -> list[Any]:  # noqa: N802
        self.calls.append("deleteMultiple")
        self.table.delete([delete.row for delete in deletes])
        return []

    def getScannerResults(self, name: bytes, scan: Any, rows_max: int) -> list[Any]:  # noqa: N802
        self.calls.append("getScannerResults")
        everything = self.table.scan(b"", b"\xff" * 200, 1 << 30, reverse=bool(scan.reversed))
        if scan.reversed:
            rows = [r for r in everything if scan.stopRow < r.key <= scan.startRow]
        else:
            end = scan.stopRow or b"\xff" * 200
            rows = [r for r in everything if scan.startRow <= r.key < end]
        if scan.columns:
            names = [column.qualifier for column in scan.columns]
            rows = [
                RowCells(r.key, {n: c for n, c in r.columns.items() if n in names}) for r in rows
            ]
            rows = [r for r in rows if r.columns]
        cut = rows[: min(rows_max, scan.limit)]
        self.sent += sum(map(bytes_of, cut)) if not scan.filterString else 0
        if scan.filterString:
            cut = [
                RowCells(
                    row.key,
                    {
                        column: Cell(cell.tag, len(cell.value).to_bytes(4, "big"))
                        for column, cell in row.columns.items()
                    },
                )
                for row in cut
            ]
        return [_result(row.key, row.columns) for row in cut]


def _result(row: bytes, columns: Any) -> Any:
    values = [
        IDL.TColumnValue(family=FAMILY, qualifier=column, value=cell.value, timestamp=cell.tag)
        for column, cell in columns.items()
    ]
    return IDL.TResult(row=row, columnValues=values)


def decoded(api: str, request: bytes) -> list[Any]:
    """Return the arguments of a call, as a gateway reads them from its bytes."""
    protocol = TBinaryProtocol(TMemoryBuffer(request))
    assert protocol.read_message_begin() == (api, TMessageType.CALL, 0)
    given = getattr(IDL.THBaseService, f"{api}_args")()
    given.read(protocol)
    return [getattr(given, name) for _, name, *_ in given.thrift_spec.values()]


class FakeGateways:
    """Calls that end as the test says: ``endings`` holds what to do to each compare-and-set."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.endings: list[Callable[[Callable[[], Any]], Any]] = []

    async def ask(self, name: str, api: str, request: bytes) -> Any:
        arguments = decoded(api, request)
        return await self.call(name, lambda client: getattr(client, api)(*arguments))

    async def call(self, name: str, work: Callable[[Any], Any]) -> Any:
        before = self.client.calls.count("checkAndPut")
        probe = _Counting(self.client)
        answer = work(probe)
        if self.client.calls.count("checkAndPut") == before and probe.held is not None:
            ending = self.endings.pop(0) if self.endings else (lambda apply: apply())
            answer = ending(probe.held)
        return answer


class _Counting:
    """Holds a compare-and-set back until the test has said how it ends."""

    def __init__(self, client: FakeClient) -> None:
        self._client = client
        self.held: Callable[[], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name != "checkAndPut":
            return method

        def hold(*arguments: Any) -> bool:
            self.held = lambda: method(*arguments)
            return False

        return hold


def lost_answer(apply: Callable[[], Any]) -> Any:
    """Do it and say that the connection broke."""
    apply()
    raise CellsError("TSocket read 0 bytes")


def lie(apply: Callable[[], Any]) -> Any:
    """Do it and say False, as a gateway that did it twice."""
    apply()
    return False


def not_done(apply: Callable[[], Any]) -> Any:
    """Fail before anything happened."""
    raise CellsError("time-out")

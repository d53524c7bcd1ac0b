"""The encoded requests equal the bytes that thriftpy2 writes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.storage.hbase import requests
from broker.storage.table import HEAD
from tests.unit.storage.hbase.fake import FOR_EVER, IDL, encode

FSYNC, SYNC = IDL.TDurability.FSYNC_WAL, IDL.TDurability.SYNC_WAL
BYTES = st.binary(max_size=12)
COLUMNS = st.sampled_from((HEAD, b"h\0", b"e")) | st.binary(min_size=1, max_size=4)
CELLS = st.dictionaries(COLUMNS, BYTES, min_size=1, max_size=4)


def column(name: bytes, value: bytes | None = None) -> Any:
    family = b"h" if name == HEAD else b"e"
    if value is None:
        return IDL.TColumn(family=family, qualifier=name)
    return IDL.TColumnValue(family=family, qualifier=name, value=value)


def put(row: bytes, cells: dict[bytes, bytes], durability: int = FSYNC) -> Any:
    values = [column(name, value) for name, value in cells.items()]
    return IDL.TPut(row=row, columnValues=values, durability=durability)


@given(BYTES, BYTES, st.none() | BYTES, CELLS, st.sampled_from((FSYNC, SYNC)))
def test_check_and_put(
    table: bytes, row: bytes, expected: bytes | None, cells: dict[bytes, bytes], durability: int
) -> None:
    request = requests.check_and_put(table, row, expected, cells, durability)
    made = put(row, cells, durability)
    assert request == encode("checkAndPut", table, row, b"h", b"h", expected, made)


@given(BYTES, BYTES, BYTES, CELLS, st.none() | st.lists(BYTES, min_size=1, max_size=3))
def test_check_and_mutate(
    table: bytes,
    row: bytes,
    expected: bytes,
    cells: dict[bytes, bytes],
    deletes: list[bytes] | None,
) -> None:
    kinds = IDL.TDeleteType
    if deletes is None:
        chosen, kind = [IDL.TColumn(family=b"e", timestamp=FOR_EVER)], kinds.DELETE_FAMILY
    else:
        chosen = [IDL.TColumn(family=b"e", qualifier=name, timestamp=FOR_EVER) for name in deletes]
        kind = kinds.DELETE_COLUMNS
    delete = IDL.TDelete(row=row, columns=chosen, deleteType=kind, durability=FSYNC)
    mutations = [IDL.TMutation(deleteSingle=delete), IDL.TMutation(put=put(row, cells))]
    made = IDL.TRowMutations(row=row, mutations=mutations)
    equal = IDL.TCompareOp.EQUAL
    request = requests.check_and_mutate(table, row, expected, cells, deletes, FSYNC)
    assert request == encode("checkAndMutate", table, row, b"h", b"h", equal, expected, made)


@given(BYTES, st.dictionaries(BYTES, BYTES, min_size=1, max_size=4))
def test_heads(table: bytes, heads: dict[bytes, bytes]) -> None:
    (request,) = requests.put_heads(table, heads, FSYNC)
    made = [put(row, {HEAD: head}) for row, head in heads.items()]
    if len(made) == 1:
        assert request == encode("put", table, made[0])
    else:
        assert request == encode("putMultiple", table, made)


def test_many_heads_are_split_into_calls_in_order() -> None:
    heads = {b"%05d" % n: bytes(100_000) for n in range(50)}
    calls = list(requests.put_heads(b"t", heads, FSYNC))
    assert 4 <= len(calls) <= 6
    assert max(map(len, calls)) < requests.FRAME_BYTES_MAX + (1 << 12)
    at = [number for row in heads for number, call in enumerate(calls) if row in call]
    assert at == sorted(at)
    assert len(at) == 50
    small = {b"%09d" % n: b"12345678" for n in range(30_000)}
    assert max(map(len, requests.put_heads(b"t", small, FSYNC))) <= requests.FRAME_BYTES_MAX * 1.1
    assert list(requests.put_heads(b"t", {}, FSYNC)) == []


def test_a_head_over_the_limit_has_a_call_of_its_own() -> None:
    large = bytes(2 * requests.FRAME_BYTES_MAX)
    calls = list(requests.put_heads(b"t", {b"-a-": b"1", b"-b-": large, b"-c-": b"3"}, FSYNC))
    rows = [[row for row in (b"-a-", b"-b-", b"-c-") if row in call] for call in calls]
    assert rows == [[b"-a-"], [b"-b-"], [b"-c-"]]


@given(BYTES, st.lists(BYTES, min_size=1, max_size=3))
def test_deletes(table: bytes, rows: list[bytes]) -> None:
    made = [
        IDL.TDelete(row=row, timestamp=FOR_EVER, deleteType=None, durability=SYNC) for row in rows
    ]
    assert requests.delete_rows(table, rows) == encode("deleteMultiple", table, made)


@given(BYTES, BYTES, st.lists(COLUMNS, min_size=1, max_size=3))
def test_gets(table: bytes, row: bytes, names: list[bytes]) -> None:
    get = IDL.TGet(row=row, columns=[column(name) for name in names])
    assert requests.get(table, row, names) == encode("get", table, get)


@given(BYTES, st.none() | st.integers(1, 9999), st.booleans())
def test_ranges(row: bytes, limit: int | None, lengths: bool) -> None:
    chosen = b"ColumnRangeFilter ('a''', true, '''', true)"
    if lengths:
        chosen += b" AND KeyOnlyFilter (true)"
    family = IDL.TColumn(family=b"e")
    get = IDL.TGet(row=row, columns=[family], filterString=chosen, storeLimit=limit)
    request = requests.get_range(b"t", row, b"a'", b"'", limit, lengths=lengths)
    assert request == encode("get", b"t", get)


@given(BYTES, BYTES, st.integers(1, 9999), st.booleans())
def test_scans(start: bytes, stop: bytes, limit: int, reverse: bool) -> None:
    scan = IDL.TScan(
        startRow=start,
        stopRow=stop,
        columns=[IDL.TColumn(family=b"h")],
        caching=limit,
        reversed=reverse or None,
        limit=limit,
    )
    request = requests.scan_heads(b"t", start, stop, limit, reverse=reverse)
    assert request == encode("getScannerResults", b"t", scan, limit)


def test_administration() -> None:
    name = IDL.TTableName(ns=b"n", qualifier=b"t")
    descriptor = IDL.TTableDescriptor(
        tableName=name,
        columns=[
            IDL.TColumnFamilyDescriptor(name=family, maxVersions=1) for family in (b"h", b"e")
        ],
        attributes={b"a": b"1", b"b": b"2"},
        durability=FSYNC,
    )
    splits = [b"\x40", b"\x80"]
    request = requests.create_table(b"n", b"t", {b"a": b"1", b"b": b"2"}, FSYNC, splits)
    assert request == encode("createTable", descriptor, splits)
    for api in ("tableExists", "getTableDescriptor", "disableTable", "deleteTable"):
        assert requests.of_table(api, b"n", b"t") == encode(api, name)
    made = IDL.TNamespaceDescriptor(name="n")
    assert requests.create_namespace(b"n") == encode("createNamespace", made)
    assert requests.region_locations(b"t") == encode("getAllRegionLocations", b"t")
    assert encode("listNamespaces") == requests.LIST_NAMESPACES
    assert encode("getThriftServerType") == requests.SERVER_TYPE
    assert requests.THRIFT_2 == IDL.TThriftServerType.TWO
    assert (requests.FSYNC_WAL, requests.SYNC_WAL) == (FSYNC, SYNC)

/*
 * What the broker calls of the Thrift-2 gateway of Apache HBase, shortened from hbase.thrift of
 * HBase 2.6.1 (Apache License 2.0; https://hbase.apache.org).
 *
 * Thrift names fields and arguments by number on the wire, and both sides skip what they do not know:
 * so what is not used here is left out, and the numbers are those of the original. A test compares
 * every line with the original in the jar of the HBase that the tests run.
 */

enum TDurability {
  USE_DEFAULT = 0,
  SKIP_WAL = 1,
  ASYNC_WAL = 2,
  SYNC_WAL = 3,
  FSYNC_WAL = 4
}

struct TColumnValue {
  1: required binary family,
  2: required binary qualifier,
  3: required binary value,
  4: optional i64 timestamp
}

struct TResult {
  1: optional binary row,
  2: required list<TColumnValue> columnValues
}

struct TColumn {
  1: required binary family,
  2: optional binary qualifier
}

struct TGet {
  1: required binary row
}

struct TPut {
  1: required binary row,
  2: required list<TColumnValue> columnValues,
  6: optional TDurability durability
}

struct TDelete {
  1: required binary row,
  7: optional TDurability durability
}

struct TScan {
  1: optional binary startRow,
  2: optional binary stopRow,
  3: optional list<TColumn> columns,
  4: optional i32 caching,
  7: optional binary filterString,
  11: optional bool reversed,
  12: optional bool cacheBlocks,
  15: optional i32 limit
}

struct TTableName {
  1: optional binary ns,
  2: required binary qualifier
}

struct TColumnFamilyDescriptor {
  1: required binary name,
  2: optional map<binary, binary> attributes,
  10: optional i32 maxVersions,
  13: optional i32 timeToLive
}

struct TTableDescriptor {
  1: required TTableName tableName,
  2: optional list<TColumnFamilyDescriptor> columns,
  3: optional map<binary, binary> attributes,
  4: optional TDurability durability
}

struct TNamespaceDescriptor {
  1: required string name
}

struct THRegionInfo {
  3: optional binary startKey
}

struct THRegionLocation {
  2: required THRegionInfo regionInfo
}

exception TIOError {
  1: optional string message,
  2: optional bool canRetry
}

enum TThriftServerType {
  ONE = 1,
  TWO = 2
}

service THBaseService {
  TResult get(1: required binary table, 2: required TGet tget) throws (1: TIOError io)

  void put(1: required binary table, 2: required TPut tput) throws (1: TIOError io)

  bool checkAndPut(
    1: required binary table,
    2: required binary row,
    3: required binary family,
    4: required binary qualifier,
    5: binary value,
    6: required TPut tput
  ) throws (1: TIOError io)

  void putMultiple(1: required binary table, 2: required list<TPut> tputs) throws (1: TIOError io)

  list<TDelete> deleteMultiple(
    1: required binary table,
    2: required list<TDelete> tdeletes
  ) throws (1: TIOError io)

  list<TResult> getScannerResults(
    1: required binary table,
    2: required TScan tscan,
    3: i32 numRows = 1
  ) throws (1: TIOError io)

  list<THRegionLocation> getAllRegionLocations(1: required binary table) throws (1: TIOError io)

  list<string> listNamespaces() throws (1: TIOError io)

  void createNamespace(1: required TNamespaceDescriptor namespaceDesc) throws (1: TIOError io)

  bool tableExists(1: TTableName tableName) throws (1: TIOError io)

  TTableDescriptor getTableDescriptor(1: required TTableName table) throws (1: TIOError io)

  void createTable(
    1: required TTableDescriptor desc,
    2: optional list<binary> splitKeys
  ) throws (1: TIOError io)

  void disableTable(1: required TTableName tableName) throws (1: TIOError io)

  TThriftServerType getThriftServerType()

  void deleteTable(1: required TTableName tableName) throws (1: TIOError io)
}

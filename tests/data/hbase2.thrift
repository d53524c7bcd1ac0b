/*
 * What the broker calls of the Thrift-2 gateway of Apache HBase, shortened from hbase.thrift of
 * HBase 2.6.1 (Apache License 2.0; https://hbase.apache.org).
 *
 * The broker has the numbers of it in broker/storage/hbase/requests.py; the tests read here what they
 * mean, and compare every line with the original in the jar of the HBase that they run.
 */

enum TDurability {
  USE_DEFAULT = 0,
  SKIP_WAL = 1,
  ASYNC_WAL = 2,
  SYNC_WAL = 3,
  FSYNC_WAL = 4
}

enum TDeleteType {
  DELETE_COLUMN = 0,
  DELETE_COLUMNS = 1,
  DELETE_FAMILY = 2,
  DELETE_FAMILY_VERSION = 3
}

enum TCompareOp {
  LESS = 0,
  LESS_OR_EQUAL = 1,
  EQUAL = 2,
  NOT_EQUAL = 3,
  GREATER_OR_EQUAL = 4,
  GREATER = 5,
  NO_OP = 6
}

struct TColumnValue {
  1: required binary family,
  2: required binary qualifier,
  3: required binary value,
  4: optional i64 timestamp,
  6: optional byte type
}

struct TResult {
  1: optional binary row,
  2: required list<TColumnValue> columnValues
}

struct TColumn {
  1: required binary family,
  2: optional binary qualifier,
  3: optional i64 timestamp
}

struct TGet {
  1: required binary row,
  2: optional list<TColumn> columns,
  6: optional binary filterString,
  12: optional i32 storeLimit
}

struct TPut {
  1: required binary row,
  2: required list<TColumnValue> columnValues,
  6: optional TDurability durability
}

struct TDelete {
  1: required binary row,
  2: optional list<TColumn> columns,
  3: optional i64 timestamp,
  4: optional TDeleteType deleteType = 1,
  7: optional TDurability durability
}

union TMutation {
  1: TPut put,
  2: TDelete deleteSingle
}

struct TRowMutations {
  1: required binary row,
  2: required list<TMutation> mutations
}

struct TScan {
  1: optional binary startRow,
  2: optional binary stopRow,
  3: optional list<TColumn> columns,
  4: optional i32 caching,
  11: optional bool reversed,
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

  bool checkAndMutate(
    1: required binary table,
    2: required binary row,
    3: required binary family,
    4: required binary qualifier,
    5: required TCompareOp compareOp,
    6: binary value,
    7: required TRowMutations rowMutations
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

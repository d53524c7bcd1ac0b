// The interface of Tephra's transaction service. Names and numbers are Tephra's, so that its clients work unchanged.
// tephra_service.py maps errors to these exceptions.

enum TTransactionType { SHORT = 1, LONG = 2 }

enum TVisibilityLevel { SNAPSHOT = 1, SNAPSHOT_EXCLUDE_CURRENT = 2, SNAPSHOT_ALL = 3 }

// Pointers are ascending. broker/wire/transaction.py encodes and decodes this struct.
struct TTransaction {
  1: i64 transactionId
  2: i64 readPointer
  3: list<i64> invalids
  4: list<i64> inProgress
  5: i64 firstShort
  6: TTransactionType type
  7: i64 writePointer
  8: list<i64> checkpointWritePointers
  9: TVisibilityLevel visibilityLevel
}

struct TBoolean { 1: bool value }

exception TTransactionNotInProgressException { 1: string message }
exception TTransactionConflictException {
  1: i64 transactionId
  2: string conflictingKey
  3: string conflictingClient
}
// The name of a Java class says which error it is.
exception TGenericException { 1: string message, 2: string originalExceptionClass }
exception TInvalidTruncateTimeException { 1: string message }
exception TTransactionCouldNotTakeSnapshotException { 1: string message }

service TTransactionServer {
  // For clients before releases 0.10 and 0.13. Errors without a declared exception are errors of the application.
  TTransaction startLong()
  TTransaction startShort()
  TTransaction startShortTimeout(1: i32 timeout)
  TBoolean canCommitTx(1: TTransaction tx, 2: set<binary> changes)
    throws (1: TTransactionNotInProgressException notInProgress)
  TBoolean commitTx(1: TTransaction tx)
    throws (1: TTransactionNotInProgressException notInProgress)

  // Time-outs are in seconds.
  TTransaction startLongClientId(1: string clientId) throws (1: TGenericException generic)
  TTransaction startShortClientId(1: string clientId) throws (1: TGenericException generic)
  TTransaction startShortWithTimeout(1: i32 timeout) throws (1: TGenericException generic)
  TTransaction startShortWithClientIdAndTimeOut(1: string clientId, 2: i32 timeout)
    throws (1: TGenericException generic)

  void canCommitOrThrow(1: i64 tx, 2: set<binary> changes) throws (
    1: TTransactionNotInProgressException notInProgress,
    2: TTransactionConflictException conflict,
    3: TGenericException generic
  )
  void commitOrThrow(1: i64 txId, 2: i64 wp) throws (
    1: TTransactionNotInProgressException notInProgress,
    2: TTransactionConflictException conflict,
    3: TGenericException generic
  )
  void abortTx(1: TTransaction tx)
  bool invalidateTx(1: i64 txid)
  TTransaction checkpoint(1: TTransaction tx)
    throws (1: TTransactionNotInProgressException notInProgress)

  // A snapshot of the service, in the format of tephra_snapshot.py.
  binary getSnapshot() throws (1: TTransactionCouldNotTakeSnapshotException noSnapshot)
  void resetState()
  string status()
  // True if any pointer was removed.
  TBoolean truncateInvalidTx(1: set<i64> txns)
  TBoolean truncateInvalidTxBefore(1: i64 time) throws (1: TInvalidTruncateTimeException tooLate)
  i32 invalidTxSize()
  void pruneNow()
}

"""Tephra's methods and their errors, compared with the answers of Tephra's own server."""

import io
from typing import Any

import pytest
from thriftpy2.protocol import binary
from thriftpy2.thrift import TApplicationException

from broker.errors import (
    BadRequest,
    BrokerError,
    ChangesTooLarge,
    NoLeader,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotInProgress,
)
from broker.model import Snapshot
from broker.operations.media_types import TEPHRA_SNAPSHOT
from broker.testing.virtual_time import VirtualClock, virtual_loop
from broker.transactions import tephra_frames as frames
from broker.transactions.hidden_messages import Unhiding
from broker.transactions.service_calls import ServiceCall
from broker.transactions.tephra_service import TephraAnswer, TephraBounds, TephraService
from broker.wire.transaction import decode_transaction
from tests.unit.tephra.fakes import Scripted
from tests.unit.tephra.vectors import VECTORS, Vector

IDL = frames.Idl()
NOT_IN_PROGRESS = TransactionNotInProgress("It is over.")
UNKNOWN = OutcomeUnknown("no answer")


class NothingHidden:
    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        return Snapshot(transaction_id=0, read_pointer=0)


def ask(
    request: bytes, transactions: Scripted, caller: str = "", *, reset_allowed: bool = True
) -> TephraAnswer:
    """Return the service's answer to one message."""
    with virtual_loop() as loop:
        service = TephraService(transactions, VirtualClock(loop), TephraBounds(5))
        service._unhiding = Unhiding(NothingHidden(), allowed=reset_allowed)
        head = frames.read_head(request)
        call = frames.read_call(service.idl, request, head, most=service.most)
        return loop.run_until_complete(service.answer(call, caller))


def message(method: str, **arguments: Any) -> bytes:
    """Return a call as thriftpy2's own client writes it."""
    out = io.BytesIO()
    binary.write_message_begin(out, method, 1, 7)
    args = getattr(IDL.module.TTransactionServer, f"{method}_args")(**arguments)
    binary.write_val(out, 12, args)
    return out.getvalue()


def result(answer: bytes, method: str) -> Any:
    """Return an answer as thriftpy2's own client reads it."""
    body = io.BytesIO(answer)
    name, kind, _ = binary.read_message_begin(body)
    assert name == method
    found = TApplicationException() if kind == 3 else IDL.result(method)
    binary.read_struct(body, found)
    assert not body.read()
    return found


def scripted(vector: Vector) -> Scripted:
    """Return a service that answers as Tephra's did."""
    told = result(vector.answer, vector.method)
    error = error_of(told)
    if error is not None:
        return Scripted(error)
    value = getattr(told, "success", None)
    if isinstance(value, IDL.module.TTransaction):
        body = vector.answer[8 + len(vector.method) + 4 + 3 :]
        return Scripted(decode_transaction(body))
    if vector.method == "canCommitTx":
        return Scripted(None if value.value else TransactionConflict("k"))
    if vector.method == "getSnapshot":
        start = 8 + len(vector.method) + 4 + 3 + 4
        return Scripted(vector.answer[start:-1])
    return Scripted(int(value.value) if isinstance(value, IDL.module.TBoolean) else value)


def error_of(told: Any) -> BrokerError | None:
    if isinstance(told, TApplicationException):
        return NoLeader(told.message or "")
    thrown = [
        value
        for number, spec in told.thrift_spec.items()
        if number and (value := getattr(told, spec[1])) is not None
    ]
    if not thrown:
        return None
    name = type(thrown[0]).__name__
    if name == "TTransactionConflictException":
        return TransactionConflict(thrown[0].conflictingKey)
    if name == "TTransactionNotInProgressException":
        return TransactionNotInProgress(thrown[0].message)
    return BadRequest(thrown[0].message)


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_answers_have_the_bytes_of_tephra_s(number: int) -> None:
    vector = VECTORS[number]
    script = scripted(vector)
    answer = ask(vector.request, script)
    expected = vector.answer
    if b"\x0b\x00\x03\x00\x00\x00\x04java" in expected:
        # The service does not know the other client of a conflict.
        expected = expected.replace(b"\x0b\x00\x03\x00\x00\x00\x04java", b"")
    assert answer.frame[4:] == expected
    assert int.from_bytes(answer.frame[:4], "big") == len(expected)


def test_there_is_a_vector_of_every_method() -> None:
    assert {vector.method for vector in VECTORS} == set(IDL.methods)


def transaction(**numbers: int) -> Any:
    return IDL.module.TTransaction(**numbers)


def on(name: str, transaction: int = 7, **sent: Any) -> ServiceCall:
    return ServiceCall(f"{name}_transaction", sent, transaction)


def beginning(**sent: Any) -> ServiceCall:
    return on("start", 0, **sent)


def truncating(**sent: Any) -> ServiceCall:
    return ServiceCall("truncate_transactions", sent)


COUNTING = ServiceCall("list_transactions", limit=0)
CALLS = [
    ("startShort", {}, beginning()),
    ("startLong", {}, beginning(type="long")),
    ("startLongClientId", {"clientId": "c"}, beginning(type="long", client="c")),
    ("startShortClientId", {"clientId": "c"}, beginning(client="c")),
    ("startShortTimeout", {"timeout": 5}, beginning(timeout_s=5)),
    ("startShortWithTimeout", {"timeout": -1}, beginning(timeout_s=-1)),
    (
        "startShortWithClientIdAndTimeOut",
        {"clientId": "c", "timeout": 5},
        beginning(client="c", timeout_s=5),
    ),
    ("canCommitOrThrow", {"tx": 7, "changes": [b"\xff"]}, on("can_commit", changes=[b"\xff"])),
    ("commitOrThrow", {"txId": 7, "wp": 8}, on("commit", write_pointer=8)),
    ("invalidateTx", {"txid": 7}, on("invalidate")),
    ("truncateInvalidTx", {"txns": [2]}, truncating(ids=[2])),
    ("truncateInvalidTxBefore", {"time": 9}, truncating(before_ms=9)),
    ("invalidTxSize", {}, COUNTING),
    ("status", {}, COUNTING),
    ("resetState", {}, ServiceCall("reset_transactions")),
    ("getSnapshot", {}, ServiceCall("transactions_snapshot", accept=TEPHRA_SNAPSHOT)),
    (
        "canCommitTx",
        {"tx": transaction(transactionId=7), "changes": [b"a"]},
        on("can_commit", changes=[b"a"]),
    ),
    (
        "commitTx",
        {"tx": transaction(transactionId=7, writePointer=8)},
        on("commit", write_pointer=8),
    ),
    ("abortTx", {"tx": transaction(transactionId=7, writePointer=8)}, on("abort")),
    ("checkpoint", {"tx": transaction(transactionId=7)}, on("checkpoint")),
]


@pytest.mark.parametrize(("method", "arguments", "called"), CALLS, ids=[call[0] for call in CALLS])
def test_each_method_calls_the_service(
    method: str, arguments: dict[str, Any], called: ServiceCall
) -> None:
    script = Scripted(1 if method != "getSnapshot" else b"")
    ask(message(method, **arguments), script)
    assert script.calls == [called]


ERRORS = [
    ("commitOrThrow", NOT_IN_PROGRESS, "TTransactionNotInProgressException", ""),
    ("checkpoint", NOT_IN_PROGRESS, "TTransactionNotInProgressException", ""),
    ("commitTx", NOT_IN_PROGRESS, "TTransactionNotInProgressException", ""),
    ("canCommitOrThrow", TransactionConflict("k"), "TTransactionConflictException", ""),
    (
        "canCommitOrThrow",
        ChangesTooLarge("much"),
        "TGenericException",
        "org.apache.tephra.TransactionSizeException",
    ),
    (
        "startShortWithTimeout",
        BadRequest("bad"),
        "TGenericException",
        "java.lang.IllegalArgumentException",
    ),
    ("startShortTimeout", BadRequest("bad"), "TApplicationException", ""),
    ("startShortWithTimeout", NoLeader("none"), "TApplicationException", ""),
    ("startShortWithTimeout", UNKNOWN, "TApplicationException", ""),
    ("commitOrThrow", NoLeader("none"), "TApplicationException", ""),
    ("abortTx", UNKNOWN, "TApplicationException", ""),
    ("truncateInvalidTxBefore", BadRequest("bad"), "TInvalidTruncateTimeException", ""),
    ("getSnapshot", NoLeader("none"), "TTransactionCouldNotTakeSnapshotException", ""),
]


@pytest.mark.parametrize(("method", "error", "name", "original"), ERRORS)
def test_each_error_has_its_exception(
    method: str, error: BrokerError, name: str, original: str
) -> None:
    told = result(ask(message(method), Scripted(error)).frame[4:], method)
    if name == "TApplicationException":
        assert (told.type, told.message) == (TApplicationException.INTERNAL_ERROR, error.message)
        return
    (thrown,) = [each for each in vars(told).values() if each is not None]
    assert type(thrown).__name__ == name
    assert getattr(thrown, "originalExceptionClass", "") == original
    assert getattr(thrown, "message", error.message) == error.message


def test_the_old_methods_answer_false_to_a_refusal() -> None:
    for error in (TransactionConflict("k"), ChangesTooLarge("much")):
        told = result(ask(message("canCommitTx"), Scripted(error)).frame[4:], "canCommitTx")
        assert told.success.value is False
    told = result(
        ask(message("commitTx"), Scripted(TransactionConflict("k"))).frame[4:], "commitTx"
    )
    assert told.success.value is False


def test_a_client_needs_a_name() -> None:
    told = result(ask(message("startShortClientId"), Scripted()).frame[4:], "startShortClientId")
    assert told.generic.originalExceptionClass == "java.lang.IllegalArgumentException"


def test_the_status_is_not_ok_without_a_leader() -> None:
    told = result(ask(message("status"), Scripted(NoLeader("none"))).frame[4:], "status")
    assert told.success == "NOTOK"


def test_the_text_of_an_unexpected_error_is_not_sent() -> None:
    async def broken() -> None:
        raise ValueError("secret")

    told = result(ask(message("startShort"), Scripted(broken)).frame[4:], "startShort")
    assert "secret" not in told.message


def test_an_answer_that_java_would_not_read_is_an_error() -> None:
    script = Scripted(bytes(frames.ANSWER_BYTES_MAX))
    told = result(ask(message("getSnapshot"), script).frame[4:], "getSnapshot")
    assert "reads at most" in told.noSnapshot.message


def test_a_snapshot_shows_the_outcome_of_an_unknown_invalidation() -> None:
    snapshot = Snapshot(transaction_id=0, read_pointer=9, invalids=[7])
    for second, expected in ((True, True), (False, True)):
        script = Scripted(UNKNOWN, second, snapshot)
        told = result(ask(message("invalidateTx", txid=7), script).frame[4:], "invalidateTx")
        assert told.success is expected
    script = Scripted(UNKNOWN, False, Snapshot(transaction_id=0, read_pointer=9))
    told = result(ask(message("invalidateTx", txid=7), script).frame[4:], "invalidateTx")
    assert told.success is False


@pytest.mark.parametrize(
    ("request_", "committed"),
    [
        (message("commitOrThrow", txId=7, wp=7), 7),
        (message("commitTx", tx=transaction(transactionId=7)), 7),
        (message("abortTx", tx=transaction(transactionId=7)), None),
    ],
)
def test_an_answer_names_the_transaction_that_it_committed(
    request_: bytes, committed: int | None
) -> None:
    assert ask(request_, Scripted()).committed == committed


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("resetState", "TApplicationException"),
        ("truncateInvalidTx", "TApplicationException"),
        ("truncateInvalidTxBefore", "TInvalidTruncateTimeException"),
    ],
)
def test_a_call_that_shows_hidden_messages_is_refused_unless_allowed(
    method: str, name: str
) -> None:
    script = Scripted()
    answer = ask(message(method), script, reset_allowed=False)
    told = result(answer.frame[4:], method)
    if name != "TApplicationException":
        (told,) = [each for each in vars(told).values() if each is not None]
    assert (type(told).__name__, answer.code, script.calls) == (name, "not_allowed", [])
    assert "--transactions-reset-allowed true" in told.message


@pytest.mark.parametrize("method", ["startShort", "startLong"])
def test_a_start_counts_for_its_caller(method: str) -> None:
    script = Scripted(Snapshot(transaction_id=7, read_pointer=6))
    ask(message(method), script, "10.0.0.1")
    assert [call.caller for call in script.calls] == ["10.0.0.1"]


def test_the_default_of_the_port_is_off() -> None:
    assert not TephraBounds().reset_allowed

"""Tephra's methods: each calls the transaction service. Errors become the ones that Tephra's client expects.

::

    error                                  where the method declares it                      else
    not in progress                        TTransactionNotInProgressException                an error of the application
    conflict                               TTransactionConflictException                     canCommitTx, commitTx: false
    change set too large                   TGenericException of TransactionSizeException     canCommitTx: false
    bad time-out or name                   TGenericException of IllegalArgumentException     an error of the application
    truncation above one in progress       TInvalidTruncateTimeException                     -
    not allowed by the configuration       TInvalidTruncateTimeException                     an error of the application
    no leader, overloaded, unknown         getSnapshot: TTransactionCouldNotTakeSnapshot…    an error of the application

An error of the application is a TApplicationException, *internal error*. Tephra's client repeats the call after it, as
after a lost connection, but logs its message. Repeating is right if the call was not done. If it was done, repeating is
harmless for most calls. The first transaction of a repeated start times out. A repeated checkpoint leaves one more
pointer. The other calls have the same effect twice as once. The exceptions are commit and invalidate. For commit, see
tephra_commits.py. If the outcome of an invalidate is unknown, this module itself repeats it, and looks for the transaction
in a snapshot if the repeat returns false. But if a client repeats an invalidate that was done, because it lost the answer,
this module returns false, as Tephra's server does: the transaction was no longer in progress.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from broker import logs
from broker.clock import Clock
from broker.errors import (
    BadRequest,
    BodyTooLarge,
    BrokerError,
    ChangesTooLarge,
    NotAllowed,
    OutcomeUnknown,
    RequestError,
    TransactionConflict,
    TransactionNotInProgress,
)
from broker.operations.media_types import TEPHRA_SNAPSHOT
from broker.transactions import tephra_frames as frames
from broker.transactions.hidden_messages import Unhiding
from broker.transactions.service_calls import AskedService, ServiceCall
from broker.transactions.tephra_commits import Commits

ILLEGAL_ARGUMENT: Final = "java.lang.IllegalArgumentException"
TOO_LARGE: Final = "org.apache.tephra.TransactionSizeException"
KEY_SHOWN: Final = 256
"""How many bytes of a key an error shows."""
COUNT_MAX: Final = (1 << 31) - 1

log = logs.get_logger()


class TephraAnswer(NamedTuple):
    """The frame that answers a call.

    ``code`` is the error's code, or "ok". ``committed`` is the transaction that the call committed, if it is a commit.
    """

    frame: bytes
    code: str
    committed: int | None = None


class TephraBounds(NamedTuple):
    """The settings. After ``deadline_s`` in doubt, the client of a commit gets the error that its outcome is unknown."""

    deadline_s: float = 30.0
    most: frames.Most = frames.MOST
    reset_allowed: bool = False


OK: Final = "ok"


class TephraService:
    """Answers calls. ``answer`` raises no error that a client can cause."""

    def __init__(self, service: AskedService, clock: Clock, bounds: TephraBounds) -> None:
        """Keep the transaction service and the bounds."""
        self.idl = frames.Idl()
        self.commits = Commits(service, clock, bounds.deadline_s)
        self.most = bounds.most
        self.service = service
        self._unhiding = Unhiding(service, allowed=bounds.reset_allowed)
        self._methods = _methods(self)

    async def answer(self, call: frames.TephraCall, caller: str = "") -> TephraAnswer:
        """Execute a call of a client, and return its answer. ``caller`` is the client's address."""
        method, transaction = call.method, _transaction(call.method, call.arguments)
        try:
            if method in _UNHIDING:
                await self._unhiding.check(_UNHIDING[method], caller)
            # A start counts for its caller, and an abort may be logged, so the function is made for the call.
            known = self._methods.get(method) or _by_caller(self.service, caller)[method]
            value = await known(call.arguments)
            frame = frames.encode_returned(self.idl, call, value)
        except BrokerError as error:
            if error.outcome == "unknown":
                log.warning("outcome unknown", method=method, error=error.message, caller=caller)
            return self.failed(call, error, transaction)
        except Exception as error:
            log.exception("unexpected error", method=method, caller=caller)
            return self.failed(call, BrokerError(f"An unexpected error: {type(error).__name__}"))
        return TephraAnswer(frame, OK, committed=transaction if method in _COMMITS else None)

    def failed(
        self, call: frames.FrameHead | frames.TephraCall, error: BrokerError, transaction: int = 0
    ) -> TephraAnswer:
        """Return the answer for an error."""
        declared = _declared_exception(call.method, error, transaction)
        frame = None
        if declared is not None:
            name, fields = declared
            thrown = getattr(self.idl.module, name)(**fields)
            frame = frames.encode_thrown(self.idl, call, thrown)
        if frame is None:
            frame = frames.encode_failed(call, frames.INTERNAL_ERROR, error.message)
        return TephraAnswer(frame, error.code)

    async def invalidated(self, transaction: int) -> bool:
        """Make a transaction invalid. Return whether it was in progress, even if the outcome of the first try is unknown."""
        call = ServiceCall("invalidate_transaction", of=transaction)
        try:
            told = await self.service.ask(call)
        except OutcomeUnknown:
            told = await self.service.ask(call)
            if not told["invalidated"]:
                invalids = (await self.service.snapshot()).invalids
                at = bisect_left(invalids, transaction)
                return at < len(invalids) and invalids[at] == transaction
        return bool(told["invalidated"])


def _declared_exception(
    method: str, error: BrokerError, transaction: int
) -> tuple[str, dict[str, object]] | None:
    """Return the name and the fields of the exception for an error; None if no declared exception fits."""
    told: dict[str, object] = {"message": error.message}
    if method == "getSnapshot":
        return "TTransactionCouldNotTakeSnapshotException", told
    if method == "truncateInvalidTxBefore" and isinstance(error, BadRequest | NotAllowed):
        return "TInvalidTruncateTimeException", told
    if isinstance(error, TransactionNotInProgress):
        return "TTransactionNotInProgressException", told
    if isinstance(error, TransactionConflict):
        key = error.message if error.key is None else shown(error.key)
        conflict = {"transactionId": transaction, "conflictingKey": key}
        return "TTransactionConflictException", conflict
    if not isinstance(error, RequestError):
        return None
    too_large = isinstance(error, ChangesTooLarge | BodyTooLarge)
    told["originalExceptionClass"] = TOO_LARGE if too_large else ILLEGAL_ARGUMENT
    return "TGenericException", told


def shown(key: bytes) -> str:
    """Return a key of a change set as Tephra shows it: printable ASCII as text, other bytes in hex."""
    return "".join(
        chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02X}" for byte in key[:KEY_SHOWN]
    )


Arguments = Mapping[int, Any]
Method = Callable[[Arguments], Awaitable[object]]

_TRANSACTION_ID: Final = 1
_WRITE_POINTER: Final = 7
_COMMITS: Final = frozenset({"commitTx", "commitOrThrow"})
_UNHIDING: Final = {
    "resetState": "reset",
    "truncateInvalidTx": "truncation",
    "truncateInvalidTxBefore": "truncation",
}


def _number(arguments: Arguments, field: int = 1) -> int:
    found = arguments.get(field, 0)
    return found if isinstance(found, int) else 0


def _id(arguments: Arguments) -> int:
    """Return the id of the transaction that a call has first: alone, or in a TTransaction."""
    found = arguments.get(1)
    return _number(found, _TRANSACTION_ID) if isinstance(found, dict) else _number(arguments)


def _transaction(method: str, arguments: Arguments) -> int:
    """Return the id of the call's transaction; 0 if the call has none."""
    has_one = method in _BY_ID or isinstance(arguments.get(1), dict)
    return _id(arguments) if has_one else 0


_BY_ID: Final = frozenset({"canCommitOrThrow", "commitOrThrow", "invalidateTx"})


def _client(arguments: Arguments) -> str:
    found = arguments.get(1)
    if found is None:
        raise BadRequest("clientId must not be null.")
    if not isinstance(found, str):
        raise BadRequest("clientId must be UTF-8.")
    return found


def _methods(service: TephraService) -> dict[str, Method]:
    """Return the function of each method but those of ``_by_caller``, by the method's name."""
    return {**_ends(service), **_asks(service)}


def _by_caller(service: AskedService, caller: str) -> dict[str, Method]:
    """Return the functions of the methods that begin or abort a transaction, for a client at this address."""

    async def begin(**sent: Any) -> object:
        return await service.ask(ServiceCall("start_transaction", sent, caller=caller))

    async def start(_: Arguments) -> object:
        return await begin()

    async def start_long(_: Arguments) -> object:
        return await begin(type="long")

    async def start_long_as(arguments: Arguments) -> object:
        return await begin(type="long", client=_client(arguments))

    async def start_as(arguments: Arguments) -> object:
        return await begin(client=_client(arguments))

    async def start_for(arguments: Arguments) -> object:
        return await begin(timeout_s=_number(arguments))

    async def start_as_for(arguments: Arguments) -> object:
        return await begin(client=_client(arguments), timeout_s=_number(arguments, 2))

    async def abort(arguments: Arguments) -> None:
        await service.ask(ServiceCall("abort_transaction", of=_id(arguments), caller=caller))

    return {
        "abortTx": abort,
        "startShort": start,
        "startLong": start_long,
        "startLongClientId": start_long_as,
        "startShortClientId": start_as,
        "startShortTimeout": start_for,
        "startShortWithTimeout": start_for,
        "startShortWithClientIdAndTimeOut": start_as_for,
    }


def _allowed(method: Method, boolean: Any, *refusals: type[BrokerError]) -> Method:
    """Return a method that returns whether the service does not refuse the call with one of these errors."""

    async def told(arguments: Arguments) -> object:
        try:
            await method(arguments)
        except refusals:
            return boolean(value=False)
        return boolean(value=True)

    return told


def _ends(service: TephraService) -> dict[str, Method]:
    boolean = service.idl.module.TBoolean

    async def ask(name: str, transaction: int, **sent: Any) -> object:
        return await service.service.ask(ServiceCall(name, sent, transaction))

    async def can_commit(arguments: Arguments) -> None:
        await ask("can_commit_transaction", _id(arguments), changes=arguments.get(2) or [])

    async def commit(arguments: Arguments) -> None:
        await service.commits.commit(_id(arguments), arguments.get(2))

    async def commit_tx(arguments: Arguments) -> None:
        pointer = arguments.get(1, {}).get(_WRITE_POINTER)
        await service.commits.commit(_id(arguments), pointer)

    async def invalidate(arguments: Arguments) -> bool:
        return await service.invalidated(_id(arguments))

    async def checkpoint(arguments: Arguments) -> object:
        return await ask("checkpoint_transaction", _id(arguments))

    return {
        "canCommitTx": _allowed(can_commit, boolean, TransactionConflict, ChangesTooLarge),
        "canCommitOrThrow": can_commit,
        "commitTx": _allowed(commit_tx, boolean, TransactionConflict),
        "commitOrThrow": commit,
        "invalidateTx": invalidate,
        "checkpoint": checkpoint,
    }


_COUNTS: Final = ServiceCall("list_transactions", limit=0)


def _asks(service: TephraService) -> dict[str, Method]:
    ask = service.service.ask
    boolean = service.idl.module.TBoolean

    async def get_snapshot(_: Arguments) -> object:
        return await ask(ServiceCall("transactions_snapshot", accept=TEPHRA_SNAPSHOT))

    async def reset_state(_: Arguments) -> None:
        await ask(ServiceCall("reset_transactions"))

    async def status(_: Arguments) -> str:
        try:
            await ask(_COUNTS)
        except BrokerError:
            return "NOTOK"
        return "OK"

    async def removed(**sent: Any) -> object:
        told = await ask(ServiceCall("truncate_transactions", sent))
        return boolean(value=told["removed"] > 0)

    async def truncate(arguments: Arguments) -> object:
        return await removed(ids=arguments.get(1) or [])

    async def truncate_before(arguments: Arguments) -> object:
        return await removed(before_ms=_number(arguments))

    async def invalid_size(_: Arguments) -> int:
        told = await ask(_COUNTS)
        return min(int(told["invalid"]), COUNT_MAX)

    async def prune_now(_: Arguments) -> None:
        """Do nothing, like Tephra's service without a plugin for pruning. Use ``broker tx prune`` instead."""

    return {
        "getSnapshot": get_snapshot,
        "resetState": reset_state,
        "status": status,
        "truncateInvalidTx": truncate,
        "truncateInvalidTxBefore": truncate_before,
        "invalidTxSize": invalid_size,
        "pruneNow": prune_now,
    }

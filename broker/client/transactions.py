"""The transaction service over HTTP: the calls of ``/v1/transactions``, one method each.

Whether a call may be sent again after a lost answer decides how long the client retries it::

    start, checkpoint     a repetition makes a second transaction, or pointer, that stays unused: repeatable
    can-commit, abort, invalidate, truncate, reset, prune     a repetition has no further effect: repeatable
    snapshot, list, show                               no effect: reading
    commit      the second one would be answered "not in progress", which hides the success of the first:
                never sent again, so its outcome may be unknown. A fresh snapshot shows the outcome.

Every error is one of ``broker.errors``. Its ``outcome`` says whether the call certainly had no effect.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from broker.client import answer_shapes, protocol
from broker.client.calls import Calls
from broker.client.protocol import ClientRequest, Reply
from broker.errors import BadRequest
from broker.model import Snapshot
from broker.operations.media_types import JSON, THRIFT
from broker.wire.snapshotjson import decode_snapshot
from broker.wire.transaction import decode_transaction

T = TypeVar("T")

_PATH: Final = "/v1/transactions"
NAME_EPOCH: Final = "broker-name-epoch"
_CHANGING: Final = {"Content-Type": JSON, "Accept": JSON}


class TransactionService:
    """The broker's transaction service; ``client.transactions`` is an object of this class.

    Every method raises a BrokerError: NoLeader or Unavailable while no node leads the service (nothing was done),
    OutcomeUnknown if the call may have been done.
    """

    def __init__(self, calls: Calls, epochs: dict[str, str] | None = None) -> None:
        self._calls = calls
        self._epochs = {} if epochs is None else epochs
        """The epoch of each name that this client owns."""

    async def start(
        self,
        *,
        long: bool = False,
        timeout_s: float | None = None,
        client: str = "",
        name: str = "",
    ) -> Snapshot:
        """Start a transaction.

        Args:
            long: whether it may take long. The service remembers changes only for short transactions, so a long one
                may miss a conflict.
            timeout_s: after how many seconds it becomes invalid; by default 30 seconds, or a day for a long one.
            client: a text that names its owner for people, in the list of transactions.
            name: the name under which it runs; see ``Client.transaction``.

        Returns:
            The transaction: its id, and its snapshot.

        Raises:
            BadRequest: the time-out is not positive, or longer than the service allows.
            TransactionFenced: another client has begun a transaction under the name since this one did.
        """
        asked: dict[str, object] = {"type": "long"} if long else {}
        if timeout_s is not None:
            asked["timeout_s"] = timeout_s
        if client:
            asked["client"] = client
        if name:
            asked["name"] = name
            if name in self._epochs:
                asked["epoch"] = self._epochs[name]
        headers = {"Accept": THRIFT, **({"Content-Type": JSON} if asked else {})}
        body = json.dumps(asked).encode() if asked else b""

        def read(reply: Reply) -> Snapshot:
            if name and NAME_EPOCH in reply.headers:
                self._epochs[name] = reply.headers[NAME_EPOCH]
            return _snapshot(reply)

        return await self._write(_PATH, body, headers, read)

    async def can_commit(self, transaction_id: int, changes: Collection[bytes] = ()) -> None:
        """Give the service the keys that the transaction changed, and check that it may be committed.

        Raises:
            TransactionConflict: a transaction that was committed since this one began changed a key, too.
            TransactionNotInProgress: it has ended, or has timed out.
            ChangesTooLarge: there are too many keys, or they are too large.
        """
        keys = [base64.b64encode(key).decode() for key in changes]
        await self._change(transaction_id, "can-commit", _nothing, {"changes": keys})

    async def commit(self, transaction_id: int, write_pointer: int | None = None) -> None:
        """Commit a transaction. The client sends this request only once.

        Args:
            transaction_id: the transaction's id.
            write_pointer: its last write pointer, if it has checkpoints.

        Raises:
            TransactionConflict, TransactionNotInProgress: this call did not commit it.
            OutcomeUnknown: it may be committed; a fresh ``snapshot`` shows the outcome.
        """
        asked = {} if write_pointer is None else {"write_pointer": str(write_pointer)}
        await self._change(transaction_id, "commit", _nothing, asked, repeatable=False)

    async def abort(self, transaction_id: int) -> None:
        """Abort a transaction whose changes are all certainly undone.

        The pointers of a short transaction become visible. A long one becomes invalid.
        """
        await self._change(transaction_id, "abort", _nothing)

    async def invalidate(self, transaction_id: int) -> bool:
        """Make a transaction invalid: consumers in transactions skip its messages for good.

        Returns:
            Whether it was in progress, according to the answer to the last attempt.
        """
        return await self._change(transaction_id, "invalidate", _invalidated)

    async def checkpoint(self, transaction_id: int) -> Snapshot:
        """Return the transaction with a further write pointer. Raises TransactionNotInProgress."""
        path = f"{_of(transaction_id)}/checkpoint"
        return await self._write(path, b"", {"Accept": THRIFT}, _snapshot)

    async def snapshot(self) -> Snapshot:
        """Return the snapshot of a transaction that begins now, without starting one."""
        request = protocol.read("GET", f"{_PATH}/snapshot", {"Accept": THRIFT})
        return await self._calls.ask(request, _snapshot)

    async def list(self, *, limit: int | None = None) -> dict[str, Any]:
        """Return the state of the service, as the JSON object of ``GET /v1/transactions``.

        ``in_progress`` has at most ``limit`` transactions, the oldest first; the other members are figures. Numbers of
        transactions are strings of digits.
        """
        query = "" if limit is None else "?" + urlencode({"limit": limit})
        return await self._read(_PATH + query, answer_shapes.TRANSACTIONS)

    async def show(self, transaction_id: int) -> dict[str, Any]:
        """Return one transaction in the service's form. Raises NotFound."""
        return await self._read(_of(transaction_id), answer_shapes.TRANSACTION)

    async def truncate(
        self, *, ids: Collection[int] | None = None, before_ms: int | None = None
    ) -> int:
        """Forget invalid transactions: from now on their pointers are visible. They must have no messages left.

        Args:
            ids: the transactions; or
            before_ms: all that began before that moment, in ms since 1970.

        Returns:
            The number of forgotten transactions.

        Raises:
            ValueError: both are given, or neither.
            NotAllowed: the broker was not started with ``transactions_reset_allowed``.
            BadRequest: a transaction that began before that moment is in progress.
        """
        if (ids is None) == (before_ms is None):
            raise ValueError("Give either ids or before_ms.")
        asked: dict[str, object] = (
            {"before_ms": before_ms} if ids is None else {"ids": [str(each) for each in ids]}
        )
        body = json.dumps(asked).encode()
        return await self._write(f"{_PATH}/truncate", body, _CHANGING, _removed)

    async def reset(self) -> dict[str, Any]:
        """Forget all transactions: from now on all their messages are visible, committed or not.

        Returns:
            ``in_progress`` and ``invalid``: how many transactions and invalid pointers were forgotten.

        Raises:
            NotAllowed: the broker was not started with ``transactions_reset_allowed``.
        """
        read = answer_shapes.read_as(answer_shapes.RESET)
        return await self._write(f"{_PATH}/reset", b"", {"Accept": JSON}, read)

    async def prune_plan(self, *, through: int | None = None) -> dict[str, Any]:
        """Return which invalid transactions may be forgotten, and why not more: ``GET /v1/transactions/prune``.

        Args:
            through: the highest pointer to include.
        """
        return await self._read(_prune(through), answer_shapes.PRUNE_PLAN)

    async def prune(self, *, through: int | None = None) -> dict[str, Any]:
        """Forget the invalid transactions that have no messages left in any topic.

        Unlike ``truncate`` it lets the broker choose them. Returns the plan, and the number ``removed``.
        """
        read = answer_shapes.read_as(answer_shapes.PRUNED)
        return await self._write(_prune(through), b"", {"Accept": JSON}, read)

    # --- Inside -----------------------------------------------------------------------------------

    async def _change(
        self,
        transaction_id: int,
        action: str,
        read: Callable[[Reply], T],
        asked: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
    ) -> T:
        headers = _CHANGING if asked else {"Accept": JSON}
        body = json.dumps(asked).encode() if asked else b""
        path = f"{_of(transaction_id)}/{action}"
        return await self._write(path, body, headers, read, repeatable=repeatable)

    async def _write(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        read: Callable[[Reply], T],
        *,
        repeatable: bool = True,
    ) -> T:
        request = ClientRequest("POST", path, headers, body, repeatable=repeatable)
        return await self._calls.ask(request, read)

    async def _read(self, path: str, shape: object) -> dict[str, Any]:
        request = protocol.read("GET", path, {"Accept": JSON})
        return await self._calls.ask(request, answer_shapes.read_as(shape))


def _prune(through: int | None) -> str:
    return f"{_PATH}/prune" + ("" if through is None else f"?through={through}")


def _of(transaction_id: int) -> str:
    if transaction_id < 1:
        raise BadRequest(f"A transaction's id is a number above 0, not {transaction_id}.")
    return f"{_PATH}/{transaction_id}"


def _nothing(reply: Reply) -> None:
    """Check that the body is ``{}``. Raises ValueError: another server's object, or none, ends no transaction."""
    if protocol.json_object(reply):
        raise ValueError("fields that no broker sends")


def _invalidated(reply: Reply) -> bool:
    told = answer_shapes.read_as({"invalidated": bool})(reply)
    return told["invalidated"] is True


def _removed(reply: Reply) -> int:
    return int(answer_shapes.read_as({"removed": int})(reply)["removed"])


def _snapshot(reply: Reply) -> Snapshot:
    """Return the snapshot in an answer, in either form."""
    if reply.headers.get("content-type", "").startswith(THRIFT):
        return decode_transaction(reply.body)
    return decode_snapshot(protocol.json_object(reply))

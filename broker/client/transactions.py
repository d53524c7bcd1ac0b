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
from collections.abc import Collection
from typing import Any, Final

from broker.client.calls import Calls
from broker.client.client_request import ClientRequest, Reply, json_object, read_as, request_for
from broker.errors import BadRequest
from broker.model import Snapshot
from broker.operations.media_types import THRIFT
from broker.operations.parameters import NAME_EPOCH
from broker.wire.transaction import decode_snapshot, decode_transaction

_NAME_EPOCH: Final = NAME_EPOCH.lower()
_THRIFT: Final = {"Accept": THRIFT}


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

        def read(reply: Reply) -> Snapshot:
            if name and _NAME_EPOCH in reply.headers:
                self._epochs[name] = reply.headers[_NAME_EPOCH]
            return _snapshot(reply)

        # A repetition makes a second transaction, which stays unused.
        request = request_for(
            "start_transaction", headers=_THRIFT, sent=asked or None, repeatable=True
        )
        return await self._calls.ask(request, read)

    async def can_commit(self, transaction_id: int, changes: Collection[bytes] = ()) -> None:
        """Give the service the keys that the transaction changed, and check that it may be committed.

        Raises:
            TransactionConflict: a transaction that was committed since this one began changed a key, too.
            TransactionNotInProgress: it has ended, or has timed out.
            ChangesTooLarge: there are too many keys, or they are too large.
        """
        keys = [base64.b64encode(key).decode() for key in changes]
        request = _of("can_commit_transaction", transaction_id, sent={"changes": keys})
        await self._calls.ask(request, _nothing)

    async def commit(self, transaction_id: int, write_pointer: int | None = None) -> None:
        """Commit a transaction. The client sends this request only once.

        Args:
            transaction_id: the transaction's id.
            write_pointer: its last write pointer, if it has checkpoints.

        Raises:
            TransactionConflict, TransactionNotInProgress: this call did not commit it.
            OutcomeUnknown: it may be committed; a fresh ``snapshot`` shows the outcome.
        """
        sent = None if write_pointer is None else {"write_pointer": str(write_pointer)}
        await self._calls.ask(_of("commit_transaction", transaction_id, sent=sent), _nothing)

    async def abort(self, transaction_id: int) -> None:
        """Abort a transaction whose changes are all certainly undone.

        The pointers of a short transaction become visible. A long one becomes invalid.
        """
        await self._calls.ask(_of("abort_transaction", transaction_id), _nothing)

    async def invalidate(self, transaction_id: int) -> bool:
        """Make a transaction invalid: consumers in transactions skip its messages for good.

        Returns:
            Whether it was in progress, according to the answer to the last attempt.
        """
        told = await self._asked(_of("invalidate_transaction", transaction_id))
        return told["invalidated"] is True

    async def checkpoint(self, transaction_id: int) -> Snapshot:
        """Return the transaction with a further write pointer. Raises TransactionNotInProgress."""
        # A repetition makes a second pointer, which stays unused.
        request = _of("checkpoint_transaction", transaction_id, headers=_THRIFT, repeatable=True)
        return await self._calls.ask(request, _snapshot)

    async def snapshot(self) -> Snapshot:
        """Return the snapshot of a transaction that begins now, without starting one."""
        request = request_for("transactions_snapshot", headers=_THRIFT)
        return await self._calls.ask(request, _snapshot)

    async def list(self, *, limit: int | None = None) -> dict[str, Any]:
        """Return the state of the service, as the JSON object of ``GET /v1/transactions``.

        ``in_progress`` has at most ``limit`` transactions, the oldest first; the other members are figures. Numbers of
        transactions are strings of digits.
        """
        return await self._asked(request_for("list_transactions", query={"limit": limit}))

    async def show(self, transaction_id: int) -> dict[str, Any]:
        """Return one transaction in the service's form. Raises NotFound."""
        return await self._asked(_of("show_transaction", transaction_id))

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
        told = await self._asked(request_for("truncate_transactions", sent=asked))
        return int(told["removed"])

    async def reset(self) -> dict[str, Any]:
        """Forget all transactions: from now on all their messages are visible, committed or not.

        Returns:
            ``in_progress`` and ``invalid``: how many transactions and invalid pointers were forgotten.

        Raises:
            NotAllowed: the broker was not started with ``transactions_reset_allowed``.
        """
        return await self._asked(request_for("reset_transactions"))

    async def prune_plan(self, *, through: int | None = None) -> dict[str, Any]:
        """Return which invalid transactions may be forgotten, and why not more: ``GET /v1/transactions/prune``.

        Args:
            through: the highest pointer to include.
        """
        return await self._asked(request_for("prune_plan", query={"through": through}))

    async def prune(self, *, through: int | None = None) -> dict[str, Any]:
        """Forget the invalid transactions that have no messages left in any topic.

        Unlike ``truncate`` it lets the broker choose them. Returns the plan, and the number ``removed``.
        """
        query = {"through": through}
        return await self._asked(request_for("prune_transactions", query=query))

    # --- Inside -----------------------------------------------------------------------------------

    async def _asked(self, request: ClientRequest) -> dict[str, Any]:
        return await self._calls.ask(request, read_as(request.answer))


def _of(name: str, transaction_id: int, **parts: Any) -> ClientRequest:
    """Return a request about one transaction. Raises BadRequest."""
    if transaction_id < 1:
        raise BadRequest(f"A transaction's id is a number above 0, not {transaction_id}.")
    return request_for(name, transaction=str(transaction_id), **parts)


def _nothing(reply: Reply) -> None:
    """Check that the body is ``{}``. Raises ValueError: another server's object, or none, ends no transaction."""
    if json_object(reply):
        raise ValueError("fields that no broker sends")


def _snapshot(reply: Reply) -> Snapshot:
    """Return the snapshot in an answer, in either form."""
    if reply.headers.get("content-type", "").startswith(THRIFT):
        return decode_transaction(reply.body)
    return decode_snapshot(json_object(reply))

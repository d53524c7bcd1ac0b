"""Calls of the transaction service as values: an operation of the table, with its fields.

A handler decodes a call from HTTP, the Thrift port decodes it from Thrift, and the parts of a node make calls of their own. An
``AskedService`` brings a call to the leader of the service. The leader carries it out (``carried_out``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from broker.model import Snapshot
from broker.operations.media_types import TEPHRA_SNAPSHOT, THRIFT
from broker.transactions.service import Transactions


class ServiceCall(NamedTuple):
    """A call of the service.

    Attributes:
        name: its operation in the table.
        sent: the fields of its body. Pointers are numbers, and keys are bytes.
        of: the transaction in its path.
        limit: the largest number of transactions, for a list.
        accept: the type of the answer, if the operation has several.
        caller: the client's principal with ``@`` before it, or else its address; empty within the process.
        deadline: in monotonic seconds. None: that of the service.
    """

    name: str
    sent: Mapping[str, Any] = MappingProxyType({})
    of: int = 0
    limit: int | None = None
    accept: str = THRIFT
    caller: str = ""
    deadline: float | None = None


class AskedService(ABC):
    """A transaction service, of this cluster or another one. Every method may raise BrokerError."""

    @abstractmethod
    async def ask(self, call: ServiceCall) -> Any:
        """Return the leader's answer: a snapshot, the whole state as bytes, or the fields of the reply in JSON."""

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now."""
        snapshot: Snapshot = await self.ask(ServiceCall("transactions_snapshot", deadline=deadline))
        return snapshot

    async def list(self, limit: int, deadline: float | None = None) -> dict[str, Any]:
        """Return at most ``limit`` transactions in progress, as ``GET /v1/transactions`` answers."""
        call = ServiceCall("list_transactions", limit=limit, deadline=deadline)
        return dict(await self.ask(call))

    async def show(self, transaction_id: int, deadline: float | None = None) -> dict[str, Any]:
        """Return one transaction as the service knows it. Raises NotFound."""
        call = ServiceCall("show_transaction", of=transaction_id, deadline=deadline)
        return dict(await self.ask(call))

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Forget invalid transactions; return how many were known."""
        call = ServiceCall("truncate_transactions", {"ids": ids}, deadline=deadline)
        return int((await self.ask(call))["removed"])


async def carried_out(service: Transactions, call: ServiceCall) -> Any:
    """Return the answer of the service on this node. Raises the errors of ``Transactions``."""
    value = await CALLS[call.name](service, call)
    if value is None:
        return {}
    if (fields := _TOLD.get(call.name)) is None:
        return value
    return dict(zip(fields, value if isinstance(value, tuple) else (value,), strict=True))


def _start(service: Transactions, call: ServiceCall) -> Awaitable[Snapshot]:
    fields = dict(call.sent)
    is_long = fields.pop("type", "short") == "long"
    return service.start(long=is_long, caller=call.caller, deadline=call.deadline, **fields)


def _snapshot(service: Transactions, call: ServiceCall) -> Awaitable[Snapshot | bytes]:
    if call.accept == TEPHRA_SNAPSHOT:
        return service.tephra_snapshot(call.deadline)
    return service.snapshot(call.deadline)


def _truncate(service: Transactions, call: ServiceCall) -> Awaitable[int]:
    if "before_ms" in call.sent:
        return service.truncate_invalid_before(call.sent["before_ms"], call.deadline)
    return service.truncate_invalid(call.sent["ids"], call.deadline)


CALLS: Final[Mapping[str, Callable[[Transactions, ServiceCall], Awaitable[Any]]]] = {
    "start_transaction": _start,
    "can_commit_transaction": lambda service, call: service.can_commit(
        call.of, call.sent["changes"], call.deadline
    ),
    "commit_transaction": lambda service, call: service.commit(
        call.of, call.sent.get("write_pointer"), call.deadline
    ),
    "abort_transaction": lambda service, call: service.abort(call.of, call.deadline, call.caller),
    "invalidate_transaction": lambda service, call: service.invalidate(call.of, call.deadline),
    "checkpoint_transaction": lambda service, call: service.checkpoint(call.of, call.deadline),
    "transactions_snapshot": _snapshot,
    "list_transactions": lambda service, call: service.listing(call.limit, call.deadline),
    "show_transaction": lambda service, call: service.show(call.of, call.deadline),
    "truncate_transactions": _truncate,
    "reset_transactions": lambda service, call: service.reset(call.deadline),
}
"""The method of the service for each operation."""
_TOLD: Final = {
    "invalidate_transaction": ("invalidated",),
    "truncate_transactions": ("removed",),
    "reset_transactions": ("in_progress", "invalid"),
}
"""The fields of the replies whose values a method returns bare."""

"""Transactions for code without asyncio: the methods of ``Transaction``, blocking.

The transaction itself runs on the client's loop, in another thread. But its participants belong to the thread that
runs the block: only one thread may use a SQL session. So while that thread waits for the transaction, it makes the
calls of plain participants::

    with client.transaction() as tx:      the thread of the block            the loop
        tx.publish(…)                     waits ───────────────────────────▶ Transaction.publish
    end of the block                      waits ───────────────────────────▶ Transaction.__aexit__
                                          commit_tx of a session ◀────────── TransactionContext.finish
                                                     └───────────────────────▶ …

An interrupt (Ctrl-C) of the wait cancels the call on the loop. The thread then waits for the end of the call, because
the rollback of the participants needs this thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from broker.client.bridge import CallersThread, give_up
from broker.client.facade import blocking
from broker.client.transaction_aware import (
    AnyTransactionService,
    DecidingAware,
    TransactionAware,
    resolved,
)
from broker.client.transaction_block import Transaction
from broker.client.transaction_publisher import TransactionPublisher
from broker.client.transactions import TransactionService
from broker.client.values import Payload
from broker.model import Snapshot

if TYPE_CHECKING:
    from broker.client.sync import SyncClient
    from broker.client.transaction_context import State

T = TypeVar("T")

_CALLER: Final[ContextVar[CallersThread]] = ContextVar("caller")
"""Makes calls in the thread that waits for this task."""


class SyncTransaction:
    """One transaction, which begins with ``with``; see ``SyncClient.transaction`` and ``Client.transaction``.

    Its methods are those of ``Transaction``.
    """

    def __init__(
        self,
        client: SyncClient,
        aware: Sequence[TransactionAware],
        service: AnyTransactionService | None,
        **options: Any,
    ) -> None:
        self._bridge = client._bridge  # noqa: SLF001 - The same package.
        self._serving: dict[int, Any] = {}
        self._client: Transaction = client._client.transaction(  # noqa: SLF001
            aware=[self._served(each) for each in aware],
            service=None if service is None else _Served(service),
            **options,
        )

    def __enter__(self) -> Self:
        self._wait(self._client.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wait(self._client.__aexit__(kind, error, trace))

    @property
    def id(self) -> int:
        """The transaction's number. Raises ValueError before it has begun."""
        return self._client.id

    @property
    def snapshot(self) -> Snapshot:
        """The transaction's snapshot, with its write pointers. Raises ValueError before it has begun."""
        return self._client.snapshot

    @property
    def state(self) -> State:
        """The state of the transaction; see ``Transaction.state``."""
        return self._client.state

    @property
    def context(self) -> Any:
        """The context of the transaction, which belongs to the client's loop."""
        return self._client.context

    publish = blocking(Transaction.publish)
    store = blocking(Transaction.store)
    poll = blocking(Transaction.poll)
    checkpoint = blocking(Transaction.checkpoint)

    def add(self, aware: TransactionAware) -> None:
        """Add a participant; see ``Transaction.add``."""
        self._wait(self._client.add(self._served(aware)))

    def changes(self, *keys: Payload) -> None:
        """Declare the keys that the transaction changes; see ``Transaction.changes``."""
        self._client.changes(*keys)

    def _served(self, aware: TransactionAware) -> Any:
        """Wrap a participant for the loop; always in the same wrapper."""
        kind = _ServedDecider if isinstance(aware, DecidingAware) else _Served
        return self._serving.setdefault(id(aware), kind(aware))

    def _wait(self, work: Awaitable[T]) -> T:
        """Wait for a call on the loop; meanwhile make the calls that it requests in this thread."""
        caller = CallersThread()
        tasks: list[asyncio.Task[Any]] = []

        async def run() -> T:
            _CALLER.set(caller)
            if task := asyncio.current_task():
                tasks.append(task)
            return await work

        def cancel() -> None:
            for task in tasks:
                task.get_loop().call_soon_threadsafe(task.cancel)

        try:
            self._bridge.check_may_wait()
            done = self._bridge.submit(run())
        except RuntimeError:
            give_up(work)
            raise
        try:
            return caller.serve(done, cancel)
        finally:
            del done  # The error's traceback keeps this frame.


class _Served:
    """Wraps an object of the waiting thread for the loop: the waiting thread makes each call of its methods."""

    def __init__(self, served: object) -> None:
        self.served = served

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.served, name)
        return functools.partial(_call_on_thread, found) if callable(found) else found


class _ServedDecider(_Served):
    """Wraps a deciding participant. Its method ``decide_tx`` shows that it is one."""

    def decide_tx(self, *arguments: Any) -> Awaitable[None]:
        """Let the waiting thread call ``decide_tx``."""
        return _call_on_thread(self.served.decide_tx, *arguments)  # type: ignore[attr-defined]


async def _call_on_thread(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Let the waiting thread make a call. If the result is awaitable, await it here, on the loop."""
    made = _CALLER.get().submit(call, *arguments, **named)
    return await resolved(await asyncio.wrap_future(made))


class SyncTransactionPublisher:
    """Publishes under one write pointer, and remembers the publishes for a rollback; see ``transaction_publisher``."""

    def __init__(self, client: SyncClient, pointer: int, snapshot: Snapshot | None = None) -> None:
        self.pointer = pointer
        self.snapshot = snapshot
        self._client = client._client.transaction_publisher(pointer, snapshot)  # noqa: SLF001 - The same package.
        self._wait = client._wait  # noqa: SLF001

    publish = blocking(TransactionPublisher.publish)
    store = blocking(TransactionPublisher.store)
    publish_stored = blocking(TransactionPublisher.publish_stored)
    poll = blocking(TransactionPublisher.poll)
    rollback = blocking(TransactionPublisher.rollback)


class SyncTransactionService:
    """The broker's transaction service; see ``transactions.TransactionService`` for its methods."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client._client.transactions  # noqa: SLF001 - The same package.
        self._wait = client._wait  # noqa: SLF001

    start = blocking(TransactionService.start)
    can_commit = blocking(TransactionService.can_commit)
    commit = blocking(TransactionService.commit)
    abort = blocking(TransactionService.abort)
    invalidate = blocking(TransactionService.invalidate)
    checkpoint = blocking(TransactionService.checkpoint)
    snapshot = blocking(TransactionService.snapshot)
    list = blocking(TransactionService.list)
    show = blocking(TransactionService.show)
    truncate = blocking(TransactionService.truncate)
    reset = blocking(TransactionService.reset)
    prune_plan = blocking(TransactionService.prune_plan)
    prune = blocking(TransactionService.prune)

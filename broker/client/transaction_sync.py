"""Transactions for code without asyncio: the methods of ``Transaction``, blocking.

The transaction itself lives on the client's loop, in another thread. But its participants belong to the thread that
runs the block: a SQL session may be used by one thread only. So while that thread waits for the transaction, it
carries out the calls of plain participants::

    with client.transaction() as tx:      the thread of the block            the loop
        tx.publish(…)                     waits ───────────────────────────▶ Transaction.publish
    end of the block                      waits ───────────────────────────▶ Transaction.__aexit__
                                          commit_tx of a session ◀────────── TransactionContext.finish
                                                     └───────────────────────▶ …

An interrupt (Ctrl-C) of the waiting cancels what is under way. The thread then waits until that has come to its end,
since its participants are still to be rolled back.
"""

from __future__ import annotations

import asyncio
import functools
import queue
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from broker.client.facade import blocking
from broker.client.transaction_aware import (
    AnyTransactionService,
    DecidingAware,
    TransactionAware,
    told,
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

Call = Callable[[], BaseException | None]
"""Carries out what was asked for; returns what has interrupted that."""

_CALLER: Final[ContextVar[queue.SimpleQueue[Call | None]]] = ContextVar("caller")
"""Where the thread that waits for this task takes calls from."""


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
        self._submit = client._thread.submit  # noqa: SLF001 - Its own.
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
        """What the transaction may see, with its write pointers. Raises ValueError before it has begun."""
        return self._client.snapshot

    @property
    def state(self) -> State:
        """How far it has come; see ``Transaction.state``."""
        return self._client.state

    @property
    def context(self) -> Any:
        """The context of the transaction, which lives on the client's loop."""
        return self._client.context

    publish = blocking(Transaction.publish)
    store = blocking(Transaction.store)
    poll = blocking(Transaction.poll)
    checkpoint = blocking(Transaction.checkpoint)

    def add(self, aware: TransactionAware) -> None:
        """Add a participant; see ``Transaction.add``."""
        self._wait(self._client.add(self._served(aware)))

    def changes(self, *keys: Payload) -> None:
        """Note what the transaction changes; see ``Transaction.changes``."""
        self._client.changes(*keys)

    def _served(self, aware: TransactionAware) -> Any:
        """Return a participant as the loop meets it; the same one for the same."""
        kind = _ServedDecider if isinstance(aware, DecidingAware) else _Served
        return self._serving.setdefault(id(aware), kind(aware))

    def _wait(self, work: Awaitable[T]) -> T:
        """Wait for a call on the loop, and carry out meanwhile what it asks of this thread."""
        calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        tasks: list[asyncio.Task[Any]] = []

        async def run() -> T:
            _CALLER.set(calls)
            if task := asyncio.current_task():
                tasks.append(task)
            try:
                return await work
            finally:
                calls.put(None)

        future = self._submit(run())
        interrupt: BaseException | None = None
        while True:
            try:
                call = calls.get()
                if call is None:
                    break
                interrupt = call() or interrupt
            except KeyboardInterrupt as error:
                interrupt = interrupt or error
                for task in tasks:
                    task.get_loop().call_soon_threadsafe(task.cancel)
        if interrupt is not None:
            raise interrupt
        return future.result()


class _Served:
    """An object of the waiting thread, for the loop: each of its methods is carried out by that thread."""

    def __init__(self, served: object) -> None:
        self.served = served

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.served, name)
        return functools.partial(_carried_out, found) if callable(found) else found


class _ServedDecider(_Served):
    """The same of a deciding participant, which is known by its method."""

    def decide_tx(self, *arguments: Any) -> Awaitable[None]:
        """Let the waiting thread decide."""
        return _carried_out(self.served.decide_tx, *arguments)  # type: ignore[attr-defined]


async def _carried_out(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Let the waiting thread make a call; what it gives, if that is a promise, is awaited here."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def carry_out() -> BaseException | None:
        try:
            result = call(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - It is raised where the call came from.
            loop.call_soon_threadsafe(settle, None, error)
        except BaseException as error:  # noqa: BLE001 - An interrupt: there it is a cancelled call.
            loop.call_soon_threadsafe(answer.cancel)
            return error
        else:
            loop.call_soon_threadsafe(settle, result, None)
        return None

    _CALLER.get().put(carry_out)
    return await told(await answer)


class SyncTransactionPublisher:
    """Publishes under one write pointer and keeps what a rollback needs; see ``transaction``."""

    def __init__(self, client: SyncClient, pointer: int, snapshot: Snapshot | None = None) -> None:
        self.pointer = pointer
        self.snapshot = snapshot
        self._client = client._client.transaction_publisher(pointer, snapshot)  # noqa: SLF001 - Its own.
        self._wait = client._wait  # noqa: SLF001

    publish = blocking(TransactionPublisher.publish)
    store = blocking(TransactionPublisher.store)
    publish_stored = blocking(TransactionPublisher.publish_stored)
    poll = blocking(TransactionPublisher.poll)
    rollback = blocking(TransactionPublisher.rollback)


class SyncTransactionService:
    """The broker's transaction service; see ``transactions.TransactionService``, whose methods these are."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client._client.transactions  # noqa: SLF001 - Its own.
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
    prune_plan = blocking(TransactionService.prune_plan)
    prune = blocking(TransactionService.prune)

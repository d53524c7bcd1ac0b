"""Named cursors, dead letters and the subscriber for code without asyncio. The handler runs in the thread that calls ``run``."""

from __future__ import annotations

from collections.abc import Awaitable
from concurrent.futures import CancelledError
from typing import Generic, Protocol, TypeVar

from broker.client.bridge import Bridge, CallersThread
from broker.client.cursors import CursorCalls
from broker.client.facade import blocking
from broker.client.letter_calls import DeadLetterCalls
from broker.client.subscriber import Subscriber
from broker.client.subscription import SubscriberCounts

C = TypeVar("C")
T = TypeVar("T")


class SyncSubscriber:
    """Passes the messages of a topic to a handler, blocking; see ``Client.subscriber``."""

    def __init__(
        self,
        subscriber: Subscriber,
        caller: CallersThread,
        bridge: Bridge,
    ) -> None:
        self._subscriber = subscriber
        self._caller = caller
        self._bridge = bridge

    @property
    def counts(self) -> SubscriberCounts:
        """The counts of its messages, by outcome."""
        return self._subscriber.counts

    @property
    def is_working(self) -> bool:
        """True if it holds the place; False: it is a standby, or has ended."""
        return self._subscriber.is_working

    def stop(self) -> None:
        """Make ``run`` finish the current message, write the place, and return. Any thread or handler may call it."""
        self._bridge.ask(self._stop())

    async def _stop(self) -> None:
        self._subscriber.stop()

    def run(self) -> None:
        """Handle messages, in this thread, until ``stop``. Ctrl-C stops it, too, and is raised at the end.

        Raises:
            BrokerError, SystemExit, KeyboardInterrupt: as ``Subscriber.run``.
            RuntimeError: the client is closed, or the handler closed it.
        """
        self._bridge.check_may_wait()
        try:
            self._caller.serve(self._bridge.submit(self._subscriber.run()), self.stop)
        except CancelledError:
            raise RuntimeError("This client is closed.") from None


class SyncWait(Protocol):
    """Waits for a call that runs on the loop of the client."""

    def __call__(self, work: Awaitable[T], /) -> T:
        """Return the result of the call."""


class _SyncCalls(Generic[C]):
    """An object with asyncio methods, and the wait for the results of their calls."""

    def __init__(self, calls: C, wait: SyncWait) -> None:
        self._client = calls
        self._wait = wait


class SyncCursorCalls(_SyncCalls[CursorCalls]):
    """The calls of named cursors; see ``Client.cursors``."""

    list = blocking(CursorCalls.list)
    get = blocking(CursorCalls.get)
    put = blocking(CursorCalls.put)
    delete = blocking(CursorCalls.delete)


class SyncDeadLetterCalls(_SyncCalls[DeadLetterCalls]):
    """The calls of dead letters, blocking; see ``DeadLetterCalls``."""

    list = blocking(DeadLetterCalls.list)
    get = blocking(DeadLetterCalls.get)
    retry = blocking(DeadLetterCalls.retry)
    drop = blocking(DeadLetterCalls.drop)

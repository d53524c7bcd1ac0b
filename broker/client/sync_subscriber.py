"""Named cursors and the subscriber for code without asyncio. The handler runs in the thread that calls ``run``."""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, Protocol, TypeVar

from typing_extensions import override

from broker import user_code
from broker.client.cursors import CursorCalls
from broker.client.facade import blocking
from broker.client.handler import Interrupted
from broker.client.subscriber import Subscriber
from broker.client.subscription import SubscriberCounts

P = ParamSpec("P")
T = TypeVar("T")


class CallersThread(Executor):
    """Runs submitted calls in the thread that calls ``work_until``."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call."""
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - The future has it.
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(Interrupted(repr(error)))
                raise
            else:
                future.set_result(result)

        self._jobs.put(job)
        return future

    def work_until(self, done: Future[Any]) -> None:
        """Run submitted calls until ``done``. Raises the exception that interrupts this thread."""
        done.add_done_callback(lambda _: self._jobs.put(None))
        while (job := self._jobs.get()) is not None:
            job()


class SyncSubscriber:
    """Passes the messages of a topic to a handler, blocking; see ``Client.subscriber``."""

    def __init__(
        self,
        subscriber: Subscriber,
        executor: CallersThread,
        submit: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
    ) -> None:
        self._subscriber = subscriber
        self._executor = executor
        self._submit = submit

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
        self._submit(self._stop())

    async def _stop(self) -> None:
        self._subscriber.stop()

    def run(self) -> None:
        """Handle messages, in this thread, until ``stop``. Ctrl-C stops it, too, and is raised at the end.

        Raises:
            BrokerError, SystemExit, KeyboardInterrupt: as ``Subscriber.run``.
        """
        # A SystemExit that the loop's thread raised would end that thread, and nothing else.
        running = self._submit(user_code.run(self._subscriber.run))
        try:
            self._executor.work_until(running)
        except BaseException:
            self.stop()
            self._executor.work_until(running)
            raise
        running.result().result()


class SyncWait(Protocol):
    """Waits for a call that runs on the loop of the client."""

    def __call__(self, work: Awaitable[T], /) -> T:
        """Return the result of the call."""


class SyncCursorCalls:
    """The calls of named cursors; see ``Client.cursors``."""

    def __init__(self, calls: CursorCalls, wait: SyncWait) -> None:
        self._client = calls
        self._wait = wait

    list = blocking(CursorCalls.list)
    get = blocking(CursorCalls.get)
    put = blocking(CursorCalls.put)
    delete = blocking(CursorCalls.delete)

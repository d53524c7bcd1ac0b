"""Call a handler with messages, asynchronous or not, within the context of the caller's store if there is one.

A handler that is not asynchronous always runs in the same thread. So it may use objects that belong to one thread,
such as a connection of sqlite3. The context around it (``Work``) runs in the same thread, unless it is asynchronous.

A call ends in one of three ways: it is done, the handler failed, or the store around it failed. Neither kind of failure
is raised: ``FailedCall`` carries it (see ``broker.user_code``).
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar

from typing_extensions import override

from broker import user_code
from broker.errors import CursorMoved
from broker.escapes import escaping_logger
from broker.model import Message
from broker.user_code import Ended, TookTooLong

T = TypeVar("T")
Handler = Callable[..., Any]
"""Called with a message or a list of messages. If there is a ``Work``, its value is the second argument."""
Work = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
"""A context around one call of the handler, such as a transaction of a database."""

GRACE_S: Final = 1.0
"""How long a cancelled handler may take to end before the subscriber lets its place go."""

log: Final = escaping_logger("broker.client.subscriber")


class Reject(Exception):
    """A handler raises it to refuse a message for good: it becomes a dead letter now, without a further try."""


class RetryLater(Exception):
    """A handler raises it to get the message again after ``delay_s`` seconds. This does not count as a try."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(f"again in {_checked_s(delay_s):g} s")
        self.delay_s = delay_s


def _checked_s(delay_s: float) -> float:
    if not (math.isfinite(delay_s) and delay_s >= 0):
        raise ValueError(f"delay_s is a number of seconds, at least 0, not {delay_s!r}.")
    return delay_s


def delay_of(error: BaseException) -> float | None:
    """Return the delay of a RetryLater in seconds; None for any other error, and for a subclass with no such delay."""
    if not isinstance(error, RetryLater):
        return None
    return user_code.call(lambda: _checked_s(error.delay_s)).value


class HandlerFailed(Exception):
    """A ``PlaceStore`` raises it from an error of the handler's own writes that shows only behind the handler.

    Such as a row that the database refuses at the flush or the commit. It is a failed try, whose error is the cause.
    """


class Stopped(Exception):
    """The subscriber must stop."""


class Interrupted(Stopped):
    """The thread of the handler was interrupted, for example by Ctrl-C. Its message is not handled."""


class FailedCall(NamedTuple):
    """A call that failed.

    ``of_place`` is True if the caller's store failed, and not the handler. ``running`` is the call itself if it did not
    end in its time and goes on.
    """

    error: BaseException
    of_place: bool = False
    running: asyncio.Task[Any] | None = None


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function is declared asynchronous. A plain function that returns an awaitable is not."""
    call = getattr(function, "__call__", None)  # noqa: B004 - An object's __call__ may be asynchronous.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Calling:
    """Calls the handler and other functions of the caller: on the event loop, or in the handler's thread."""

    def __init__(
        self, handler: Handler, executor: Executor, *, in_store: bool, limit_s: float | None = None
    ) -> None:
        """Run functions that are not asynchronous in ``executor``, which has one thread.

        ``in_store``: the handler gets the value of a ``Work``, too. ``limit_s`` is how long it may take. Raises
        TypeError if it can't be called like this.
        """
        user_code.check_takes(handler, 2 if in_store else 1, "The handler")
        self._handler = handler
        self._executor = executor
        self._limit_s = limit_s
        self._is_async = is_async(handler)
        self._began_s: float | None = None
        """Since when the handler works, by the loop's clock."""
        self._left = False
        """True if the present call took too long, and its result does not count any more."""

    async def run(
        self,
        function: Callable[..., T | Awaitable[T]],
        *arguments: Any,
        limit_s: float | None = None,
    ) -> Ended[T]:
        """Call a function: on the loop if it is asynchronous, or else in the thread. Raises Interrupted."""
        if is_async(function):
            return await user_code.run(function, *arguments, limit_s=limit_s)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        ended: Ended[Any] = await loop.run_in_executor(
            self._executor, lambda: user_code.call(function, *arguments)
        )
        if inspect.isawaitable(ended.value):
            awaitable = ended.value
            return await user_code.run(lambda: awaitable, limit_s=limit_s)
        return ended

    async def hand(self, messages: Any, work: Callable[[], Work] | None) -> FailedCall | None:
        """Call the handler once, within ``work()``. Return why that failed; None: it is done."""
        if self._limit_s is None:
            return await self._hand(messages, work)
        calling = asyncio.create_task(self._hand(messages, work))
        try:
            while (left_s := self._left_s(self._limit_s)) > 0:
                await asyncio.wait([calling], timeout=left_s)
                if calling.done():
                    return calling.result()
        except asyncio.CancelledError:
            calling.cancel()
            await asyncio.wait([calling])
            raise
        self._left = True
        return FailedCall(TookTooLong(f"it took longer than {self._limit_s:g} s"), running=calling)

    def _left_s(self, limit_s: float) -> float:
        """Return how long the handler may go on until it counts as stuck."""
        began_s = self._began_s
        if began_s is None:
            return limit_s + GRACE_S
        return began_s + limit_s + GRACE_S - asyncio.get_running_loop().time()

    async def skip(self, work: Callable[[], Work]) -> FailedCall | None:
        """Enter and leave the context ``work()`` without a call of the handler."""

        async def nothing(_: Any) -> Ended[None]:
            return Ended(None)

        return await self._within(work, nothing)

    async def _hand(self, messages: Any, work: Callable[[], Work] | None) -> FailedCall | None:
        self._left = False
        if work is not None:
            return await self._within(work, lambda value: self._handle(messages, value))
        error = (await self._handle(messages)).error
        return None if error is None else FailedCall(error)

    async def _handle(self, *arguments: Any) -> Ended[Any]:
        """Call the handler itself."""
        self._began_s = asyncio.get_running_loop().time()
        try:
            ended = await self.run(self._handler, *arguments, limit_s=self._limit_s)
        finally:
            self._began_s = None
        if inspect.isgenerator(ended.value) or inspect.isasyncgen(ended.value):
            return Ended(None, TypeError("The handler returned a generator, whose body never ran."))
        if ended.error is not None:
            ended = Ended(None, _verdict_in(ended.error))
        if self._left:  # The store must not move the place any more: another subscriber may work.
            return Ended(None, TookTooLong("it took too long"))
        return ended

    async def _within(
        self, work: Callable[[], Work], handle: Callable[[Any], Awaitable[Ended[Any]]]
    ) -> FailedCall | None:
        """Call ``handle`` within ``work()``. The error that comes first decides which of both has failed."""
        made: Ended[Any] = user_code.call(work) if self._is_async else await self.run(work)
        if made.error is not None:
            return FailedCall(made.error, of_place=True)
        around = made.value
        if not isinstance(around, AbstractContextManager | AbstractAsyncContextManager):
            raise TypeError(
                f"work of the place returns a context manager, not {type(around).__name__}."
            )
        # In one task, since a context may have to be left in the task that entered it.
        ended = await user_code.run(self._entered, around, handle)
        if isinstance(ended.error, Stopped):
            try:
                raise ended.error
            finally:
                del ended  # The error's traceback keeps this frame.
        if isinstance(ended.error, HandlerFailed):
            return FailedCall(ended.error.__cause__ or ended.error)
        return ended.value if ended.error is None else FailedCall(ended.error, of_place=True)

    async def _entered(
        self, around: Work, handle: Callable[[Any], Awaitable[Ended[Any]]]
    ) -> FailedCall | None:
        failed: FailedCall | None = None
        ended: Ended[Any] | None = None
        if not isinstance(around, AbstractAsyncContextManager):
            around = _InThread(around, self)
        try:
            async with around as value:
                ended = await handle(value)
                if ended.error is not None:
                    failed = FailedCall(ended.error)
                    ended.result()
        except BaseException as error:
            if failed is None or (isinstance(error, CursorMoved) and error is not failed.error):
                raise
        try:
            return failed
        finally:
            del failed, ended  # The error's traceback keeps this frame.


class _InThread(AbstractAsyncContextManager[Any]):
    """A context that is entered and left in the thread of the handler."""

    def __init__(self, around: AbstractContextManager[Any], calling: Calling) -> None:
        self._around = around
        self._calling = calling

    @override
    async def __aenter__(self) -> Any:
        return (await self._calling.run(self._around.__enter__)).result()

    @override
    async def __aexit__(self, *details: object) -> bool | None:
        return (await self._calling.run(self._around.__exit__, *details)).result()


def _verdict_in(error: BaseException) -> BaseException:
    """Return the verdict of which an error is made: a TaskGroup raises the Reject of a task as a group."""
    leaves = list(user_code.leaves(error))
    for verdict in (Reject, RetryLater):
        if leaves and all(isinstance(each, verdict) for each in leaves):
            return leaves[0]
    return error


def as_given(messages: Sequence[Message], *, in_batches: bool) -> Any:
    """Return the argument of one call of a handler: one message, or a list.

    It is the handler's own. A handler may consume its list, or change its headers, and then fail: its next try must get
    the same messages again, and a dead letter must have all headers.
    """
    own = [each._replace(headers=dict(each.headers)) if each.headers else each for each in messages]
    return own if in_batches else own[0]

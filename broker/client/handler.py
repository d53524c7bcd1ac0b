"""Call a handler with messages: asynchronous or not, with retries, back-off and jitter.

A handler that is not asynchronous always runs in the same thread. So it may use objects that belong to one thread,
such as a connection of sqlite3. The context around it (``Work``) runs in the same thread, unless it is asynchronous.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, TypeVar, cast

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from broker.client.back_off import pause_s
from broker.model import Message

T = TypeVar("T")
Handler = Callable[..., Any]
"""Called with a message or a list of messages. If there is a ``Work``, its value is the second argument."""
Work = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
"""A context around one call of the handler, such as a transaction of a database."""

log: Final = logging.getLogger("broker.client.subscriber")


class Stopped(Exception):
    """The subscriber must stop."""


class Interrupted(Stopped):
    """The handler was interrupted, for example by Ctrl-C. Its message is not handled, and the subscriber stops."""


class GaveUp(Exception):
    """A handler failed the maximum number of times; ``error`` is its last error."""

    def __init__(self, error: BaseException, tries: int) -> None:
        super().__init__(f"{tries} tries: {error}")
        self.error = error
        self.tries = tries


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function is declared asynchronous. A plain function that returns an awaitable is not."""
    call = getattr(function, "__call__", None)  # noqa: B004 - An object's __call__ may be asynchronous.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Calling:
    """Calls the handler and other functions of the caller: on the event loop, or in the handler's thread."""

    def __init__(self, handler: Handler, executor: Executor) -> None:
        """Run functions that are not asynchronous in ``executor``, which has one thread."""
        self._handler = handler
        self._executor = executor
        self._is_async = is_async(handler)

    async def run(self, function: Callable[[], T | Awaitable[T]]) -> T:
        """Call a function and return its result; run it in the thread if it is not asynchronous."""
        if is_async(function):
            return await cast("Awaitable[T]", function())
        done = await asyncio.get_running_loop().run_in_executor(self._executor, function)
        return await done if inspect.isawaitable(done) else done

    async def hand(self, messages: Any, work: Callable[[], Work] | None) -> None:
        """Call the handler once, within ``work()``. Raises their errors."""
        if work is None:
            await self._call_handler(messages)
        else:
            await self._call_within(messages, work())

    async def skip(self, work: Callable[[], Work]) -> None:
        """Enter and leave the context ``work()`` without a call of the handler."""
        around = work()
        if isinstance(around, AbstractAsyncContextManager):
            async with around:
                return

        def enter_and_leave() -> None:
            with around:
                pass

        await self.run(enter_and_leave)

    async def _call_within(self, messages: Any, around: Work) -> None:
        if isinstance(around, AbstractAsyncContextManager):
            async with around as value:
                await self._call_handler(messages, value)
        elif self._is_async:
            with around as value:
                await self._handler(messages, value)
        else:

            def call_in_thread() -> None:
                with around as value:
                    done = self._handler(messages, value)
                    if inspect.isawaitable(done):
                        if inspect.iscoroutine(done):
                            done.close()
                        raise TypeError(
                            "The handler returned an awaitable. Define it with async def."
                        )

            await self.run(call_in_thread)

    async def _call_handler(self, *arguments: Any) -> None:
        if self._is_async:
            await self._handler(*arguments)
        else:
            await self.run(lambda: self._handler(*arguments))


class Trying:
    """Repeats a call until it succeeds or has failed ``tries_max`` times."""

    def __init__(
        self,
        *,
        tries_max: int,
        delay_min_s: float,
        delay_max_s: float,
        sleep: Callable[[float], Awaitable[None]],
        rng: random.Random | None = None,
    ) -> None:
        """``sleep`` may raise an error to end the retries."""
        self.tries_max = tries_max
        self._delay_min_s = delay_min_s
        self._delay_max_s = delay_max_s
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - Jitter is no secret.

    async def run(
        self,
        call: Callable[[], Awaitable[None]],
        failed: Callable[[BaseException, int], None],
        final: tuple[type[Exception], ...] = (),
    ) -> None:
        """Repeat ``call`` until it succeeds, and report each failure to ``failed``. Errors of ``final`` are not retried.

        Raises:
            GaveUp: it failed ``tries_max`` times.
        """
        # Most calls succeed at once, and the retries below cost as much as a call.
        first: Exception | None = None
        try:
            await call()
        except Exception as error:  # noqa: BLE001 - tenacity gets it below.
            first = error
        if first is None:
            return

        async def attempt() -> None:
            nonlocal first
            if first is not None:
                error, first = first, None
                raise error
            await call()

        def may_retry(error: BaseException) -> bool:
            return isinstance(error, Exception) and not isinstance(error, (Stopped, *final))

        def after(state: RetryCallState) -> None:
            failed(_error(state), state.attempt_number)

        def give_up(state: RetryCallState) -> None:
            raise GaveUp(_error(state), state.attempt_number)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.tries_max),
            wait=lambda state: pause_s(
                state.attempt_number, self._delay_min_s, self._delay_max_s, self._rng
            ),
            retry=retry_if_exception(may_retry),
            after=after,
            retry_error_callback=give_up,
            sleep=self._sleep,
        )
        await retrying(attempt)


def _error(state: RetryCallState) -> BaseException:
    outcome = state.outcome
    error = None if outcome is None else outcome.exception()
    assert error is not None, "this is called only after a failure"
    return error


def as_given(messages: Sequence[Message], *, in_batches: bool) -> Any:
    """Return the argument of a handler: one message, or a list."""
    return list(messages) if in_batches else messages[0]

"""Handing messages to a handler: functions with and without asyncio, tried again with back-off and jitter.

A handler without asyncio runs in one thread, always the same, so that what belongs to a thread (a connection of
sqlite3) may be used in it. So does what stands around it (``Work``), if that is for no asyncio either.
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

from broker.model import Message

T = TypeVar("T")
Handler = Callable[..., Any]
"""Called with a message, or a list of messages; with what ``Work`` gives behind it, if there is any."""
Work = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
"""A context around one call of the handler, such as a transaction of a database."""

log: Final = logging.getLogger("broker.client.subscriber")


class Stopped(Exception):
    """The subscriber is told to stop."""


class Interrupted(Stopped):
    """The handler was interrupted, as by Ctrl-C: its message is not handled, and the subscriber stops."""


class GaveUp(Exception):
    """A handler failed as often as it may; ``error`` is how it failed the last time."""

    def __init__(self, error: BaseException, tries: int) -> None:
        super().__init__(f"{tries} tries: {error}")
        self.error = error
        self.tries = tries


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling a function gives something to await, as far as it tells."""
    call = getattr(function, "__call__", None)  # noqa: B004 - Its own method may be for asyncio.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Calling:
    """Calls the handler, and what else a caller gave, each in its own way."""

    def __init__(self, handler: Handler, executor: Executor) -> None:
        """Run what is for no asyncio in ``executor``, which has one thread."""
        self._handler = handler
        self._executor = executor
        self._is_async = is_async(handler)

    async def aside(self, function: Callable[[], T | Awaitable[T]]) -> T:
        """Call a function, in the thread if it is for no asyncio, and return what it gives in the end."""
        if is_async(function):
            return await cast("Awaitable[T]", function())
        done = await asyncio.get_running_loop().run_in_executor(self._executor, function)
        return await done if inspect.isawaitable(done) else done

    async def hand(self, messages: Any, work: Callable[[], Work] | None) -> None:
        """Call the handler once, within ``work()``. Raises what these raise."""
        if work is None:
            await self._called(messages)
        else:
            await self._within(messages, work())

    async def skip(self, work: Callable[[], Work]) -> None:
        """Do the work around a call without the call."""
        around = work()
        if isinstance(around, AbstractAsyncContextManager):
            async with around:
                return

        def nothing() -> None:
            with around:
                pass

        await self.aside(nothing)

    async def _within(self, messages: Any, around: Work) -> None:
        if isinstance(around, AbstractAsyncContextManager):
            async with around as value:
                await self._called(messages, value)
        elif self._is_async:
            with around as value:
                await self._handler(messages, value)
        else:

            def whole() -> None:
                with around as value:
                    done = self._handler(messages, value)
                    if inspect.isawaitable(done):
                        if inspect.iscoroutine(done):
                            done.close()
                        raise TypeError("A handler that is to be awaited is no plain function.")

            await self.aside(whole)

    async def _called(self, *arguments: Any) -> None:
        if self._is_async:
            await self._handler(*arguments)
        else:
            await self.aside(lambda: self._handler(*arguments))


class Trying:
    """Calls until it succeeds, or has failed often enough."""

    def __init__(
        self,
        *,
        tries_max: int,
        delay_min_s: float,
        delay_max_s: float,
        sleep: Callable[[float], Awaitable[None]],
        rng: random.Random | None = None,
    ) -> None:
        """``sleep`` may raise to end the trying."""
        self.tries_max = tries_max
        self._delay_min_s = delay_min_s
        self._delay_max_s = delay_max_s
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - Jitter is no secret.

    def pause_s(self, tries: int) -> float:
        """Return how long to wait after so many tries: twice as long each time, drawn from the upper half."""
        longest_s = min(self._delay_max_s, self._delay_min_s * float(1 << min(tries - 1, 30)))
        return longest_s * self._rng.uniform(0.5, 1.0)

    async def run(
        self,
        call: Callable[[], Awaitable[None]],
        failed: Callable[[BaseException, int], None],
        final: tuple[type[Exception], ...] = (),
    ) -> None:
        """Call until it succeeds; ``failed`` is told of each failure. Errors of ``final`` are raised at once.

        Raises:
            GaveUp: it failed ``tries_max`` times.
        """

        async def attempt() -> None:
            await call()  # Of what is no coroutine function nothing would be awaited.

        def may_retry(error: BaseException) -> bool:
            return isinstance(error, Exception) and not isinstance(error, (Stopped, *final))

        def after(state: RetryCallState) -> None:
            failed(_error(state), state.attempt_number)

        def give_up(state: RetryCallState) -> None:
            raise GaveUp(_error(state), state.attempt_number)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.tries_max),
            wait=lambda state: self.pause_s(state.attempt_number),
            retry=retry_if_exception(may_retry),
            after=after,
            retry_error_callback=give_up,
            sleep=self._sleep,
        )
        await retrying(attempt)


def _error(state: RetryCallState) -> BaseException:
    outcome = state.outcome
    error = None if outcome is None else outcome.exception()
    assert error is not None, "only failures come here"
    return error


def as_given(messages: Sequence[Message], *, in_batches: bool) -> Any:
    """Return what a handler is called with: a message, or a list."""
    return list(messages) if in_batches else messages[0]

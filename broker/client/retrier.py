"""Carry out one request within a deadline, trying again where ``outcomes`` says that it is right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from broker.client import outcomes
from broker.client.protocol import ClientRequest
from broker.client.values import Settings
from broker.errors import BrokerError

T = TypeVar("T")

SLOW_S: Final = 0.7
"""After so long an attempt without an answer is worth a word to those who want to know of trouble."""


class Trouble(NamedTuple):
    """Why a call has not succeeded yet, and for how long it goes on trying.

    ``error`` is how the last attempt ended; None: an attempt waits for its answer longer than most.
    ``left_s`` None: no time ends its trying.
    """

    error: BrokerError | None
    left_s: float | None


OnTrouble = Callable[[Trouble], None]
"""Is told of trouble that the client means to outlast. It must neither block nor raise."""


class Retrier:
    """The client's patience: how long, how often, and until it is closed."""

    def __init__(
        self,
        settings: Settings,
        rng: random.Random | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self._settings = settings
        self._rng = rng or random.Random()  # noqa: S311 - Jitter is no secret.
        self._on_trouble = on_trouble
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End all waiting: from now on the first failure is the last."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """Return whether the client was closed."""
        return self._closed.is_set()

    async def run(
        self,
        request: ClientRequest,
        attempt: Callable[[float], Awaitable[T]],
        *,
        attempts_max: int | None = None,
        waits_s: float = 0,
    ) -> T:
        """Call ``attempt`` with its seconds until it succeeds or trying again makes no sense.

        With ``attempts_max`` it is the number of attempts that is bounded, not the time of all.
        ``waits_s`` is how long the broker was asked to wait before it answers.

        Raises:
            BrokerError: what the last attempt raised; OutcomeUnknown if an earlier attempt of a
                write got no answer and no later one told what became of it.
        """
        attempts = _Attempts(self, request, attempt, attempts_max, waits_s)
        # Most calls succeed at once: tenacity takes over after a failure, because it costs 25 us a call.
        try:
            return await attempts.next()
        except BrokerError as error:
            attempts.failed = error
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: self._is_worth_it(request, error)),
            wait=lambda state: self.pause_s(_error_of(state), state.attempt_number),
            stop=attempts.are_over,
            before_sleep=lambda state: self.tell(_error_of(state), attempts.left_s()),
            sleep=self.pause,
            reraise=True,
        )
        try:
            answer: T = await retrying(attempts.next)
        except BrokerError as error:
            if attempts.unknown and error.outcome == "refused":
                raise outcomes.never_confirmed(error) from error
            raise
        return answer

    @property
    def deadline_s(self) -> float:
        """How long one call may take, seconds."""
        return self._settings.deadline_s

    def _is_worth_it(self, request: ClientRequest, error: BaseException) -> bool:
        """Return whether another attempt is right, time permitting."""
        return (
            isinstance(error, BrokerError)
            and not self.closed
            and outcomes.worth_retrying(request, error)
        )

    def tell(self, error: BrokerError | None, left_s: float | None) -> None:
        """Tell of trouble that is to be outlasted, if somebody wants to know; see ``Trouble``.

        A client that closes outlasts nothing: its own end of connections is no trouble.
        """
        if self._on_trouble is not None and not self.closed:
            self._on_trouble(Trouble(error, left_s))

    @contextmanager
    def watched(self, deadline: float | None, waits_s: float) -> Generator[None]:
        """Tell of an attempt that is slow, beyond what its answer may wait by itself."""
        if self._on_trouble is None:
            yield
            return
        loop = asyncio.get_running_loop()
        left_s = None if deadline is None else deadline - loop.time() - SLOW_S
        timer = loop.call_later(waits_s + SLOW_S, self.tell, None, left_s)
        try:
            yield
        finally:
            timer.cancel()

    def attempt_s(self, request: ClientRequest, left_s: float | None) -> float:
        """Return how long one attempt may take: one that may be repeated leaves time for that."""
        longest_s = self._settings.deadline_s
        if request.repeatable:
            longest_s /= 2
        return longest_s if left_s is None else min(left_s, longest_s)

    def pause_s(self, error: BrokerError, attempts: int) -> float:
        """Return how long to wait after so many attempts."""
        return outcomes.delay_s(
            error,
            attempts,
            self._settings.retry_delay_min_s,
            self._settings.retry_delay_max_s,
            self._rng,
        )

    async def pause(self, seconds: float) -> None:
        """Wait; a close ends the waiting."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return


class _Attempts(Generic[T]):
    """The attempts at one request, and what they left open."""

    def __init__(
        self,
        retrier: Retrier,
        request: ClientRequest,
        attempt: Callable[[float], Awaitable[T]],
        attempts_max: int | None,
        waits_s: float,
    ) -> None:
        self.failed: BrokerError | None = None
        """How the first attempt ended, until tenacity knows it."""
        self.unknown = False
        self._retrier = retrier
        self._request = request
        self._attempt = attempt
        self._attempts_max = attempts_max
        self._waits_s = waits_s
        self._now_s = asyncio.get_running_loop().time
        self._deadline = self._now_s() + retrier.deadline_s

    async def next(self) -> T:
        """Make one attempt, or raise the failure that tenacity does not know yet."""
        if self.failed is not None:
            error, self.failed = self.failed, None
            raise error
        try:
            with self._retrier.watched(
                None if self._attempts_max else self._deadline, self._waits_s
            ):
                return await self._attempt(self._retrier.attempt_s(self._request, self.left_s()))
        except BrokerError as error:
            self.unknown = self.unknown or (
                error.outcome == "unknown" and not self._request.reading
            )
            raise

    def left_s(self) -> float | None:
        """Return how long the attempts may go on; None: no time bounds them."""
        return None if self._attempts_max else self._deadline - self._now_s()

    def are_over(self, state: RetryCallState) -> bool:
        """Return whether no further attempt is allowed."""
        if self._attempts_max:
            return state.attempt_number >= self._attempts_max
        return self._now_s() + state.upcoming_sleep >= self._deadline


def _error_of(state: RetryCallState) -> BrokerError:
    """Return how an attempt ended that is worth another one."""
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, BrokerError), "nothing else is tried again"
    return error

"""Carry out one request within a deadline, trying again where ``outcomes`` says that it is right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

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
        """Whether the client was closed."""
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
        now = asyncio.get_running_loop().time
        deadline = now() + self._settings.deadline_s
        attempts, unknown = 0, False
        while True:
            attempts += 1
            try:
                with self._watched(None if attempts_max else deadline, waits_s):
                    return await attempt(
                        self._attempt_s(request, None if attempts_max else deadline - now())
                    )
            except BrokerError as error:
                unknown = unknown or (error.outcome == "unknown" and not request.reading)
                pause_s = self.pause_s(error, attempts)
                last = attempts >= attempts_max if attempts_max else now() + pause_s >= deadline
                if last or self.closed or not outcomes.worth_retrying(request, error):
                    if unknown and error.outcome == "refused":
                        raise outcomes.never_confirmed(error) from error
                    raise
                self.tell(error, None if attempts_max else deadline - now())
                await self.pause(pause_s)

    def tell(self, error: BrokerError | None, left_s: float | None) -> None:
        """Tell of trouble that is to be outlasted, if somebody wants to know; see ``Trouble``.

        A client that closes outlasts nothing: its own end of connections is no trouble.
        """
        if self._on_trouble is not None and not self.closed:
            self._on_trouble(Trouble(error, left_s))

    @contextmanager
    def _watched(self, deadline: float | None, waits_s: float) -> Generator[None]:
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

    def _attempt_s(self, request: ClientRequest, left_s: float | None) -> float:
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

"""Send one request within a deadline, and retry it where ``outcomes`` says that this is right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from broker import retries, user_code
from broker.client import outcomes
from broker.client.client_request import ClientRequest
from broker.client.values import Settings
from broker.errors import BrokerError
from broker.escapes import escaping_logger

T = TypeVar("T")

log: Final = escaping_logger(__name__)

SLOW_S: Final = 0.7
"""A client reports an attempt as trouble after so long without an answer."""


class Trouble(NamedTuple):
    """Why a call has not succeeded yet, and for how long the client will retry it.

    ``error`` is the error of the last attempt; None: an attempt waits unusually long for its answer.
    ``left_s`` None: the retries have no time limit.
    """

    error: BrokerError | None
    left_s: float | None


OnTrouble = Callable[[Trouble], None]
"""Called with trouble that the client will retry. It must not block. An error of it is logged, and changes nothing else."""


def check_on_trouble(on_trouble: OnTrouble | None) -> None:
    """Raise TypeError if it can't be called with a Trouble."""
    if on_trouble is not None:
        user_code.check_plain(on_trouble, 1, "on_trouble")


class Retrier:
    """Decides how long and how often the client retries a request. A close of the client ends all retries."""

    def __init__(
        self,
        settings: Settings,
        rng: random.Random | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        check_on_trouble(on_trouble)
        self._settings = settings
        self._rng = rng or random.Random()  # noqa: S311 - Jitter is no secret.
        self._on_trouble = on_trouble
        self._closed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.in_new_loop: Callable[[], None] = lambda: None
        """Called in the first call in another loop, after the former one has ended."""

    @property
    def deadline_s(self) -> float:
        """The time limit of a call, in seconds."""
        return self._settings.deadline_s

    def close(self) -> None:
        """End all waits. From now on no failure is retried."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """True if the client was closed."""
        return self._closed.is_set()

    async def run(
        self,
        request: ClientRequest,
        attempt: Callable[[float], Awaitable[T]],
        *,
        ends: float | None = None,
        waits_s: float = 0,
    ) -> T:
        """Call ``attempt`` with its time limit in seconds, until it succeeds or a retry makes no sense.

        ``ends`` is the deadline by the loop's clock, for a call that began earlier; by default it begins now.
        ``waits_s`` is how long the request allows the broker to wait before it answers.

        Raises:
            BrokerError: the error of the last attempt.
            OutcomeUnknown: an earlier attempt of a write got no answer, and no later attempt settled its outcome.
        """
        attempts = _Attempts(self, request, attempt, ends or self.ends(), waits_s)

        def pause_s(error: Exception, tries: int) -> float | None:
            if not isinstance(error, BrokerError) or not self._is_worth_it(request, error):
                return None
            seconds = self.pause_s(error, tries)
            if attempts.are_over(seconds):
                return None
            self.tell(error, attempts.left_s())
            return seconds

        try:
            return await retries.repeat(attempts.next, pause_s, self.pause)
        except BrokerError as error:
            if attempts.unknown and error.outcome == "refused":
                raise outcomes.never_confirmed(error) from error
            raise

    def ends(self) -> float:
        """Return the deadline of a call that begins now, by the loop's clock. Raises RuntimeError, as ``loop`` does."""
        return self.loop().time() + self.deadline_s

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the call that begins now.

        A client may be used in one loop after the other, as in two calls of ``asyncio.run``.

        Raises:
            RuntimeError: the client is used in another loop, which has not ended.
        """
        loop, former = asyncio.get_running_loop(), self._loop
        if loop is not former:
            if former is not None:
                if not former.is_closed():
                    raise RuntimeError(
                        "This client is used in another event loop. Make one client for each loop."
                    )
                if not self.closed:
                    self._closed = asyncio.Event()
                self.in_new_loop()
            self._loop = loop
        return loop

    def _is_worth_it(self, request: ClientRequest, error: BrokerError) -> bool:
        """Return whether another attempt makes sense, if there is time for it."""
        return not self.closed and outcomes.worth_retrying(request, error)

    def tell(self, error: BrokerError | None, left_s: float | None) -> None:
        """Report trouble that will be retried to ``on_trouble``, if the caller gave one; see ``Trouble``.

        A closed client retries nothing, so it reports nothing: it ended its connections itself.
        """
        if self._on_trouble is None or self.closed:
            return
        failed = user_code.call(self._on_trouble, Trouble(error, left_s)).error
        try:
            if failed is not None:
                log.warning("on_trouble failed: %s", user_code.text_of(failed))
            if failed is not None and user_code.ends_program(failed):
                raise failed
        finally:
            del failed  # From Python 3.12 on, its traceback leads to this frame.

    @contextmanager
    def watched(self, deadline: float, waits_s: float) -> Generator[None]:
        """Report an attempt that takes longer than its answer may wait."""
        if self._on_trouble is None:
            yield
            return
        loop, slow_s = asyncio.get_running_loop(), waits_s + SLOW_S
        timer = loop.call_later(slow_s, self.tell, None, deadline - loop.time() - slow_s)
        try:
            yield
        finally:
            timer.cancel()

    def attempt_s(self, request: ClientRequest, left_s: float) -> float:
        """Return the time limit of one attempt. For a repeatable request it leaves time for a second attempt."""
        longest_s = self.deadline_s
        if request.repeatable:
            longest_s /= 2
        return min(left_s, longest_s)

    def pause_s(self, error: BrokerError, attempts: int) -> float:
        """Return the pause after so many attempts. It is never shorter than the broker's ``Retry-After``."""
        settings = self._settings
        pause_s = retries.jittered_s(
            attempts, settings.retry_delay_min_s, settings.retry_delay_max_s, self._rng
        )
        return max(pause_s, error.retry_after_s or 0.0)

    async def pause(self, seconds: float) -> None:
        """Wait; a close of the client ends the wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return


class _Attempts(Generic[T]):
    """The attempts at one request, and whether one of them has an unknown outcome."""

    def __init__(
        self,
        retrier: Retrier,
        request: ClientRequest,
        attempt: Callable[[float], Awaitable[T]],
        deadline: float,
        waits_s: float,
    ) -> None:
        self.unknown = False
        self._retrier = retrier
        self._request = request
        self._attempt = attempt
        self._waits_s = waits_s
        self._now_s = asyncio.get_running_loop().time
        self._deadline = deadline

    async def next(self) -> T:
        """Make one attempt."""
        try:
            with self._retrier.watched(self._deadline, self._waits_s):
                return await self._attempt(self._retrier.attempt_s(self._request, self.left_s()))
        except BrokerError as error:
            self.unknown = self.unknown or (
                error.outcome == "unknown" and not self._request.reading
            )
            raise

    def left_s(self) -> float:
        """Return how long the attempts may continue."""
        return max(0.0, self._deadline - self._now_s())

    def are_over(self, pause_s: float) -> bool:
        """Return whether no further attempt is allowed after such a pause."""
        return self._now_s() + pause_s >= self._deadline

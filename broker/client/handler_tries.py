"""Handle one batch to its end: the tries, the pauses between them, and the verdict.

::

    call the handler ──▶ done                                         handled
         ▲          ├──▶ Reject                                       given up, now
         │          ├──▶ RetryLater(delay_s)         wait for delay_s; no try
         │          ├──▶ SystemExit, KeyboardInterrupt                the program ends
         │          ├──▶ any other error, or too late: one failed try; ``tries_max`` reached: given up
         │          │                        └─ wait, longer each time, up to ``retry_delay_max_s``
         │          └──▶ the store failed: no try; wait, load the place again
         └───────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from broker import retries, user_code
from broker.client.handler import (
    Calling,
    FailedCall,
    Reject,
    Stopped,
    as_given,
    delay_of,
    log,
)
from broker.client.place_store import OwnPlace
from broker.client.subscription import SubscriberCounts, SubscriberOptions, SubscriberProgress
from broker.client.tries import TryCount
from broker.model import Message


class StillRunning(Exception):
    """A handler did not end in its time, and goes on: ``running``."""

    def __init__(self, running: asyncio.Task[Any]) -> None:
        super().__init__("the handler goes on")
        self.running = running


class TriesUsedUp(Exception):
    """All tries were used up before this subscriber took the place, the last one perhaps by an end of its process."""


class GivenUp(NamedTuple):
    """Why a batch was given up, after so many tries."""

    error: BaseException
    tries: int


class Handling:
    """Handles batches for one subscriber."""

    def __init__(  # noqa: PLR0913 - The parts of a subscriber.
        self,
        name: str,
        calling: Calling,
        own: OwnPlace | None,
        options: SubscriberOptions,
        counts: SubscriberCounts,
        *,
        write: Callable[[SubscriberProgress], Awaitable[None]],
        pause: Callable[[float], Awaitable[None]],
        rng: random.Random,
    ) -> None:
        """``write`` writes the place with the tries at the broker. ``pause`` raises Stopped when that must end."""
        self._name = name
        self._calling = calling
        self._own = own
        self._options = options
        self._counts = counts
        self._write = write
        self._pause = pause
        self._rng = rng

    async def handle(self, progress: SubscriberProgress, batch: list[Message]) -> GivenUp | None:
        """Call the handler until it is done with a batch; return None, or why the batch is given up.

        Raises:
            Stopped, CursorLost: the subscriber must stop, or does not hold the place any more.
            StillRunning: the handler does not end.
            SystemExit, KeyboardInterrupt: the handler raised it.
        """
        tries, place_failures = 0 if progress.tried is None else progress.tried.at(batch), 0
        in_batches = self._options.batch_messages_max is not None
        after = batch[-1].id
        work = None if self._own is None else self._own.work(after)
        while not self._is_used_up(tries):
            if tries or progress.suspects > 0:
                await self._note(progress, batch, tries + 1)
            try:
                failure = await self._calling.hand(as_given(batch, in_batches=in_batches), work)
            except Stopped:
                progress.tried = TryCount.of(
                    batch, tries
                )  # An interrupt is no doing of the message.
                raise
            if failure is None:
                break
            if failure.of_place:
                place_failures += 1
                progress.tried = TryCount.of(batch, tries)  # It is no try, even if one was noted.
                assert self._own is not None, "only a store fails"
                if await self._own.is_moved(failure, after, place_failures):
                    break
            elif (delay_s := delay_of(failure.error)) is not None:
                await self._note(progress, batch, tries)
                await self._pause(delay_s)
            else:
                tries += 1
                if await self._is_given_up(progress, batch, failure, tries):
                    return GivenUp(failure.error, tries)
        else:
            return GivenUp(
                TriesUsedUp("the process of the last try ended, or its log has the error"), tries
            )
        if self._own is not None:
            self._own.moved(after)
        return None

    async def _is_given_up(
        self, progress: SubscriberProgress, batch: list[Message], failure: FailedCall, tries: int
    ) -> bool:
        """Count a failed try, and wait before the next one, unless there is none."""
        error = failure.error
        if user_code.ends_program(error):
            # A message may end each process that handles it. An interrupt is not its doing.
            progress.tried = TryCount.of(batch, tries - isinstance(error, KeyboardInterrupt))
            raise error
        self._counts.failed += 1
        if isinstance(error, Reject):
            return True  # A decision of the handler, which the warning about the dead letter names.
        self._tell(batch, error, tries)
        await self._note(progress, batch, tries)
        if failure.running is not None:
            raise StillRunning(failure.running)
        if self._is_used_up(tries):
            return True
        await self.pause(tries)
        return False

    def _is_used_up(self, tries: int) -> bool:
        most = self._options.tries_max
        return most is not None and tries >= most

    async def skip(self, message: Message) -> None:
        """Move the place in the caller's store past a message that was given up."""
        if self._own is None:
            return
        work, failures = self._own.work(message.id), 0
        while (failure := await self._calling.skip(work)) is not None:
            failures += 1
            if await self._own.is_moved(failure, message.id, failures):
                break
        self._own.moved(message.id)

    async def pause(self, failures: int) -> None:
        """Wait after so many failures in a row."""
        options = self._options
        await self._pause(
            retries.jittered_s(
                failures, options.retry_delay_min_s, options.retry_delay_max_s, self._rng
            )
        )

    async def _note(self, progress: SubscriberProgress, batch: list[Message], tries: int) -> None:
        """Have the count of tries at the broker."""
        progress.tried = TryCount.of(batch, tries)
        if progress.tried != progress.tried_written:
            await self._write(progress)

    def _tell(self, batch: list[Message], error: BaseException, tries: int) -> None:
        most = self._options.tries_max
        log.warning(
            "handler of subscriber %s failed at message %s, try %d%s: %s",
            self._name,
            batch[0].id.hex(),
            tries,
            f" of {most}" if most else "",
            user_code.text_of(error),
            exc_info=user_code.traceback_of(error),
        )

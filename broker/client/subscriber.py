"""The subscriber: passes each message of a topic to a handler, and keeps its place through restarts.

::

    take the place ──> poll behind it ──> handle ──> done ──> keep the place ──────┐
         ^                ^                  │ failed: retry, after a pause        │
         │                │                  │ failed tries_max times              │
         │                │                  v                                     │
         │                │             dead letter ──> keep the place ────────────┤
         │ lost           └────────────────────────────────────────────────────────┘
         └── another subscriber took the place

*At least once*: the subscriber writes the place after the handler returns. So after a crash it handles again the
messages since the last write. Their number is bounded: it writes the place after ``place_messages_max`` messages or
``place_interval_s`` seconds, when no further message is there, after each dead letter, and at the end.

*Exactly once*: a store of the caller keeps the place, and changes it in the same transaction as the handler's own
writes (``PlaceStore``).

No message is skipped in silence, and none blocks the others for good. A message that failed ``tries_max`` times is
published to a topic of dead letters; by default its name ends in ``-dead-letters``, and first use creates it.
Of several subscribers with one name one works, and the others are standbys (see ``place_keepers``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from broker.client import dead_letters, positions
from broker.client.handler import Calling, GaveUp, Handler, Stopped, Trying, Work, as_given, log
from broker.client.place_keepers import (
    CursorKeeper,
    CursorLost,
    CursorOptions,
    OwnKeeper,
    PlaceKeeper,
    PlaceStore,
)
from broker.client.retrier import Retrier
from broker.client.subscription import (
    EmptyPolls,
    SubscriberCounts,
    SubscriberOptions,
    SubscriberProgress,
)
from broker.client.tail import NOW, Backoff
from broker.clock import Clock, SystemClock
from broker.errors import (
    BrokerError,
    CursorMoved,
    IdempotencyKeyReused,
    OutcomeUnknown,
    UnavailableError,
)
from broker.model import Message, MessageId, TopicId, check_cursor

if TYPE_CHECKING:
    from broker.client.aio import Client

T = TypeVar("T")


class Subscriber:
    """Passes the messages of a topic to a handler; ``client.subscriber`` makes one.

    ``run`` works until ``stop``. Run a subscriber once, in the client's event loop.
    """

    def __init__(  # noqa: PLR0913 - All by name.
        self,
        client: Client,
        retrier: Retrier,
        topic: TopicId,
        name: str,
        handler: Handler,
        *,
        executor: Executor | None,
        place: PlaceStore | None,
        options: SubscriberOptions,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``executor`` has one thread, and runs functions that are not asynchronous; None: a thread of its own."""
        self.topic = topic
        self.name = check_cursor(name)
        self.options = options
        self.counts = SubscriberCounts()
        self._client = client
        self._retrier = retrier
        self._own_executor: Executor | None = None
        if executor is None:
            executor = self._own_executor = ThreadPoolExecutor(1, "broker-subscriber")
        self._calling = Calling(handler, executor)
        self._clock = clock or SystemClock()
        self._stopping = asyncio.Event()
        self._trying = Trying(
            tries_max=options.tries_max,
            delay_min_s=options.retry_delay_min_s,
            delay_max_s=options.retry_delay_max_s,
            sleep=self._pause,
            rng=rng,
        )
        self._keeper: PlaceKeeper
        if place is not None:
            self._keeper = OwnKeeper(place, self._calling)
        else:
            wanted = CursorOptions(topic, self.name, self._begin, options.takeover_s)
            self._keeper = CursorKeeper(client.cursors, retrier, wanted, self._pause)
        self._letters = dead_letters.default_topic(topic)
        self._has_letters = False
        self._working = self._began = False

    @property
    def is_working(self) -> bool:
        """True if this subscriber holds the place; False: it is a standby, or has ended."""
        return self._working

    def stop(self) -> None:
        """Make ``run`` finish the current message, write the place, and return. Call it in the loop's thread."""
        self._stopping.set()

    async def run(self) -> None:
        """Handle messages until ``stop``. Cancelling this call has the effect of a crash: it does not write the place.

        Raises:
            TopicNotFound: there is no such topic, or the named topic for dead letters does not exist.
            CursorMoved: the cursor was deleted meanwhile; or the caller's store found that its place was moved.
            BrokerError: the broker refused a necessary request for good, such as a dead letter.
        """
        if self._began:
            raise RuntimeError("A subscriber runs once. Make another one.")
        self._began = True
        try:
            await self._check_letters()
            while not self._stopping.is_set():
                await self._turn()
        except Stopped:
            return
        finally:
            if self._own_executor is not None:
                self._own_executor.shutdown(wait=False)

    async def _turn(self) -> None:
        """Take the place, and work until it is lost or the subscriber must stop. Raises Stopped."""
        try:
            after = await self._keeper.acquire()
            await self._work(SubscriberProgress(after, self._now_s()))
        except CursorLost as lost:
            self.counts.lost += 1
            log.warning("subscriber %s of %s lost its place: %s", self.name, self.topic, lost)
        finally:
            self._working = False

    # The loop.

    async def _work(self, progress: SubscriberProgress) -> None:
        self._working = True
        async with self._keeper.held():
            try:
                while not self._stopping.is_set():
                    await self._page(progress, await self._polled(progress))
            except Stopped:
                self._stopping.set()  # ``stop`` may not have been called: an interrupt of the handler stops it, too.
            except CursorLost:
                raise
            except Exception as error:
                await self._release(progress, error)
                raise
            await self._keeper.release(progress.after)

    async def _release(self, progress: SubscriberProgress, error: Exception) -> None:
        """Release the place after an error. That error is raised, even if the release fails, too."""
        try:
            await self._keeper.release(progress.after)
        except BrokerError as second:
            error.add_note(f"The subscriber could not write its place, either: {second.message}")

    async def _page(self, progress: SubscriberProgress, page: list[Message]) -> None:
        size = self.options.batch_messages_max or 1
        for start in range(0, len(page), size):
            if self._stopping.is_set():
                return
            self._keeper.check()
            await self._batch(progress, page[start : start + size])
            await self._save_if_due(progress)

    async def _save_if_due(self, progress: SubscriberProgress) -> None:
        if progress.is_due(self.options, self._now_s()):
            await self._save(progress)

    async def _save(self, progress: SubscriberProgress) -> None:
        await self._keeper.save(progress.after)
        progress.written(self._now_s())

    async def _polled(self, progress: SubscriberProgress) -> list[Message]:
        """Return the next messages; wait for them without a time limit. Raises Stopped.

        Before it waits, it writes the place. Otherwise a crash during the wait would repeat messages.
        """
        backoff, empty_polls = Backoff(self._retrier, None), EmptyPolls()
        while True:
            self._keeper.check()
            try:
                page = await self._unless_stopped(
                    self._poll(progress.after, empty_polls if progress.is_written else None)
                )
            except UnavailableError as error:
                await self._unless_stopped(backoff.failed(error))
                continue
            if page:
                return page
            backoff.succeeded()
            if not progress.is_written:
                await self._save(progress)

    async def _poll(self, after: MessageId | None, empty: EmptyPolls | None) -> list[Message]:
        """Poll once. With ``empty`` None the broker does not wait."""
        options = self.options
        snapshot = await self._client.transactions.snapshot() if options.transactional else None
        wait_s = 0.0 if empty is None else min(options.wait_s, options.takeover_s)
        asked_s = self._now_s()
        page = await self._client.poll(
            self.topic,
            after,
            inclusive=False,
            limit=options.page_messages_max,
            snapshot=snapshot,
            wait_s=wait_s,
        )
        if not page and empty is not None:
            # If an open transaction holds messages back, the broker answers at once, and only a poll with a new
            # snapshot can show them. Some brokers never wait.
            now_s = self._now_s()
            pause_s = empty.pause_s(now_s, waited=now_s - asked_s >= wait_s / 2)
            if pause_s:
                await asyncio.sleep(pause_s)
        return page

    # One batch.

    async def _batch(self, progress: SubscriberProgress, batch: list[Message]) -> None:
        """Handle a batch. If it fails as a whole, handle its messages one by one; if one fails, make it a dead letter."""
        try:
            await self._handle(batch)
        except GaveUp as failure:
            if len(batch) == 1:
                await self._give_up(progress, batch[0], failure)
                return
            for message in batch:
                if self._stopping.is_set():
                    return
                self._keeper.check()
                await self._batch(progress, [message])
                await self._save_if_due(progress)
            return
        progress.handled(batch)
        self.counts.handled += len(batch)

    async def _handle(self, batch: list[Message]) -> None:
        given = as_given(batch, in_batches=self.options.batch_messages_max is not None)
        work = self._keeper.work(batch[-1].id)

        def failed(error: BaseException, tries: int) -> None:
            self.counts.failed += 1
            log.warning(
                "handler of subscriber %s failed at message %s of %s, try %d of %d",
                self.name,
                batch[0].id.hex(),
                self.topic,
                tries,
                self.options.tries_max,
                exc_info=error,
            )

        # Only a caller's store raises CursorMoved to say that its place was moved.
        final = () if work is None else (CursorMoved,)
        await self._trying.run(lambda: self._calling.hand(given, work), failed, final)

    async def _give_up(
        self, progress: SubscriberProgress, message: Message, failure: GaveUp
    ) -> None:
        """Publish a message as a dead letter, then go on behind it. Its idempotency key prevents a second letter after a crash."""
        letter = dead_letters.letter_of(
            self.topic,
            self.name,
            message,
            failure.error,
            tries=failure.tries,
            now_ms=self._clock.now_ms(),
        )
        await self._publish(letter, dead_letters.key_of(self.topic, self.name, message))
        work = self._keeper.work(message.id)
        if work is not None:
            await self._skip(work)
        progress.handled([message])
        self.counts.dead_letters += 1
        log.error(
            "message %s of %s is a dead letter in %s",
            message.id.hex(),
            self.topic,
            self._letters,
            exc_info=failure.error,
        )
        await self._save(progress)

    async def _skip(self, work: Callable[[], Work]) -> None:
        """Move the place in the caller's store past a message. Raises the error of the last try."""
        try:
            await self._trying.run(
                lambda: self._calling.skip(work), _ignore_failure, (CursorMoved,)
            )
        except GaveUp as failure:
            raise failure.error from None

    async def _publish(self, letter: Any, key: str) -> None:
        """Publish a dead letter, and retry without a time limit. Raises Stopped, BrokerError."""
        backoff = Backoff(self._retrier, None)
        while True:
            try:
                await self._create_letters()
                await self._client.publish(self._letters, letter, idempotency_key=key)
            except IdempotencyKeyReused:
                return  # It was published before a crash, with another time in its headers.
            except (UnavailableError, OutcomeUnknown) as error:
                await self._unless_stopped(backoff.failed(error))
            else:
                return

    # Topics and places.

    async def _check_letters(self) -> None:
        """Check before any message is handled that a named topic for dead letters exists."""
        named = self.options.dead_letters
        if named is None:
            return
        self._letters = self._client._topic(named)  # noqa: SLF001 - The same package.
        if not self.options.create_dead_letters:
            await self._client.topic(self._letters)
            self._has_letters = True

    async def _create_letters(self) -> None:
        if not self._has_letters:
            await self._client.create_topic(self._letters, if_exists="keep")
            self._has_letters = True

    async def _begin(self) -> MessageId | None:
        """Return the place behind which a subscriber with a new name begins."""
        start = self.options.start
        if start == NOW:
            return positions.behind((await self._client.range(self.topic)).latest)
        place = positions.start_of(start)
        return positions.before(place) if isinstance(place, int) else place

    # Stopping.

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _pause(self, seconds: float) -> None:
        """Wait. Raises Stopped as soon as the subscriber must stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise Stopped

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``; cancel it at a stop. Raises Stopped."""
        doing, stopping = asyncio.ensure_future(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Stopped
            return await doing
        finally:
            stopping.cancel()
            if not doing.done():
                doing.cancel()
                await asyncio.wait([doing])


def _ignore_failure(error: BaseException, tries: int) -> None:
    """Ignore a failed try; the last one is raised."""

"""The subscriber: hands each message of a topic to a handler, and keeps its place through restarts.

::

    take the place ──> poll behind it ──> hand over ──> done ──> keep the place ──┐
         ^                ^                  │ fails: again, after a pause          │
         │                │                  │ fails tries_max times                │
         │                │                  v                                      │
         │                │             dead letter ──> keep the place ─────────────┤
         │ lost           └─────────────────────────────────────────────────────────┘
         └── the place was taken by another

*At least once*: the place is kept after the handler is done, so what was handled since the place was last written
comes again after a crash. That is bounded: the place is written when ``place_messages_max`` messages were handled
since, or ``place_interval_s`` seconds have passed, whichever is first; whenever there is nothing more to handle;
behind each dead letter; and at the end. *Exactly once*: the place is in a store of the caller's own, and changes in
one transaction with what the handler does (``PlaceStore``).

No message is passed over in silence, and none holds the others up for good: one that fails ``tries_max`` times goes
to a topic of dead letters. If none is named that is the topic's name and ``-dead-letters``, made on first use.

Of several subscribers of one name one works, and the others wait to take over (see ``keeping``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from broker.client.subscription import SubscriberCounts, SubscriberOptions, SubscriberProgress
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

LOOK_S_MIN: Final = 0.005
LOOK_S_MAX: Final = 0.5
LOOK_PART: Final = 0.125
"""The pause before the next poll of one that an open transaction holds, or that does not wait: this part of the time
for which that lasts, within these bounds. So a message is seen soon after the commit, measured by how long the
transaction took, and a transaction that stays open costs little.
"""


class Looks:
    """Says how long to pause between polls that were empty at once."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def pause_s(self, now_s: float, *, waited: bool) -> float:
        """Return the pause after an empty poll; 0 if it ``waited``, since more may be there now."""
        if waited:
            self._since_s = None
            return 0.0
        if self._since_s is None:
            self._since_s = now_s
        return min(max(LOOK_PART * (now_s - self._since_s), LOOK_S_MIN), LOOK_S_MAX)


class Subscriber:
    """Hands the messages of a topic to a handler; ``client.subscriber`` makes one.

    ``run`` works until ``stop``. It is used once, in the client's event loop.
    """

    def __init__(  # noqa: PLR0913 - All by name.
        self,
        client: Client,
        retrier: Retrier,
        topic: TopicId,
        name: str,
        handler: Handler,
        *,
        executor: Executor,
        place: PlaceStore | None,
        options: SubscriberOptions,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Keep the parts. ``executor`` has one thread, where what is for no asyncio runs."""
        self.topic = topic
        self.name = check_cursor(name)
        self.options = options
        self.counts = SubscriberCounts()
        self._client = client
        self._retrier = retrier
        self._executor = executor
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
        """Return whether this subscriber holds the place; False: it waits for it, or has ended."""
        return self._working

    def stop(self) -> None:
        """Let ``run`` finish the message in work, write the place, and return. To be called in the loop's thread."""
        self._stopping.set()

    async def run(self) -> None:
        """Hand messages over until ``stop``. To cancel it is a crash: the place is not written.

        Raises:
            TopicNotFound: there is no such topic, or none for dead letters where one is named.
            CursorMoved: the cursor was deleted under it; or the caller's own store says that its place was moved.
            BrokerError: the broker refuses for good what it needs, such as a letter.
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
            self._executor.shutdown(wait=False)

    async def _turn(self) -> None:
        """Take the place and work until it is lost, or this subscriber shall stop. Raises Stopped."""
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
                self._stopping.set()  # An interrupt of the handler may be the first to say so.
            except CursorLost:
                raise
            except Exception as error:
                await self._release(progress, error)
                raise
            await self._keeper.release(progress.after)

    async def _release(self, progress: SubscriberProgress, error: Exception) -> None:
        """Let go of the place after an error, which counts more than one that comes of this."""
        try:
            await self._keeper.release(progress.after)
        except BrokerError as second:
            error.add_note(f"Its place could not be written either: {second.message}")

    async def _page(self, progress: SubscriberProgress, page: list[Message]) -> None:
        size = self.options.batch_messages_max or 1
        for start in range(0, len(page), size):
            if self._stopping.is_set():
                return
            self._keeper.check()
            await self._batch(progress, page[start : start + size])
            if progress.is_due(self.options, self._now_s()):
                await self._save(progress)

    async def _save(self, progress: SubscriberProgress) -> None:
        await self._keeper.save(progress.after)
        progress.written(self._now_s())

    async def _polled(self, progress: SubscriberProgress) -> list[Message]:
        """Return the next messages, however long they take. Raises Stopped.

        It waits for them only when the place is written: else no time would bound what comes again after a crash.
        """
        patience, looks = Backoff(self._retrier, None), Looks()
        while True:
            self._keeper.check()
            try:
                page = await self._unless_stopped(
                    self._poll(progress.after, looks if progress.is_written else None)
                )
            except UnavailableError as error:
                await self._unless_stopped(patience.failed(error))
                continue
            if page:
                return page
            patience.succeeded()
            if not progress.is_written:
                await self._save(progress)

    async def _poll(self, after: MessageId | None, looks: Looks | None) -> list[Message]:
        """Poll once; ``looks`` None: without waiting."""
        options = self.options
        snapshot = await self._client.transactions.snapshot() if options.transactional else None
        wait_s = 0.0 if looks is None else min(options.wait_s, options.takeover_s)
        asked_s = self._now_s()
        page = await self._client.poll(
            self.topic,
            after,
            inclusive=False,
            limit=options.page_messages_max,
            snapshot=snapshot,
            wait_s=wait_s,
        )
        if not page and looks is not None:
            # What an open transaction holds is told at once, and only the next snapshot shows it; some brokers don't
            # wait at all.
            now_s = self._now_s()
            pause_s = looks.pause_s(now_s, waited=now_s - asked_s >= wait_s / 2)
            if pause_s:
                await asyncio.sleep(pause_s)
        return page

    # One batch.

    async def _batch(self, progress: SubscriberProgress, batch: list[Message]) -> None:
        """Have a batch handled, its messages one by one if it fails as a whole, or made dead letters."""
        try:
            await self._handle(batch)
        except GaveUp as failure:
            if len(batch) == 1:
                await self._bury(progress, batch[0], failure)
                return
            for message in batch:
                if self._stopping.is_set():
                    return
                self._keeper.check()
                await self._batch(progress, [message])
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

        # Only the caller's own store can say that its place was moved.
        final = () if work is None else (CursorMoved,)
        await self._trying.run(lambda: self._calling.hand(given, work), failed, final)

    async def _bury(self, progress: SubscriberProgress, message: Message, failure: GaveUp) -> None:
        """Publish a message as a dead letter, then go past it. The idempotency key prevents a second one after a crash."""
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
        """Let the caller's store go past a message. Raises what it raises the last time."""
        try:
            await self._trying.run(lambda: self._calling.skip(work), _untold, (CursorMoved,))
        except GaveUp as failure:
            raise failure.error from None

    async def _publish(self, letter: Any, key: str) -> None:
        """Publish a letter, however long that takes. Raises Stopped, BrokerError."""
        patience = Backoff(self._retrier, None)
        while True:
            try:
                await self._create_letters()
                await self._client.publish(self._letters, letter, idempotency_key=key)
            except IdempotencyKeyReused:
                return  # It was published before a crash, with another time in it.
            except (UnavailableError, OutcomeUnknown) as error:
                await self._unless_stopped(patience.failed(error))
            else:
                return

    # Topics and places.

    async def _check_letters(self) -> None:
        """Find out before anything is handled whether the topic for letters is there."""
        named = self.options.dead_letters
        if named is None:
            return
        self._letters = self._client._topic(named)  # noqa: SLF001 - Its own.
        if not self.options.create_dead_letters:
            await self._client.topic(self._letters)
            self._has_letters = True

    async def _create_letters(self) -> None:
        if not self._has_letters:
            await self._client.create_topic(self._letters, if_exists="keep")
            self._has_letters = True

    async def _begin(self) -> MessageId | None:
        """Return the place behind which a new name begins."""
        start = self.options.start
        if start == NOW:
            return positions.behind((await self._client.range(self.topic)).latest)
        place = positions.start_of(start)
        return positions.before(place) if isinstance(place, int) else place

    # Stopping.

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _pause(self, seconds: float) -> None:
        """Wait. Raises Stopped, at once if need be."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise Stopped

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """Wait for something that a stop ends. Raises Stopped."""
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


def _untold(error: BaseException, tries: int) -> None:
    """Ignore a failure that is tried again: it is raised at the end."""

"""The subscriber: passes each message of a topic to a handler, and keeps its place through restarts.

::

    take the place ──> poll behind it ──> handle ──> done ──> keep the place ──────┐
         ^                ^                  │ failed: again, after a pause        │
         │                │                  │ rejected, or failed tries_max times │
         │                │                  v                                     │
         │                │             dead letter ──> keep the place ────────────┤
         │ lost           └────────────────────────────────────────────────────────┘
         └── another subscriber took the place

*At least once*: the subscriber writes the place after the handler returns. So after a crash it handles again the
messages since the last write. Their number is bounded: it writes the place after ``place_messages_max`` messages or
``place_interval_s`` seconds, when no further message is there, after each dead letter, and at the end.

*Exactly once*: a store of the caller keeps the place, and changes it in the same transaction as the handler's own
writes (``PlaceStore``).

No message is skipped in silence. A message whose handler fails is handled again until it succeeds (``handler_tries``). If the
handler rejects it, or after ``tries_max`` tries if that is set, it is published to a topic of dead letters; by default
its name ends in ``-dead-letters``, and first use creates it. Of several subscribers with one name one works, and the
others are standbys (see ``place_keepers``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from broker import user_code
from broker.client import dead_letters, positions
from broker.client.handler import Calling, Handler, Stopped, log
from broker.client.handler_tries import GivenUp, Handling, StillRunning
from broker.client.letter_box import LetterBox
from broker.client.place_keepers import BEATS, CursorKeeper, CursorLost, CursorOptions
from broker.client.place_store import OwnPlace, PlaceStore
from broker.client.retrier import Retrier
from broker.client.subscription import (
    EmptyPolls,
    SubscriberCounts,
    SubscriberOptions,
    SubscriberProgress,
)
from broker.client.tail import NOW, Backoff
from broker.client.tries import Taken
from broker.clock import Clock, SystemClock
from broker.errors import BrokerError, TopicRecreated, UnavailableError
from broker.model import Message, MessageId, TopicId, check_cursor
from broker.places import Place

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
        self._clock = clock or SystemClock()
        self._stopping = asyncio.Event()
        calling = Calling(
            handler, executor, in_store=place is not None, limit_s=options.handler_timeout_s
        )
        self._own = None if place is None else OwnPlace(place, calling, self._pause_after)
        self._handling = Handling(
            self.name,
            calling,
            self._own,
            options,
            self.counts,
            write=self._save,
            pause=self._pause,
            rng=rng or random.Random(),  # noqa: S311 - Jitter is no secret.
        )
        unwritten = options.place_messages_max + (options.batch_messages_max or 1)
        wanted = CursorOptions(topic, self.name, self._begin, options.takeover_s, unwritten)
        self._keeper = CursorKeeper(client.cursors, retrier, wanted, self._pause)
        named = options.dead_letters
        letters = dead_letters.default_topic(topic) if named is None else client._topic(named)  # noqa: SLF001
        if letters == topic:
            raise ValueError("dead_letters is another topic: here each letter would fail again.")
        self._letters = LetterBox(
            client,
            retrier,
            letters,
            may_create=named is None or options.create_dead_letters,
            unless_stopped=self._unless_stopped,
        )
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
            CursorMoved: the cursor was deleted meanwhile.
            TopicRecreated: the topic was deleted and created again, or the place is in another generation of it.
            BrokerError: the broker refused a necessary request for good, such as a dead letter.
            SystemExit, KeyboardInterrupt: the handler raised it; the place is written, and let go.
        """
        if self._began:
            raise RuntimeError("A subscriber runs once. Make another one.")
        self._began = True
        try:
            await self._persistently(self._letters.check)
            while not self._stopping.is_set():
                await self._serve()
        except Stopped:
            return
        finally:
            if self._own_executor is not None:
                self._own_executor.shutdown(wait=False)

    async def _serve(self) -> None:
        """Take the place, and work until it is lost or the subscriber must stop. Raises Stopped."""
        taken = await self._keeper.acquire()
        progress = SubscriberProgress(taken, self._now_s())
        try:
            async with self._keeper.renewed():
                await self._work_to_its_end(progress, taken)
        except CursorLost as lost:
            self.counts.lost += 1
            log.warning("subscriber %s of %s lost its place: %s", self.name, self.topic, lost)
            if self._own is not None:  # Its store may not know of claims.
                await self._pause(self.options.takeover_s / BEATS)
        except StillRunning as late:
            log.warning(
                "subscriber %s of %s has let its place go: the handler goes on",
                self.name,
                self.topic,
            )
            await self._unless_stopped(_ended(late.running))

    # The loop.

    async def _work_to_its_end(self, progress: SubscriberProgress, taken: Taken) -> None:
        """Work while this subscriber holds the place, and let it go at the end; a cancellation does not let it go."""
        try:
            if self._own is not None:
                progress.after = await self._loaded(self._own, taken)
            await self._work(progress)
        except Stopped:
            self._stopping.set()  # ``stop`` may not have been called: an interrupt of the handler stops it, too.
        except BaseException as error:
            if isinstance(error, Exception) or user_code.ends_program(error):
                await self._release(progress, error)
            raise
        await self._keeper.release(progress.place)

    async def _release(self, progress: SubscriberProgress, error: BaseException) -> None:
        """Let the place go after an error. That error is raised, even if this fails, too."""
        try:
            await self._keeper.release(progress.place)
        except BrokerError as second:
            if second is not error:
                error.add_note(
                    f"The subscriber could not write its place, either: {second.message}"
                )

    async def _loaded(self, own: OwnPlace, taken: Taken) -> MessageId | None:
        """Return the place in the caller's store; if it has none, the place where a new name begins."""
        loaded = await own.begin(self.topic, taken.generation)
        if loaded is not None:
            return loaded
        # ``now`` is when the name was new. The cursor knows that, as long as no message was handled.
        if self.options.start == NOW:
            return taken.place.after
        return await self._persistently(self._begin)

    async def _work(self, progress: SubscriberProgress) -> None:
        self._working = True
        try:
            while not self._stopping.is_set():
                await self._page(progress, await self._polled(progress))
        finally:
            self._working = False

    async def _page(self, progress: SubscriberProgress, page: list[Message]) -> None:
        most, start = self.options.batch_messages_max or 1, 0
        while start < len(page) and not self._stopping.is_set():
            # A message of a batch that was given up comes alone, also to the next process.
            tried = progress.tried
            alone = tried is not None and (tried.id, tried.messages) == (page[start].id, 1)
            batch = page[start : start + (1 if alone else most)]
            self._keeper.check()
            await self._batch(progress, batch)
            await self._save_if_due(progress)
            start += len(batch)

    async def _save_if_due(self, progress: SubscriberProgress) -> None:
        if progress.is_due(self.options, self._now_s()):
            await self._save(progress)

    async def _save(self, progress: SubscriberProgress) -> None:
        await self._keeper.save(progress.place)
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
                    self._poll(progress.read_from, empty_polls if progress.is_written else None)
                )
            except UnavailableError as error:
                await self._unless_stopped(backoff.failed(error))
                continue
            if page:
                return page
            backoff.succeeded()
            if not progress.is_written:
                await self._save(progress)

    async def _poll(self, place: Place | None, empty: EmptyPolls | None) -> list[Message]:
        """Poll once. With ``empty`` None the broker does not wait."""
        options = self.options
        snapshot = await self._client.transactions.snapshot() if options.transactional else None
        wait_s = 0.0 if empty is None else min(options.wait_s, options.takeover_s)
        asked_s = self._now_s()
        page = await self._client.poll(
            self.topic,
            place,
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
        """Handle a batch. If it is given up, handle its messages one by one; if one is given up, it is a dead letter."""
        topic, name = self.topic, self.name
        mine = [each for each in batch if not dead_letters.is_for_another(each, topic, name)]
        if mine:
            failed = await self._handling.handle(progress, mine)
            if failed is not None and len(mine) > 1:
                for message in batch:
                    if self._stopping.is_set():
                        return
                    self._keeper.check()
                    await self._batch(progress, [message])
                    await self._save_if_due(progress)
                return
            if failed is not None:
                await self._give_up(progress, mine[0], failed)
                mine, batch = [], batch[batch.index(mine[0]) + 1 :]
        if batch:
            progress.handled(batch)
            self.counts.handled += len(mine)

    async def _give_up(
        self, progress: SubscriberProgress, message: Message, failed: GivenUp
    ) -> None:
        """Publish a message as a dead letter, then go on behind it."""
        about = dead_letters.about(
            self.topic,
            self.name,
            message,
            failed.error,
            failed.tries,
            self._clock.now_ms(),
            generation=progress.generation,
        )
        await self._letters.put(message, about)
        await self._handling.skip(message)
        progress.handled([message])
        self.counts.dead_letters += 1
        told = (message.id.hex(), self.topic, self._letters.topic, about["reason"])
        log.error("message %s of %s is a dead letter in %s: %s", *told)
        await self._save(progress)

    async def _begin(self) -> MessageId | None:
        """Return the place behind which a subscriber with a new name begins."""
        start = self.options.start
        if start == NOW:
            return await self._now()
        place, generation = positions.start_of(start), positions.generation_in(start)
        if generation is not None:
            present = (await self._client.topic(self.topic)).generation
            if present != generation:
                raise TopicRecreated.between(self.topic, generation, present)
        return positions.before(place) if isinstance(place, int) else place

    async def _now(self) -> MessageId:
        """Return the last place; transactional: that before an open transaction, whose messages come when it commits."""
        last = positions.behind((await self._client.range(self.topic)).latest)
        if not self.options.transactional:
            return last
        told = await self._client.blockers(self.topic, limit=1)
        firsts = (bytes.fromhex(each["first"]["id"]) for each in told["blockers"])
        return min([last, *map(positions.before, firsts)])

    async def _persistently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``ask``, which reads; while the broker is away, ask again without a time limit."""
        backoff = Backoff(self._retrier, None)
        while True:
            try:
                return await self._unless_stopped(ask())
            except UnavailableError as error:
                await self._unless_stopped(backoff.failed(error))

    # Stopping.

    async def _pause_after(self, failures: int) -> None:
        await self._handling.pause(failures)

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
            del doing  # The error's traceback keeps this frame.


async def _ended(running: asyncio.Task[object]) -> None:
    """Wait until a call has ended, however it ends."""
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        running.cancel()
        raise

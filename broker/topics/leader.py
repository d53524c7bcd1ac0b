"""Lead one topic: make every write to it while one hold lasts.

A claim creates a leader, and the leader is useless once its hold is done: its memory does not outlive the epoch. It
writes the message log, and under the same epoch the payload logs of the transactions that store into this topic
(stored_payloads.py).

A leader stops in two steps. When it *ends*, it accepts no more requests. When it has *settled*, every write that it
sent has its outcome, and the next leader may take the requests that were certainly not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from typing import TypeVar

from broker.errors import BrokerError, Fenced, NoLeader, NotLeader, Unavailable
from broker.long_work import run_paced
from broker.model import LOG_KEY_MIN, LogKey, PublishRequest, RollbackRange, Topic
from broker.shield import to_its_end
from broker.storage import sweep
from broker.storage.hold import LogHold, PageInversion
from broker.storage.marks import PRODUCER_LIFE_MS
from broker.topics.batches import Batch
from broker.topics.cache import TopicCache
from broker.topics.keyed_log import KeyedLog, request_hash
from broker.topics.overdue import in_time
from broker.topics.producers import Producers
from broker.topics.settings import PublishedIds, PublishOptions, lifetimes_of
from broker.topics.stats import Rates
from broker.topics.stored_payloads import StoredPayloads
from broker.topics.surroundings import Surroundings
from broker.topics.write import KeyMark, ProducerMark, Write
from broker.topics.writer import LogWriter, ends_hold

Result = TypeVar("Result")


class TopicLeader:
    """Writes to one topic while one hold lasts. It calls ``lost`` once when it ends."""

    def __init__(
        self,
        topic: Topic,
        hold: LogHold,
        around: Surroundings,
        committed: Callable[[], None],
        lost: Callable[[TopicLeader], None],
        refused_below: Callable[[], Awaitable[int]],
    ) -> None:
        """Lead ``topic`` through ``hold``, and call ``committed`` after every change to the log.

        ``refused_below`` reads the pointer below which no transaction may publish any more. The leader calls it
        once, before the first publish of a transaction.
        """
        self.topic = topic
        self.hold = hold
        self.ended: BrokerError | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rates: Rates | None = None
        """Counts the committed messages, if present."""
        self.loop = asyncio.get_running_loop()
        self._around = around
        self._notify = committed
        self._lost = lost
        # Before a generation's first commit the log is empty, so the cache misses nothing.
        is_new = not hold.head.total and not hold.head.cells
        self._claimed_at = hold.pointer
        self.cache = TopicCache(around.cache, LOG_KEY_MIN if is_new else hold.pointer)
        self.cache.pointer = hold.pointer
        self.cache.floor = hold.root.floor
        self.writer = LogWriter(
            around, hold, committed=self._committed, lost=lambda _, error: self.end(error)
        )
        self.messages = KeyedLog(around, self.writer)
        self.producers = Producers(around.clock, hold, self.producers_passed, around.keys)
        self.payloads = StoredPayloads(around, self.messages, self.end)
        self._changing: set[asyncio.Task[None]] = set()
        self._refused_below: Callable[[], Awaitable[int]] | None = refused_below

    def producers_passed(self, margin_ms: int = 0) -> LogKey:
        """Return the id below which no mark of a silent producer counts, a margin included."""
        life_ms = self.topic.ttl_ms + PRODUCER_LIFE_MS + margin_ms
        return self.messages.window.passed_before(life_ms)

    @property
    def epoch(self) -> int:
        """Return the epoch of the hold."""
        return self.hold.epoch

    @property
    def busy(self) -> bool:
        """Return whether any work is in progress."""
        parts = (self.messages, self.producers, self.payloads)
        return bool(self._changing) or any(part.busy for part in parts)

    @property
    def has_committed(self) -> bool:
        """Return whether anything was committed under this hold."""
        return self.hold.pointer > self._claimed_at

    def lost_claims(self, before: int) -> int:
        """Return how many consecutive claims were lost before any commit, after ``before`` earlier ones.

        Two nodes that claim a log in turns lose each claim at once. A clean handover does not count.
        """
        if self.has_committed:
            return 0
        return before if isinstance(self.ended, NotLeader | NoLeader) else before + 1

    def ahead_ms(self) -> int:
        """Return how far ids are ahead of the clock."""
        return self.writer.ids.ahead_ms(self._around.clock.now_ms())

    async def publish_request(
        self, request: PublishRequest, options: PublishOptions
    ) -> PublishedIds:
        """Publish messages, a reference or stages. A key or a producer's number makes repetition safe.

        Raises:
            IdempotencyKeyReused, TransactionTooOld, PayloadsSealed: refused.
            Fenced: not stored; the caller may ask the next leader.
            OutcomeUnknown, StorageFull: see LogWriter.submit.
        """
        if options.key is None:
            return await self._publish(request, options, None)
        # Under a producer's number the stored messages may be those of another request.
        is_told = bool(request.payloads) and options.producer is None
        return await self.messages.once(
            options,
            await request_hash(request, options),
            request.pointer,
            lambda mark: self._publish(request, options, mark),
            messages=len(request.payloads) if is_told else None,
        )

    async def _publish(
        self, request: PublishRequest, options: PublishOptions, key: KeyMark | None
    ) -> PublishedIds:
        if options.producer is None:
            return await self._append(request, options, key, None)
        return await self.producers.once(
            options.producer,
            request.pointer,
            lambda mark: self._append(request, options, key, mark),
            options.deadline,
        )

    async def _append(
        self,
        request: PublishRequest,
        options: PublishOptions,
        key: KeyMark | None,
        producer: ProducerMark | None,
    ) -> PublishedIds:
        if request.pointer is not None:
            async with in_time(self._around.clock, options.deadline):
                await self.learn_refused()
        lives = lifetimes_of(request, options)
        write = Write(
            self.loop.create_future(),
            request.payloads or None,
            request.pointer,
            attributes=request.attributes,
            lifetime_ms=lives.all_ms,
            lifetimes_ms=lives.each_ms,
            key=key,
            producer=producer,
            deadline=options.deadline,
            caller=options.caller,
        )
        if request.payloads:
            return await self.writer.submit(write)
        if request.stages:
            return await self.payloads.references.publish(tuple(request.stages), write)
        assert request.pointer is not None, "a publish without messages is a transaction's"
        return await self.payloads.references.publish((request.pointer,), write)

    async def learn_refused(self) -> None:
        """Read, once, the pointer below which this topic refuses transactions at any age. Raises Unavailable."""
        if self._refused_below is not None:
            pointer = await self._refused_below()
            self.writer.refused_below = max(self.writer.refused_below, pointer)
            self._refused_below = None

    async def rollback(self, rollback: RollbackRange) -> None:
        """Mark a transaction's messages in a range as rolled back.

        The rollback finishes even if the caller is cancelled, because storage and cache must agree.
        """
        await to_its_end(self._rollback(*rollback), self._changing)

    async def _rollback(self, pointer: int, first: LogKey, last: LogKey) -> None:
        await self.guarded(self.hold.rollback(pointer, first, last))
        await run_paced(self.cache.mark_rolled_back(first, last, pointer))
        self._notify()

    # Proof of leadership, which answers from memory need.

    async def is_proven(self) -> bool:
        """Return whether a read of storage that begins after this call shows no later leader.

        If the read shows a later leader, this one ends.
        """
        try:
            shown = await self.hold.proof()
        except Unavailable:
            return False
        if not shown and self.hold.done:
            self.end(Fenced(f"Another node leads topic '{self.topic.id}'."))
        return shown and self.ended is None

    # Retention.

    async def invert(self, page: LogKey, is_invalid: Callable[[int], bool]) -> PageInversion:
        """Roll back all messages of invalid transactions in a page. Raises as LogHold.invert does."""
        found = await self.guarded(self.hold.invert(page, is_invalid))
        for pointer in found.inverted:
            await run_paced(self.cache.mark_rolled_back(page, found.last, pointer))
        if found.inverted:
            self._notify()
        return found

    async def raise_floor(self, bound: LogKey) -> None:
        """Raise the floor to the page that holds the first id at or above ``bound``."""
        await self.guarded(sweep.raise_floor(self.hold, bound))
        self.cache.floor = self.hold.root.floor

    async def guarded(self, change: Awaitable[Result]) -> Result:
        """Make a change under this hold. If it fails in a way that ends the hold, end this leader."""
        try:
            return await change
        except BrokerError as error:
            if ends_hold(error, self.hold):
                self.end(error)
            raise

    # Ends.

    def end(self, error: BrokerError) -> None:
        """Stop leading: the hold is done, or about to be released."""
        if self.ended is not None:
            return
        # Without the traceback, which keeps frames with the bodies of requests.
        self.ended = copy(error)
        self._over.set_result(None)
        self.writer.close(error)
        self.payloads.close(error)
        self.messages.forget()
        self.producers.close()
        self.cache.close()
        self.hold.end()
        self._lost(self)

    async def quiet(self) -> None:
        """Wait, after the end, until every write in flight has its outcome."""
        await self.payloads.quiet()
        await self.writer.idle()

    async def settled(self) -> list[Write]:
        """Wait until every write in flight has its outcome; return the requests that were certainly not stored.

        They are requests to the message log, in their order. A request that waits for a key or a reference has to
        begin again, and so does every store.
        """
        await self.payloads.settled()
        return await self.writer.settled()

    async def idle(self) -> None:
        """Wait until no work is in progress; once the leader has ended, only for ``quiet``.

        A queued request is not waited for: ``settled`` answers it, and ``settled``'s caller may be waiting for this
        call.
        """
        while self.busy and self.ended is None:
            working = asyncio.ensure_future(self._finish())
            try:
                await asyncio.wait((working, self._over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                working.cancel()
            try:
                if self.ended is None:
                    working.result()
            finally:
                del working  # See ``shield``.
        if self.ended is not None:
            await self.quiet()

    async def _finish(self) -> None:
        while self.busy:
            await self.payloads.idle()
            await self.messages.idle()
            await self.producers.idle()
            if self._changing:
                await asyncio.wait(set(self._changing))

    def _committed(self, batch: Batch) -> None:
        self.cache.add(batch.entries)
        if self.rates is not None:
            self.loop.call_soon(self.rates.published, len(batch.ids))
        self._notify()

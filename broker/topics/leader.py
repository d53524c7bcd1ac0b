"""Leading one topic: everything that is written to it while one hold lasts.

A leader is made by a claim and is of no more use once its hold is done; nothing that it remembers
outlives the epoch. What it leads: the message log, and under the same epoch the payload logs of the
transactions that store into this topic.

**Publishing a reference** makes a transaction's stored payloads part of the topic, in three steps::

    open ──seal──▶ sealed(at) ──append the reference──▶ (committed) ──▶ published(row id), lazily

The seal comes first, so that whoever sees the reference sees a log to which nothing is added. A second
publish of the same number finds *published* and answers as the first; it finds *sealed* after a crash
between, and looks in the topic behind ``at`` for the reference before it appends one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from broker import guards
from broker.errors import BrokerError, Fenced, OutcomeUnknown, PayloadsSealed, TransactionTooOld
from broker.model import (
    PublishRequest,
    RollbackRange,
    RowId,
    Topic,
)
from broker.storage.control import State
from broker.storage.ports import Batch, Hold
from broker.topics.cache import TopicCache
from broker.topics.keyed import KeyedLog, request_hash
from broker.topics.settings import Published, PublishOptions
from broker.topics.surroundings import Surroundings
from broker.topics.writer import LogWriter, Write

Queued = list[Write]


class TopicLeader:
    """Writes to one topic while one hold lasts. ``lost`` is told once when it ends."""

    def __init__(
        self,
        topic: Topic,
        hold: Hold,
        around: Surroundings,
        *,
        committed: Callable[[], None],
        lost: Callable[[TopicLeader, BrokerError, Queued], None],
    ) -> None:
        """Lead ``topic`` through ``hold``; ``committed`` is called after every change to the log."""
        self.topic = topic
        self.hold = hold
        self.ended: BrokerError | None = None
        self.loop = asyncio.get_running_loop()
        self._around = around
        self._notify = committed
        self._lost = lost
        self.cache = TopicCache(around.cache, hold.control.pointer)
        writer = LogWriter(
            around,
            hold,
            committed=self._committed,
            lost=self._writer_lost,
        )
        self.messages = KeyedLog(around, writer)
        self._payloads: OrderedDict[int, KeyedLog] = OrderedDict()
        self._references: dict[int, asyncio.Task[Published]] = {}
        self._confirming: asyncio.Future[None] | None = None
        self._marking: dict[int, asyncio.Task[None]] = {}

    @property
    def epoch(self) -> int:
        """The epoch of the hold."""
        return self.hold.epoch

    def ahead_ms(self) -> int:
        """How far ids lead the clock."""
        return self.messages.writer.ids.ahead_ms(self._around.clock.now_ms())

    # Publishing.

    def publish(self, write: Write) -> asyncio.Future[Published]:
        """Queue messages without a key."""
        return self.messages.write(write)

    async def publish_reference(self, number: int, lifetime_ms: int | None) -> Published:
        """Make a transaction's stored payloads part of the topic; repeated, answer as before."""
        task = self._references.get(number)
        if task is None:
            task = asyncio.ensure_future(self._publish_reference(number, lifetime_ms))
            self._references[number] = task
            task.add_done_callback(lambda done: self._reference_done(number, done))
        return await asyncio.shield(task)

    def _reference_done(self, number: int, done: asyncio.Task[Published]) -> None:
        self._references.pop(number, None)
        if not done.cancelled():
            done.exception()

    async def _publish_reference(self, number: int, lifetime_ms: int | None) -> Published:
        payloads = await self._payload_log(number)
        hold = payloads.writer.hold
        await payloads.writer.idle()
        control = hold.control
        if control.state is State.PUBLISHED:
            return Published(control.published, control.published, number, replayed=True)
        if control.state is State.DROPPED:
            raise TransactionTooOld(f"The payloads of transaction {number} have expired.")
        found: RowId | None = None
        if control.state is State.SEALED:
            found = await self._find_reference(number, control.sealed_at)
        elif guards.holds("seal-first"):
            await self.guarded(self._around.store.seal(hold, self.hold.control.pointer))
        if found is None:
            future: asyncio.Future[Published] = self.loop.create_future()
            write = Write(future, None, number, lifetime_ms=lifetime_ms)
            found = (await self.messages.write(write)).first
        self._mark_later(hold, found)
        return Published(found, found, number)

    async def _find_reference(self, number: int, at: RowId) -> RowId | None:
        """Look behind ``at`` for a reference that a crash left without its mark."""
        after, through = at, self.hold.control.pointer
        while True:
            page = await self._around.store.scan(
                self.hold.log,
                after,
                through,
                rows_max=self._around.settings.page_rows_max,
                bytes_max=self._around.settings.page_bytes_max,
            )
            for row in page.rows:
                if row.payload_log == number:
                    return row.id
            if not page.more:
                return None
            after = page.seen

    def _mark_later(self, hold: Hold, reference: RowId) -> None:
        # The mark only saves a later search: without it a publish finds the reference by looking.
        if not guards.holds("seal-first"):
            return
        task = asyncio.ensure_future(self._mark_published(hold, reference))
        self._marking[hold.log.number or 0] = task
        task.add_done_callback(lambda _: self._marking.pop(hold.log.number or 0, None))

    async def _mark_published(self, hold: Hold, reference: RowId) -> None:
        try:
            await self._around.store.mark_published(hold, reference)
        except BrokerError as error:
            self.end(error)

    # Storing.

    async def store(self, request: PublishRequest, options: PublishOptions) -> Published:
        """Store payloads of a transaction, to be published by a reference later.

        Raises:
            PayloadsSealed: the reference was published, or is being published.
            TransactionTooOld: the payloads were dropped already.
        """
        assert request.pointer is not None
        number = request.pointer
        payloads = await self._payload_log(number)
        state = payloads.writer.hold.control.state
        if state is State.DROPPED:
            raise TransactionTooOld(f"The payloads of transaction {number} have expired.")
        if state is not State.OPEN or number in self._references:
            raise PayloadsSealed(
                f"The payloads of transaction {number} were published: nothing can be added. "
                "Store before you publish, or publish the rest as messages of the transaction."
            )
        future: asyncio.Future[Published] = self.loop.create_future()
        lifetime_ms = None if options.ttl_s is None else options.ttl_s * 1000
        write = Write(future, request.payloads, lifetime_ms=lifetime_ms, deadline=options.deadline)
        if options.key is None:
            return await payloads.write(write)
        return await payloads.write_keyed(write, options.key, request_hash(request, options))

    async def _payload_log(self, number: int) -> KeyedLog:
        known = self._payloads.get(number)
        if known is not None:
            self._payloads.move_to_end(number)
            return known
        try:
            hold = await self._around.store.open_payloads(self.hold, number)
        except Fenced as error:
            self.end(error)
            raise
        again = self._payloads.get(number)
        if again is not None:
            return again
        around = self._around
        writer = LogWriter(
            around,
            hold,
            committed=lambda _: None,
            lost=self._writer_lost,
            confirm=self._confirm,
        )
        opened = self._payloads[number] = KeyedLog(around, writer)
        self._forget_idle_payload_logs()
        return opened

    def _forget_idle_payload_logs(self) -> None:
        surplus = len(self._payloads) - self._around.settings.payload_logs_open_max
        for number in list(self._payloads)[: max(surplus, 0)]:
            in_use = number in self._references or number in self._marking
            if not in_use and not self._payloads[number].writer.busy:
                del self._payloads[number]

    def _confirm(self) -> asyncio.Future[None]:
        """Return the shared check, begun after the call, that this leader still leads the topic."""
        if self._confirming is None:
            task = asyncio.ensure_future(self._still_leads())
            self._confirming = task
        return asyncio.shield(self._confirming)

    async def _still_leads(self) -> None:
        # Whoever asks from here on must wait for a check of its own: this one's read has begun.
        await asyncio.sleep(0)
        self._confirming = None
        seen = await self._around.store.head(self.hold.log)
        if (
            seen is None
            or seen.epoch != self.epoch
            or seen.generation != self.topic.generation
            or seen.state is State.DELETED
        ):
            raise OutcomeUnknown("The topic changed hands while the payloads were stored.")

    # Rolling back, and ends.

    async def rollback(self, rollback: RollbackRange) -> int:
        """Mark a transaction's rows in a range as rolled back; return how many."""
        first, last, pointer = rollback.first, rollback.last, rollback.pointer
        try:
            count = await self._around.store.negate(self.hold, first, last, pointer)
        except BrokerError as error:
            self.end(error)
            raise
        self.cache.negate(first, last, pointer)
        self._notify()
        return count

    async def drop_payloads(self, number: int) -> None:
        """Declare that a payload log's rows may go, unless it is written to or published just now."""
        payloads = await self._payload_log(number)
        if payloads.writer.busy or number in self._references:
            return
        await self.guarded(self._around.store.drop(payloads.writer.hold))

    async def forget_payloads(self, number: int) -> None:
        """Remove the control row of a dropped payload log whose rows are gone."""
        self._payloads.pop(number, None)
        await self.guarded(self._around.store.forget_payloads(self.hold, number))

    async def guarded(self, change: Awaitable[None]) -> None:
        """Make a change under this hold; one that ends badly ends the hold."""
        try:
            await change
        except BrokerError as error:
            self.end(error)
            raise

    def end(self, error: BrokerError) -> None:
        """Stop leading: the hold is done, or about to be given up."""
        self.messages.writer.close(error)

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        for log in list(self._payloads.values()):
            await log.writer.idle()
        await self.messages.writer.idle()
        if self._marking:
            await asyncio.wait(set(self._marking.values()))

    def _committed(self, batch: Batch) -> None:
        self.cache.add(batch)
        self._notify()

    def _writer_lost(self, writer: LogWriter, error: BrokerError, queued: Queued) -> None:
        if self.ended is not None:
            _refuse(queued, error)
            return
        self.ended = error
        if writer is not self.messages.writer:
            # A store belongs to its payload log: it can't be queued on the message log.
            _refuse(queued, error)
            queued = self.messages.writer.take_queue()
        for log in list(self._payloads.values()):
            log.writer.close(error)
        self.messages.writer.close(error)
        self.cache.clear()
        self._lost(self, error, queued)


def _refuse(queued: Queued, error: BrokerError) -> None:
    refused = Fenced(f"Not done: {error.message}")
    for write in queued:
        if not write.future.done():
            write.future.set_exception(refused)

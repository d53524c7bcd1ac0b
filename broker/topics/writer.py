"""Group commit: requests that arrive together are stored together.

While a batch is being synced, arriving requests gather in the queue. When the sync is done, all of them are the next
batch. So batches grow with the load by themselves, and a lone request does not wait::

    arrive  a b c | d e f g h | …
    commit  [ a ] [  b c  ] [ d e f g h ]

A request is one unit: its messages are consecutive and become visible together. Requests get their ids when their batch
is formed, in the order of arrival. One batch is in flight at a time. Behind it there may be more batches of large
requests, if the table keeps their order.

A writer lives as long as its hold. If an append fails, the hold may be done (see ``ends_hold``). Then the requests of
that batch get its outcome. The next leader gets the requests that were certainly not stored, in the order of arrival.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from broker.errors import (
    BodyTooLarge,
    BrokerError,
    Fenced,
    OutcomeUnknown,
    Overloaded,
    RequestError,
    TransactionTooOld,
    Unavailable,
)
from broker.long_work import ASIDE_BYTES_MIN, ASIDE_ITEMS_MIN, aside
from broker.model import LogKey, timestamp_of
from broker.shares import has_share
from broker.storage.entry import ENTRY_BYTES_MAX
from broker.storage.hold import LogHold
from broker.topics.batches import Batch, answer, batch_of
from broker.topics.log_keys import LeadExceeded
from broker.topics.overdue import Overdue, unanswered
from broker.topics.reserved import is_reserved
from broker.topics.settings import PublishedIds
from broker.topics.surroundings import Surroundings
from broker.topics.write import Write, fail

Lost = Callable[["LogWriter", BrokerError], None]


class LogWriter:
    """Writes requests into one log under one hold. ``lost`` is called once, when the hold is done."""

    def __init__(
        self,
        around: Surroundings,
        hold: LogHold,
        *,
        committed: Callable[[Batch], None],
        lost: Lost,
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Write through ``hold``. Call ``committed`` for each batch, in order, before its requests are answered.

        ``confirm``, if given, must succeed after each append before its requests are answered.
        """
        self.hold = hold
        self.ids = around.log_keys(timestamp_of(hold.pointer))
        self.closed = False
        self.refused_below = 0
        """The writer refuses messages of transactions with a lower pointer (see settlement.py)."""
        self._messages_max = min(around.settings.batch_messages_max, self.ids.at_once_max)
        self._around = around
        self._message_bytes_max = around.logs.entry_bytes_max
        self._request_bytes_max = around.logs.append_bytes_max
        self._clock = around.clock
        self._settings = around.settings
        self._budget = around.queue
        self._topic_label = "/".join(hold.log.topic)
        self._is_stored = hold.log.number is not None
        self._kind = "store" if self._is_stored else "publish"
        if is_reserved(hold.log.topic):
            self._kind = "journal"
        self._committed = committed
        self._lost = lost
        self._confirm = confirm
        self._queue: deque[Write] = deque()
        self._waiting: Counter[str] = Counter()
        self._not_stored: dict[int, list[Write]] = {}
        """Requests of fenced batches, by the batch's number: they were certainly not stored."""
        self._in_flight: dict[int, list[Write]] = {}
        self._batches = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._forming = False
        """True if a batch will be formed without any further event."""
        self._pause: asyncio.Task[None] | None = None
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._overdue = Overdue(around.clock, self._refuse_late)

    @property
    def busy(self) -> bool:
        """Return whether a batch is in flight, or a request is queued for one."""
        return bool(self._under_way or (self._queue and not self.closed))

    def submit(self, write: Write) -> asyncio.Future[PublishedIds]:
        """Queue a request; its future gets the outcome.

        Raises:
            BodyTooLarge: the store can't hold one of its messages.
            Fenced: the hold is done.
            Overloaded: the queue is full.
        """
        if self.closed:
            raise Fenced(f"No node leads topic '{self.hold.log.topic}' just now.")
        if write.size > self._message_bytes_max or write.size > self._request_bytes_max:
            self._check_sizes(write)
        caller, most = write.caller, self._settings.queued_requests_max
        if not has_share(self._waiting[caller] if caller else 0, len(self._queue), most):
            raise Overloaded("The queue of this topic is full. Try again.", retry_after_s=1)
        self._budget.take(write)
        self._queue.append(write)
        self._waiting[caller] += 1
        if write.deadline < self._overdue.due:
            self._overdue.watch(write.deadline)
        if not self._forming:
            self._schedule_batch()
        return write.future

    def _check_sizes(self, write: Write) -> None:
        """Refuse a request that the store can't hold, before it takes ids."""
        payloads = write.payloads or ()
        beside = write.attributes or [b""] * len(payloads)
        if any(
            len(payload) + len(each) > self._message_bytes_max
            for payload, each in zip(payloads, beside, strict=True)
        ):
            raise BodyTooLarge(
                f"A message can't have more than {self._message_bytes_max} bytes, with its key and headers. "
                "Send it in parts."
            )
        if write.size > self._request_bytes_max:
            raise BodyTooLarge(
                f"The messages of a request can't have more than {self._request_bytes_max} bytes together. "
                "Send them in several requests."
            )

    def take_over(self, writes: Sequence[Write]) -> None:
        """Queue requests that a former writer accepted and did not store. The queue's limits don't apply again."""
        self._queue.extend(writes)
        for write in writes:
            self._budget.keep(write)
            self._waiting[write.caller] += 1
        self._overdue.watch(min((write.deadline for write in writes), default=math.inf))
        self._schedule_batch()

    async def refuse_below(self, pointer: int) -> None:
        """Refuse messages of transactions below a pointer; on return no batch in flight has any."""
        self.refused_below = max(self.refused_below, pointer)
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    async def idle(self) -> None:
        """Wait until no batch is in flight and no request is queued; a closed writer does not send its queue."""
        while self.busy:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(future)
            await future

    def close(self, error: BrokerError) -> None:
        """Stop: the hold is done. Batches in flight get their own outcome; see ``settled``."""
        if self.closed:
            return
        self.closed = True
        self._around.ids_ahead.forget(self.hold.log)
        if self._pause is not None:
            self._pause.cancel()
        self._lost(self, error)
        self._wake_if_idle()

    def retire(self) -> None:
        """Accept no more requests, without calling ``lost``. No request may be queued or in flight."""
        self.closed = True
        self.hold.end()
        self._overdue.stop()

    async def settled(self) -> list[Write]:
        """Return the requests of a closed writer that were certainly not stored, in their order."""
        assert self.closed
        await self.idle()
        writes = [
            write for number in sorted(self._not_stored) for write in self._not_stored[number]
        ]
        self._not_stored.clear()
        self._budget.give(self._queue)
        writes.extend(self._queue)
        self._queue.clear()
        self._waiting.clear()
        self._overdue.stop()
        return writes

    # Batches.

    def _schedule_batch(self) -> None:
        """Schedule a batch, if one may be sent. The loop first handles the requests that have already arrived."""
        if (
            self._queue
            and not self._forming
            and not self.closed
            and self._pause is None
            and self._may_send()
        ):
            self._forming = True
            task = self._loop.create_task(self._send())
            self._under_way.add(task)
            task.add_done_callback(self._batch_ended)

    def _may_send(self) -> bool:
        """Return whether a batch may be sent. Behind another batch only a request that fills an entry alone may go."""
        is_large = self._queue[0].size >= ENTRY_BYTES_MAX
        return not self._under_way or (is_large and len(self._under_way) < self.hold.in_flight_max)

    async def _send(self) -> None:
        """Form a batch of the queued requests, and commit it."""
        self._forming = False
        if self.closed or self._pause is not None:
            return
        writes, count, size = self._gather()
        if not writes:
            return
        now_ms = self._clock.now_ms()
        if not self._is_stored:
            self._around.ids_ahead.note(self.hold.log, self.ids.ahead_ms(now_ms))
        try:
            ids = self.ids.take(count, now_ms, self._clock.monotonic() * 1000)
        except LeadExceeded as exceeded:
            self._queue.extendleft(reversed(writes))
            self._waiting.update(write.caller for write in writes)
            self._pause = self._loop.create_task(self._resume(exceeded.wait_ms / 1000))
            return
        self._batches += 1
        await self._commit(self._batches, writes, ids, size)

    def _batch_ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._schedule_batch()
        self._wake_if_idle()

    def _wake_if_idle(self) -> None:
        if not self.busy:
            for future in self._idle_waiters:
                if not future.done():
                    future.set_result(None)
            self._idle_waiters.clear()

    async def _resume(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._pause = None
        self._schedule_batch()

    def _gather(self) -> tuple[list[Write], int, int]:
        """Take the next batch from the queue, with its messages' number and size. Drop requests that are done or late."""
        queue, settings = self._queue, self._settings
        bytes_max, messages_max = settings.batch_bytes_max, self._messages_max
        writes: list[Write] = []
        size = count = 0
        now = self._clock.monotonic()
        while queue:
            write = queue[0]
            if writes and (size + write.size > bytes_max or count + write.count > messages_max):
                break
            self._leaves(queue.popleft())
            if write.is_done or (write.deadline <= now and _refuse(write)):
                self._budget.give([write])
                continue
            if write.pointer is not None and write.pointer < self.refused_below:
                write.fail(_refusal_of_settled(write.pointer))
                self._budget.give([write])
                continue
            writes.append(write)
            size += write.size
            count += write.count
        return writes, count, size

    def _leaves(self, write: Write) -> None:
        self._waiting[write.caller] -= 1
        if self._waiting[write.caller] <= 0:
            del self._waiting[write.caller]

    def _refuse_late(self) -> float:
        """Answer requests past their deadline: refuse those that are queued, or wait for the next leader.

        Of those in flight the outcome is unknown. Return the earliest deadline of the others.
        """
        now = self._clock.monotonic()
        unstored = [each for writes in self._not_stored.values() for each in writes]
        for write in unstored:
            if write.deadline <= now and not write.is_done:
                _refuse(write)
        in_flight = [each for writes in self._in_flight.values() for each in writes]
        for write in in_flight:
            # The others' callers wait beside the work, which must go on to its outcome (``answered_in_time``).
            if write.deadline <= now and write.may_be_carried:
                write.fail(unanswered())
        waiting, self._queue = self._queue, deque()
        for write in waiting:
            if write.is_done or (write.deadline <= now and _refuse(write)):
                self._leaves(write)
                self._budget.give([write])
            else:
                self._queue.append(write)
        self._wake_if_idle()
        left = (w.deadline for w in (*self._queue, *unstored, *in_flight) if w.deadline > now)
        return min(left, default=math.inf)

    async def _batch_aside(self, writes: list[Write], ids: list[LogKey]) -> Batch:
        """Build a large batch in a thread. No other batch is formed meanwhile, so batches go out in the order of ids."""
        self._forming = True
        try:
            return await aside(partial(self._batch, writes, ids))
        finally:
            self._forming = False
            self._schedule_batch()  # The new batch begins after this one has its turn at the log.

    def _batch(self, writes: list[Write], ids: list[LogKey]) -> Batch:
        return batch_of(writes, ids, self.hold.epoch, is_stored=self._is_stored)

    async def _commit(self, number: int, writes: list[Write], ids: list[LogKey], size: int) -> None:
        is_large = size >= ASIDE_BYTES_MIN or len(ids) >= ASIDE_ITEMS_MIN
        self._in_flight[number] = writes
        self._budget.sent(writes)
        try:
            if is_large:
                batch = await self._batch_aside(writes, ids)
            else:
                batch = self._batch(writes, ids)
            await self.hold.append(
                batch.entries, messages=batch.messages, payload_bytes=batch.payload_bytes
            )
            if self._confirm is not None:
                await self._check_leadership(self._confirm)
        except RequestError as error:
            # The request was refused before a write was sent: the hold stays good.
            fail(writes, error)
        except Fenced as error:
            # The batch was certainly not stored, so the next leader may store it, in the same order.
            self._not_stored[number] = writes
            self._overdue.watch(min(write.deadline for write in writes))
            self.close(error)
        except BrokerError as error:
            fail(writes, error)
            if ends_hold(error, self.hold):
                self.close(error)
        except BaseException as error:
            # A bug, or the event loop stops: the write may have been stored.
            unknown = OutcomeUnknown(f"The write was interrupted: {error!r}.")
            fail(writes, unknown)
            self.close(unknown)
            raise
        else:
            self._committed(batch)
            answer(writes, batch, self.hold.log.generation)
            # Count later: the callers of these requests run first.
            self._loop.call_soon(self._count, writes, batch)
        finally:
            del self._in_flight[number]
            self._budget.give(writes)

    @staticmethod
    async def _check_leadership(confirm: Callable[[], Awaitable[None]]) -> None:
        try:
            await confirm()
        except Fenced:
            raise  # No reader can ever see the stored messages, so they may be stored elsewhere.
        except BrokerError as error:
            # The messages are stored. It is unknown whether any consumer will see them.
            raise OutcomeUnknown(error.message) from error

    def _count(self, writes: list[Write], batch: Batch) -> None:
        count = len(batch.ids)
        self._around.metrics.batched(len(writes), count)
        self._around.metrics.moved(self._kind, self._topic_label, count, batch.payload_bytes)


def _refuse(write: Write) -> bool:
    """Refuse a request whose deadline passed before it was sent."""
    write.fail(Overloaded("The deadline passed in the queue."))
    return True


def _refusal_of_settled(pointer: int) -> TransactionTooOld:
    return TransactionTooOld(
        f"Transaction {pointer} is past the longest life of a transaction, and the clean-up of its messages has "
        "begun. Begin a new one."
    )


def ends_hold(error: BrokerError, hold: LogHold) -> bool:
    """Return whether a change that failed with ``error`` ends its hold."""
    return hold.done or not isinstance(error, (RequestError, Unavailable))

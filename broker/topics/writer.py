"""Group commit: requests that arrive together are stored together.

While a batch is being synced, arriving requests gather; when it is done, all that has gathered is the
next batch. So the batch grows with the load by itself, and a lone request waits for nothing::

    arrive  a b c | d e f g h | …
    commit  [ a ] [  b c  ] [ d e f g h ]

A request is one unit: its rows are consecutive and become visible together. Ids are taken when a batch
is formed, in the order of arrival. One batch is under way at a time; large ones two, where the
table keeps their order.

A writer lives as long as its hold. When an append ends badly the hold is done: requests of that batch
get its outcome, and requests that were certainly not stored go to whoever takes the log next, in the
order in which they came.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from broker.model import RowId, timestamp_of
from broker.slices import ASIDE_BYTES_MIN, ASIDE_ITEMS_MIN, aside
from broker.storage.entry import ENTRY_BYTES_MAX
from broker.storage.hold import LogHold
from broker.topics.batches import Batch, answer, batch_of
from broker.topics.ids import LeadExceeded
from broker.topics.overdue import Overdue
from broker.topics.reserved import is_reserved
from broker.topics.settings import PublishedIds
from broker.topics.surroundings import Surroundings
from broker.topics.write import Write

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
        """Write through ``hold``; ``committed`` hears of each batch, in order, before its requests.

        ``confirm``, if given, must succeed after each append before its requests are answered.
        """
        self.hold = hold
        self.ids = around.row_ids(timestamp_of(hold.pointer))
        self.closed = False
        self.refused_below = 0
        """Nothing of a transaction with a lower pointer is written (see settlement.py)."""
        self._rows_max = min(around.settings.batch_rows_max, self.ids.at_once_max)
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
        self._returned: dict[int, list[Write]] = {}
        """Requests of fenced batches, by the batch's number: they certainly were not stored."""
        self._batches = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._forming = False
        """Whether a batch will be formed without any further event."""
        self._pause: asyncio.Task[None] | None = None
        self._quiet: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._overdue = Overdue(around.clock, self._refuse_late)

    @property
    def busy(self) -> bool:
        """Whether anything is under way, or waits for it."""
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
        queue, budget = self._queue, self._budget
        if len(queue) >= self._settings.queued_requests_max:
            raise Overloaded("Too many publishes to this topic wait. Try again.", retry_after_s=1)
        if budget.bytes > budget.bytes_max:
            raise Overloaded("Too many bytes wait to be stored. Try again.", retry_after_s=1)
        queue.append(write)
        budget.bytes += write.size
        if write.deadline < self._overdue.due:
            self._overdue.watch(write.deadline)
        if not self._forming:
            self._form()
        return write.future

    def _check_sizes(self, write: Write) -> None:
        """Refuse what the store can't hold, before it is given ids."""
        payloads = write.payloads or ()
        beside = write.attributes or [b""] * len(payloads)
        if any(
            len(payload) + len(each) > self._message_bytes_max
            for payload, each in zip(payloads, beside, strict=True)
        ):
            raise BodyTooLarge(
                f"A message of more than {self._message_bytes_max} bytes, its key and headers among them, "
                "can't be stored. Send it in parts."
            )
        if write.size > self._request_bytes_max:
            raise BodyTooLarge(
                f"Messages of more than {self._request_bytes_max} bytes can't be stored together. "
                "Send them in several requests."
            )

    def take_over(self, writes: Sequence[Write]) -> None:
        """Queue what a former writer of the log did not store; it was let in once already."""
        self._queue.extend(writes)
        self._budget.bytes += sum(write.size for write in writes)
        self._overdue.watch(min((write.deadline for write in writes), default=math.inf))
        self._form()

    async def refuse_below(self, pointer: int) -> None:
        """Write nothing more of transactions below a pointer; on return nothing of them is under way."""
        self.refused_below = max(self.refused_below, pointer)
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    async def idle(self) -> None:
        """Wait until nothing waits and nothing is under way; a closed writer sends nothing more."""
        while self.busy:
            future: asyncio.Future[None] = self._loop.create_future()
            self._quiet.append(future)
            await future

    def close(self, error: BrokerError) -> None:
        """Stop: the hold is done. What is under way gets its own outcome; see ``settled``."""
        if self.closed:
            return
        self.closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._lost(self, error)
        self._tell_if_quiet()

    def retire(self) -> None:
        """Take nothing more, without telling of it; nothing waits or is under way."""
        self.closed = True
        self.hold.end()

    async def settled(self) -> list[Write]:
        """Return the requests that were certainly not stored, in their order, of a closed writer."""
        assert self.closed
        await self.idle()
        writes = [write for number in sorted(self._returned) for write in self._returned[number]]
        self._returned.clear()
        self._budget.bytes -= sum(write.size for write in self._queue)
        writes.extend(self._queue)
        self._queue.clear()
        return writes

    # Batches.

    def _form(self) -> None:
        """Have a batch formed as soon as the loop has looked at what else arrived, if one may be sent."""
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
            task.add_done_callback(self._landed)

    def _may_send(self) -> bool:
        """Whether a batch may be sent: behind another one only what fills an entry by itself."""
        if not self._under_way:
            return True
        is_large = self._queue[0].size >= ENTRY_BYTES_MAX
        return is_large and len(self._under_way) < self.hold.in_flight_max

    async def _send(self) -> None:
        """Form a batch of what has gathered, and commit it."""
        self._forming = False
        if self.closed or self._pause is not None:
            return
        writes, rows, size = self._gather()
        if not writes:
            return
        try:
            ids = self.ids.take(rows, self._clock.now_ms(), self._clock.monotonic() * 1000)
        except LeadExceeded as exceeded:
            self._queue.extendleft(reversed(writes))
            self._pause = self._loop.create_task(self._resume(exceeded.wait_ms / 1000))
            return
        self._batches += 1
        await self._commit(self._batches, writes, ids, size)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._form()
        self._tell_if_quiet()

    def _tell_if_quiet(self) -> None:
        if not self.busy:
            for future in self._quiet:
                if not future.done():
                    future.set_result(None)
            self._quiet.clear()

    async def _resume(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._pause = None
        self._form()

    def _gather(self) -> tuple[list[Write], int, int]:
        """Take from the queue the next batch, its rows and its size; leave out what nobody waits for."""
        queue, settings = self._queue, self._settings
        bytes_max, rows_max = settings.batch_bytes_max, self._rows_max
        writes: list[Write] = []
        size = rows = dropped = 0
        now = self._clock.monotonic()
        while queue:
            write = queue[0]
            if writes and (size + write.size > bytes_max or rows + write.rows > rows_max):
                break
            queue.popleft()
            if write.future.done() or (write.deadline <= now and _refused(write)):
                dropped += write.size
                continue
            if write.pointer is not None and write.pointer < self.refused_below:
                write.future.set_exception(_settled(write.pointer))
                dropped += write.size
                continue
            writes.append(write)
            size += write.size
            rows += write.rows
        self._budget.bytes -= dropped
        return writes, rows, size

    def _refuse_late(self) -> float:
        """Refuse what waits past its deadline; return the earliest of those that still wait."""
        now = self._clock.monotonic()
        waiting, self._queue = self._queue, deque()
        for write in waiting:
            if write.future.done() or (write.deadline <= now and _refused(write)):
                self._budget.bytes -= write.size
            else:
                self._queue.append(write)
        self._tell_if_quiet()
        return min((w.deadline for w in self._queue if w.deadline > now), default=math.inf)

    async def _batch_aside(self, writes: list[Write], ids: list[RowId]) -> Batch:
        """Put a large batch together in a thread. No other is formed meanwhile, so ids are stored in their order."""
        self._forming = True
        try:
            return await aside(partial(self._batch, writes, ids))
        finally:
            self._forming = False
            self._form()  # It begins after this one has its turn at the log.

    def _batch(self, writes: list[Write], ids: list[RowId]) -> Batch:
        return batch_of(writes, ids, self.hold.epoch, is_stored=self._is_stored)

    async def _commit(self, number: int, writes: list[Write], ids: list[RowId], size: int) -> None:
        is_large = size >= ASIDE_BYTES_MIN or len(ids) >= ASIDE_ITEMS_MIN
        try:
            if is_large:
                batch = await self._batch_aside(writes, ids)
            else:
                batch = self._batch(writes, ids)
            await self.hold.append(
                batch.entries, messages=batch.messages, payload_bytes=batch.payload_bytes
            )
            if self._confirm is not None:
                await self._confirmed(self._confirm)
        except RequestError as error:
            # Refused before anything was sent: the hold goes on.
            fail(writes, error)
        except Fenced as error:
            # Nothing of it counts, so whoever takes the log next may have it, in the same order.
            self._returned[number] = writes
            self.close(error)
        except BrokerError as error:
            fail(writes, error)
            if ends_hold(error, self.hold):
                self.close(error)
        except BaseException as error:
            # A bug, or the loop going down: whatever was sent may have been stored.
            unknown = OutcomeUnknown(f"The write was interrupted: {error!r}.")
            fail(writes, unknown)
            self.close(unknown)
            raise
        else:
            self._committed(batch)
            answer(writes, batch)
            # After those have gone on who waited for it.
            self._loop.call_soon(self._count, writes, batch)
        finally:
            self._budget.bytes -= size

    @staticmethod
    async def _confirmed(confirm: Callable[[], Awaitable[None]]) -> None:
        try:
            await confirm()
        except Fenced:
            raise  # They are stored where no reader can ever look, so they may be stored elsewhere.
        except BrokerError as error:
            # The messages are stored. What could not be found out is whether any consumer will see them.
            raise OutcomeUnknown(error.message) from error

    def _count(self, writes: list[Write], batch: Batch) -> None:
        rows = len(batch.ids)
        self._around.metrics.batched(len(writes), rows)
        self._around.metrics.moved(self._kind, self._topic_label, rows, batch.payload_bytes)


def _refused(write: Write) -> bool:
    """Refuse a request whose deadline passed before it was sent."""
    write.future.set_exception(Overloaded("The deadline passed in the queue."))
    return True


def _settled(pointer: int) -> TransactionTooOld:
    return TransactionTooOld(
        f"Transaction {pointer} is past the longest life of a transaction, and what it published was "
        "looked for already. Begin a new one."
    )


def ends_hold(error: BrokerError, hold: LogHold) -> bool:
    """Whether a change under ``hold`` that failed so leaves the hold of no more use."""
    return hold.done or not isinstance(error, (RequestError, Unavailable))


def fail(writes: Iterable[Write], error: BrokerError) -> None:
    """Answer those requests with an error that have no answer yet."""
    for write in writes:
        if not write.future.done():
            write.future.set_exception(error)

"""Group commit: requests that arrive together are stored together.

While a batch is being synced, arriving requests gather; when it is done, all that has gathered is the
next batch. So the batch grows with the load by itself, and a lone request waits for nothing::

    arrive  a b c | d e f g h | …
    commit  [ a ] [  b c  ] [ d e f g h ]

A request is one unit: its rows are consecutive and become visible together. Ids are taken when a batch
is formed, in the order of arrival. How many batches may be under way is the store's to say.

A writer lives as long as its hold. When an append ends badly the hold is done: requests of that batch
get its outcome, and requests that were never sent go to whoever takes the log next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain

from broker.errors import BodyTooLarge, BrokerError, Fenced, OutcomeUnknown, Overloaded
from broker.model import RowId, timestamp_of
from broker.storage.ports import Batch, Hold, Segment, SideRow
from broker.topics.dedupe import Answer, encode_answer
from broker.topics.ids import LeadExceeded
from broker.topics.settings import Published
from broker.topics.surroundings import Surroundings

ROW_OVERHEAD_BYTES = 64


class Write:
    """One request on its way into a log.

    ``payloads`` None is a reference row. ``key`` is (hash of the key, hash of the body) if keyed.
    """

    __slots__ = (
        "deadline",
        "future",
        "key",
        "lifetime_ms",
        "number",
        "payloads",
        "pointer",
        "size",
    )

    def __init__(  # noqa: PLR0913 - A value; its parts are named by its callers.
        self,
        future: asyncio.Future[Published],
        payloads: Sequence[bytes] | None,
        pointer: int | None = None,
        *,
        number: int | None = None,
        lifetime_ms: int | None = None,
        key: tuple[bytes, bytes] | None = None,
        deadline: float | None = None,
    ) -> None:
        """Keep the request; its size is what it counts for in queues."""
        self.future = future
        self.payloads = payloads
        self.pointer = pointer
        self.number = number
        self.lifetime_ms = lifetime_ms
        self.key = key
        self.deadline = deadline
        self.size = (
            ROW_OVERHEAD_BYTES
            if payloads is None
            else sum(map(len, payloads)) + ROW_OVERHEAD_BYTES * len(payloads)
        )

    @property
    def rows(self) -> int:
        """How many ids it takes."""
        return 1 if self.payloads is None else len(self.payloads)

    @property
    def is_plain(self) -> bool:
        """Whether its rows may share a segment with those of other plain requests."""
        return (
            self.pointer is None
            and self.key is None
            and self.lifetime_ms is None
            and self.number is None
            and self.payloads is not None
        )


Lost = Callable[["LogWriter", BrokerError, list[Write]], None]


class LogWriter:
    """Writes requests into one log under one hold. ``lost`` is called once, when the hold is done."""

    def __init__(
        self,
        around: Surroundings,
        hold: Hold,
        *,
        committed: Callable[[Batch], None],
        lost: Lost,
        confirm: Callable[[], asyncio.Future[None]] | None = None,
    ) -> None:
        """Write through ``hold``; ``committed`` hears of each batch, in order, before its requests."""
        self.hold = hold
        self.ids = around.row_ids(timestamp_of(hold.control.pointer))
        self.closed = False
        self._store = around.store
        self._clock = around.clock
        self._settings = around.settings
        self._budget = around.queue
        self._metrics = around.metrics
        self._topic_label = "/".join(hold.log.topic)
        self._kind = "publish" if hold.log.number is None else "store"
        self._committed = committed
        self._lost = lost
        self._confirm = confirm
        self._queue: deque[Write] = deque()
        self._scheduled = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def busy(self) -> bool:
        """Whether anything waits or is under way."""
        return bool(self._queue or self._under_way)

    def check_room(self) -> None:
        """Raise Overloaded if the queue is full."""
        if len(self._queue) >= self._settings.queued_requests_max:
            raise Overloaded("Too many publishes to this topic wait. Try again.", retry_after_s=1)
        if self._budget.bytes > self._budget.bytes_max:
            raise Overloaded("Too many bytes wait to be stored. Try again.", retry_after_s=1)

    def submit(self, write: Write) -> None:
        """Queue a request; its future gets the outcome."""
        self._queue.append(write)
        self._budget.bytes += write.size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def idle(self) -> None:
        """Wait until nothing waits and nothing is under way."""
        while self.busy:
            if self._under_way:
                await asyncio.wait(self._under_way)
            else:
                await self._clock.sleep(0.001)

    def close(self, error: BrokerError) -> None:
        """Stop: the hold is done. Requests that were never sent are handed to ``lost``."""
        if self.closed:
            return
        self.closed = True
        self._lost(self, error, self.take_queue())

    def take_queue(self) -> list[Write]:
        """Remove and return the requests that were never sent."""
        queued = list(self._queue)
        self._queue.clear()
        self._budget.bytes -= sum(write.size for write in queued)
        return queued

    def _flush(self) -> None:
        self._scheduled = False
        while self._queue and not self.closed and len(self._under_way) < self._store.pipeline_depth:
            writes = self._gather()
            if not writes:
                continue
            count = sum(write.rows for write in writes)
            try:
                ids = self.ids.take(count, self._clock.now_ms(), self._clock.monotonic() * 1000)
            except LeadExceeded as exceeded:
                self._queue.extendleft(reversed(writes))
                self._budget.bytes += sum(write.size for write in writes)
                self._flush_later(exceeded.wait_ms / 1000)
                return
            batch = _batch(writes, ids)
            task = self._loop.create_task(self._commit(batch, writes))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def _flush_later(self, seconds: float) -> None:
        self._scheduled = True

        async def wait() -> None:
            await self._clock.sleep(seconds)
            self._flush()

        task = self._loop.create_task(wait())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _gather(self) -> list[Write]:
        """Take from the queue what the next batch holds, leaving out what nobody waits for."""
        queue = self._queue
        writes: list[Write] = []
        size = rows = 0
        now = self._clock.monotonic()
        while queue:
            write = queue[0]
            if writes and (
                size + write.size > self._settings.batch_bytes_max
                or rows + write.rows > self._settings.batch_rows_max
            ):
                break
            queue.popleft()
            self._budget.bytes -= write.size
            if write.future.done():
                continue
            if write.deadline is not None and write.deadline < now:
                write.future.set_exception(Overloaded("The deadline passed in the queue."))
                continue
            writes.append(write)
            size += write.size
            rows += write.rows
        return writes

    def _count(self, writes: list[Write], batch: Batch) -> None:
        rows = sum(len(segment.ids) for segment in batch.segments)
        payload_bytes = sum(write.size for write in writes) - rows * ROW_OVERHEAD_BYTES
        self._metrics.batched(len(writes), rows)
        self._metrics.moved(self._kind, self._topic_label, rows, payload_bytes)

    async def _commit(self, batch: Batch, writes: list[Write]) -> None:
        try:
            await self._store.append(self.hold, batch)
            if self._confirm is not None:
                await self._confirm()
        except BodyTooLarge as error:
            _fail(writes, error)
        except Fenced as error:
            # Nothing of it counts, so whoever takes the log next may have it, in the same order.
            self._queue.extendleft(reversed(writes))
            self._budget.bytes += sum(write.size for write in writes)
            self.close(error)
        except BrokerError as error:
            _fail(writes, error)
            self.close(error)
        except BaseException as error:
            # A bug, or the loop going down: whatever was sent may have been stored.
            unknown = OutcomeUnknown(f"The write was interrupted: {error!r}.")
            _fail(writes, unknown)
            self.close(unknown)
            raise
        else:
            self._committed(batch)
            _answer(writes, batch)
            self._count(writes, batch)
        finally:
            if self._queue and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)


def _batch(writes: list[Write], ids: list[RowId]) -> Batch:
    """Give each request its ids, joining neighbours that share everything but payloads."""
    if len(writes) == 1 and writes[0].key is None:
        return Batch((_segment(writes[0], ids),), ids[-1])
    segments: list[Segment] = []
    side: list[SideRow] = []
    plain: list[Write] = []
    start = plain_start = 0
    for write in writes:
        end = start + write.rows
        if write.is_plain:
            plain.append(write)
        else:
            if plain:
                segments.append(_joined(plain, ids[plain_start:start]))
                plain = []
            segments.append(_segment(write, ids[start:end]))
            if write.key is not None:
                side.append(_side(write.key, ids[start], ids[end - 1]))
            plain_start = end
        start = end
    if plain:
        segments.append(_joined(plain, ids[plain_start:start]))
    return Batch(tuple(segments), ids[-1], tuple(side))


def _segment(write: Write, ids: list[RowId]) -> Segment:
    return Segment(ids, write.payloads, write.pointer, write.number, write.lifetime_ms)


def _joined(writes: list[Write], ids: list[RowId]) -> Segment:
    payloads = list(chain.from_iterable(write.payloads or () for write in writes))
    return Segment(ids, payloads)


def _side(key: tuple[bytes, bytes], first: RowId, last: RowId) -> SideRow:
    hashed, body_hash = key
    return SideRow(b"k", hashed, first, encode_answer(Answer(first, last, body_hash)))


def _answer(writes: list[Write], batch: Batch) -> None:
    """Tell each request its rows. They are consecutive, in the order of the requests."""
    ids = (
        batch.segments[0].ids
        if len(batch.segments) == 1
        else list(chain.from_iterable(segment.ids for segment in batch.segments))
    )
    start = 0
    for write in writes:
        end = start + write.rows
        if not write.future.done():
            write.future.set_result(Published(ids[start], ids[end - 1], write.pointer))
        start = end


def _fail(writes: list[Write], error: BrokerError) -> None:
    for write in writes:
        if not write.future.done():
            write.future.set_exception(error)

"""The awaited publishes of one topic that share requests.

Callers that publish at the same time share a request, and each gets its own acknowledgement::

    publish("a") ─┐  waiting                 in flight
    publish("b") ─┼─> [a b c] ──────────────> POST …/publish [a b c]   one connection,
    publish("c") ─┘  until the next free      POST …/publish [d e]     in this order
                     place, or a bound

If no request is in flight, a publish leaves at the end of the current iteration of the event loop, together
with the other publishes of that iteration. While requests are in flight, the next batch fills up. So a single
caller never waits for other callers, and the batches grow with the load.

With several connections (``connections_per_topic``) the publisher divides the waiting messages among the idle
ones: the broker reads one request while it syncs another. Then the broker decides the order of calls that
are awaited at the same time.

If the broker refuses a request for a reason that one message may have caused, the publisher sends each of its
messages again alone, so that only the faulty message fails. That is safe, because *refused* means that the
broker stored none of them. For speed, this module does little work per message: it creates one future each.

The deadline of a message counts from its call. One timer of the publisher fails those whose deadlines have passed: in
the queue, between two attempts, and in flight. The next attempt leaves them out, unless an earlier one got no answer.
"""

from __future__ import annotations

import asyncio
import copy
import math
import uuid
from bisect import bisect_right
from operator import add

from broker.client import outcomes, protocol
from broker.client.acknowledgements import each_of
from broker.client.client_request import ClientRequest
from broker.client.message_batch import STEP_MAX, MessageBatch
from broker.client.retrier import Retrier
from broker.client.room import CLOSED, Room
from broker.client.track import Track, TrackTicket
from broker.client.transport import Transport
from broker.client.values import Published, Settings
from broker.errors import BrokerError
from broker.model import TopicId


class TopicPublisher:
    """Collects publishes of one topic and sends them on connections of its own."""

    def __init__(
        self,
        topic: TopicId,
        settings: Settings,
        transport: Transport,
        retrier: Retrier,
        room: Room,
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._retrier = retrier
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._payloads: list[bytes] = []
        self._attributes: list[bytes] = []
        """The encoded key and headers of each payload."""
        self._ttls_s: list[int | None] = []
        self._ends: list[float] = []
        self._answers: list[asyncio.Future[Published]] = []
        self._scheduled = False
        self._batches: dict[MessageBatch, None] = {}
        """The batches whose messages were taken, until they are settled."""
        self._timer: asyncio.TimerHandle | None = None
        self._failed: BrokerError | None = None
        """The error of the last attempt; None after a success."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._tracks = [
            Track(topic, settings, transport) for _ in range(settings.connections_per_topic)
        ]
        self._closed = False

    def add(
        self, payload: bytes, attributes: bytes, ends: float, ttl_s: int | None = None
    ) -> asyncio.Future[Published]:
        """Queue one message, for which the caller has taken room; ``ends`` is not before that of the last message.

        The future is done when the broker has acknowledged or refused it, at the latest at the time ``ends`` of the
        loop.
        """
        answer: asyncio.Future[Published] = self._loop.create_future()
        self._payloads.append(payload)
        self._attributes.append(attributes)
        self._ttls_s.append(ttl_s)
        self._ends.append(ends)
        self._answers.append(answer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        if self._timer is None:
            self._timer = self._loop.call_at(ends, self._expire)
        return answer

    def close(self) -> None:
        """Refuse waiting messages, and end requests in flight as unanswered."""
        self._closed = True
        self._flush()
        for track in self._tracks:
            track.close()

    async def finished(self) -> None:
        """Wait after a close until no request is in flight."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._timer is not None:
            self._timer.cancel()

    def close_if_idle(self, before: float) -> None:
        """Close the connections that were last used before that time of the loop's clock."""
        for track in self._tracks:
            track.close_if_idle(before)

    # --- Batches ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send waiting messages while tracks have free places for requests."""
        self._scheduled = False
        while self._payloads and self._closed:
            self._refuse(len(self._payloads), outcomes.never_sent(CLOSED))
        if self._ends and self._ends[0] <= self._loop.time():
            self._expire()
            return
        while self._payloads:
            track = min(self._tracks, key=lambda track: track.under_way)
            if not track.has_place:
                return
            idle = sum(not track.under_way for track in self._tracks)
            batch = self._take(-(-len(self._payloads) // (idle or 1)))
            if batch is not None:
                task = self._loop.create_task(self._deliver(batch, track, track.enter()))
                self._tasks.add(task)
                task.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._payloads and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _take(self, count_max: int) -> MessageBatch | None:
        """Take as many messages as fit in one request, without those whose callers were cancelled; None: no other."""
        batch = self._cut(self._fitting(min(count_max, self._settings.batch_messages_max)))
        batch.drop_done()
        if batch.payloads:
            batch.failed = self._failed
            self._batches[batch] = None
            return batch
        self._room.give_back(batch.count, batch.size)
        return None

    def _cut(self, count: int) -> MessageBatch:
        """Remove the first messages from the queue."""
        payloads, self._payloads = self._payloads[:count], self._payloads[count:]
        beside, self._attributes = self._attributes[:count], self._attributes[count:]
        ttls_s, self._ttls_s = self._ttls_s[:count], self._ttls_s[count:]
        ends, self._ends = self._ends[:count], self._ends[count:]
        answers, self._answers = self._answers[:count], self._answers[count:]
        return MessageBatch(payloads, beside, ttls_s, ends, answers)

    def _fitting(self, count_max: int) -> int:
        """Return how many waiting messages fit in one request, at least one."""
        size = 0
        lengths = map(len, self._payloads[:count_max])
        for count, length in enumerate(map(add, lengths, map(len, self._attributes))):
            size += length
            if size > self._settings.batch_bytes_max and count:
                return count
        return count_max

    def _refuse(self, count: int, error: BrokerError) -> None:
        """Fail the first messages of the queue."""
        batch = self._cut(count)
        batch.fail(error)
        self._room.give_back(batch.count, batch.size)

    def _expire(self) -> None:
        """Fail the messages whose deadlines have passed, some in each iteration. Wait for the next deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        now = self._loop.time()
        next_ends = min((batch.expire(now) for batch in self._batches), default=math.inf)
        due = bisect_right(self._ends, now)
        if due:
            waits = outcomes.never_sent("earlier publishes of the topic are not settled")
            self._refuse(min(due, STEP_MAX), self._failed or waits)
        if self._ends:
            next_ends = min(next_ends, self._ends[0])
        if next_ends < math.inf:
            self._timer = self._loop.call_at(next_ends, self._expire)
        self._flush_soon()

    async def _deliver(self, batch: MessageBatch, track: Track, ticket: TrackTicket) -> None:
        """Send a batch, and always give each caller an outcome."""
        left = [batch]
        try:
            try:
                await self._publish(batch, track, ticket)
            except BrokerError as error:
                if len(batch.payloads) == 1 or not outcomes.concerns_one_message(error):
                    batch.fail(error)
                    return
            else:
                return
            del self._batches[batch]
            left = batch.singles()
            self._batches |= dict.fromkeys(left)
            for single in left:
                if not single.answers[0].done():
                    await self._deliver_one(single, track, ticket)
        finally:
            track.leave(ticket)
            for each in left:
                # A no-op, unless this task was cancelled or this code has a defect: then the outcome is unknown.
                each.fail(outcomes.gave_up())
                del self._batches[each]
            self._room.give_back(batch.count, batch.size)

    async def _deliver_one(self, single: MessageBatch, track: Track, ticket: TrackTicket) -> None:
        try:
            await self._publish(single, track, ticket)
        except BrokerError as error:
            single.fail(error)

    async def _publish(self, batch: MessageBatch, track: Track, ticket: TrackTicket) -> None:
        """Send a batch until it is settled, at the latest at the deadline of its last message. Raises BrokerError."""
        request = self._request(batch)

        def at_its_turn() -> ClientRequest:
            nonlocal request
            if not batch.unknown and batch.drop_done():
                if not batch.payloads:
                    raise BrokerError("No caller waits for these messages any more.")
                request = self._request(batch)
            batch.in_flight = True
            return request

        async def attempt(left_s: float) -> Published:
            try:
                reply = await track.send(ticket, at_its_turn, left_s)
                return protocol.published(outcomes.checked(request, reply))
            except BrokerError as error:
                batch.unknown = batch.unknown or error.outcome == "unknown"
                # Without its traceback, which holds this batch.
                batch.failed = self._failed = copy.copy(error)
                raise
            finally:
                batch.in_flight = False

        published = await self._retrier.run(request, attempt, ends=batch.last_ends)
        self._failed = None
        batch.succeed(each_of(published, len(batch.answers)))

    def _request(self, batch: MessageBatch) -> ClientRequest:
        key = uuid.uuid4().hex if self._settings.idempotent else None
        return protocol.publish(self._topic, batch.wanted(), key=key)

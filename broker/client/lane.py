"""The awaited publishes of one topic that share requests.

Callers that publish at the same time share a request, and each gets its own acknowledgement::

    publish("a") ─┐  waiting                 in flight
    publish("b") ─┼─> [a b c] ──────────────> POST …/publish [a b c]   one connection,
    publish("c") ─┘  until the next free      POST …/publish [d e]     in this order
                     place, or a bound

If no request is in flight, a publish leaves at the end of the current turn of the event loop, together
with the other publishes of that turn. While requests are in flight, the next batch fills up. So a single
caller never waits for other callers, and the batches grow with the load.

With several connections (``connections_per_topic``) the lane divides the waiting messages among the idle
ones: the broker reads one request while it syncs another. Then the broker decides the order of calls that
are awaited at the same time.

If the broker refuses a request for a reason that one message may have caused, the lane sends each of its
messages again alone, so that only the faulty message fails. That is safe, because *refused* means that the
broker stored none of them. For speed, this module does little work per message: it creates one future each.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from operator import add
from typing import NamedTuple

from broker.client import outcomes, protocol
from broker.client.acknowledgements import each_of
from broker.client.retrier import Retrier
from broker.client.track import Track, TrackTicket
from broker.client.transport import Transport
from broker.client.values import Published, Settings
from broker.errors import BrokerError
from broker.model import PublishRequest, TopicId


class _Batch(NamedTuple):
    payloads: list[bytes]
    attributes: list[bytes]
    answers: list[asyncio.Future[Published]]


class Lane:
    """Collects publishes of one topic and sends them on connections of its own."""

    def __init__(
        self, topic: TopicId, settings: Settings, transport: Transport, retrier: Retrier
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._retrier = retrier
        self._loop = asyncio.get_running_loop()
        self._payloads: list[bytes] = []
        self._attributes: list[bytes] = []
        """The encoded key and headers of each payload."""
        self._answers: list[asyncio.Future[Published]] = []
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._tracks = [
            Track(topic, settings, transport) for _ in range(settings.connections_per_topic)
        ]
        self._closed = False

    def add(self, payload: bytes, attributes: bytes = b"") -> asyncio.Future[Published]:
        """Queue one message. The future is done when the broker has acknowledged or refused it."""
        answer: asyncio.Future[Published] = self._loop.create_future()
        self._payloads.append(payload)
        self._attributes.append(attributes)
        self._answers.append(answer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
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

    def close_if_idle(self, before: float) -> None:
        """Close the connections that were last used before that time of the loop's clock."""
        for track in self._tracks:
            track.close_if_idle(before)

    # --- Batches ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send waiting messages while tracks have free places for requests."""
        self._scheduled = False
        if self._closed:
            self._refuse_waiting()
        while self._payloads:
            track = min(self._tracks, key=lambda track: track.under_way)
            if not track.has_place:
                return
            idle = sum(not track.under_way for track in self._tracks)
            batch = self._take(-(-len(self._payloads) // (idle or 1)))
            if batch.payloads:
                task = self._loop.create_task(self._deliver(batch, track, track.enter()))
                self._tasks.add(task)
                task.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._payloads and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _take(self, count_max: int) -> _Batch:
        """Take as many messages as fit in one request, without those whose callers were cancelled."""
        count = self._fitting(min(count_max, self._settings.batch_messages_max))
        payloads, self._payloads = self._payloads[:count], self._payloads[count:]
        beside, self._attributes = self._attributes[:count], self._attributes[count:]
        answers, self._answers = self._answers[:count], self._answers[count:]
        if any([answer.done() for answer in answers]):  # noqa: C419 - A list is twice as fast.
            kept = [i for i, answer in enumerate(answers) if not answer.done()]
            payloads, beside = [payloads[i] for i in kept], [beside[i] for i in kept]
            answers = [answers[i] for i in kept]
        return _Batch(payloads, beside, answers)

    def _fitting(self, count_max: int) -> int:
        """Return how many waiting messages fit in one request, at least one."""
        size = 0
        lengths = map(len, self._payloads[:count_max])
        for count, length in enumerate(map(add, lengths, map(len, self._attributes))):
            size += length
            if size > self._settings.batch_bytes_max and count:
                return count
        return count_max

    def _refuse_waiting(self) -> None:
        batch = _Batch(self._payloads, self._attributes, self._answers)
        self._payloads, self._attributes, self._answers = [], [], []
        _fail(batch, outcomes.never_sent("the client was closed"))

    async def _deliver(self, batch: _Batch, track: Track, ticket: TrackTicket) -> None:
        """Send a batch, and always give each caller an outcome."""
        try:
            published = await self._publish(batch, track, ticket)
        except BrokerError as error:
            if len(batch.payloads) > 1 and outcomes.concerns_one_message(error):
                await self._deliver_each(batch, track, ticket)
            else:
                _fail(batch, error)
        else:
            results = each_of(published, len(batch.answers))
            for answer, own in zip(batch.answers, results, strict=True):
                if not answer.done():
                    answer.set_result(own)
        finally:
            track.leave(ticket)
            # A no-op, unless this task was cancelled or this code has a defect: then the outcome is unknown.
            _fail(batch, outcomes.gave_up())

    async def _deliver_each(self, batch: _Batch, track: Track, ticket: TrackTicket) -> None:
        for payload, attributes, answer in zip(
            batch.payloads, batch.attributes, batch.answers, strict=True
        ):
            single = _Batch([payload], [attributes], [answer])
            if answer.done():
                continue
            try:
                published = await self._publish(single, track, ticket)
            except BrokerError as error:
                _fail(single, error)
            else:
                if not answer.done():
                    answer.set_result(published)

    async def _publish(self, batch: _Batch, track: Track, ticket: TrackTicket) -> Published:
        key = uuid.uuid4().hex if self._settings.idempotent else None
        attributes = batch.attributes if any(batch.attributes) else ()
        wanted = PublishRequest(None, batch.payloads, attributes=attributes)
        request = protocol.publish(self._topic, wanted, key=key)

        async def attempt(left_s: float) -> Published:
            reply = await track.send(ticket, request, left_s)
            return protocol.published(outcomes.checked(request, reply))

        return await self._retrier.run(request, attempt)


def _fail(batch: _Batch, error: BrokerError) -> None:
    """Give each waiting caller its own copy of an error: a shared one would collect the traceback of each."""
    for answer in batch.answers:
        if not answer.done():
            answer.set_exception(copy.copy(error))

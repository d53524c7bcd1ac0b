"""The awaited publishes of one topic that travel together.

Callers that publish at the same time share a request, and each gets its own acknowledgement::

    publish("a") ─┐  waiting                 under way (requests_in_flight_max)
    publish("b") ─┼─> [a b c] ──────────────> POST …/publish [a b c]   one connection,
    publish("c") ─┘  until the next free      POST …/publish [d e]     in this order
                     place, or a bound

The first publish after a quiet moment leaves at once (at the end of the loop's turn, so that what is
published in the same turn goes along); while requests are under way, the next one fills up. So a lone
caller waits for nobody, and the busier it gets, the fuller the requests.

If the broker refuses a request for what may be the fault of one message, each of its messages is sent
again alone: one that is too large fails by itself. That is safe, because *refused* means that none
of them was stored. Nothing here runs per message but what must: a future each.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from typing import NamedTuple

from broker.client import outcomes, protocol
from broker.client.connection import Connection
from broker.client.protocol import Request
from broker.client.retrying import Retrier
from broker.client.transport import Transport
from broker.client.values import Published, Settings
from broker.errors import BrokerError
from broker.model import TopicId


class _Batch(NamedTuple):
    payloads: list[bytes]
    answers: list[asyncio.Future[Published]]


class Lane:
    """Collects publishes of one topic and sends them on a connection of its own."""

    def __init__(
        self, topic: TopicId, settings: Settings, transport: Transport, retrier: Retrier
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._transport = transport
        self._retrier = retrier
        self._loop = asyncio.get_running_loop()
        self._waiting = _Batch([], [])
        self._waiting_bytes = 0
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    def add(self, payload: bytes) -> asyncio.Future[Published]:
        """Take one message; the future is done when the broker has acknowledged or refused it."""
        answer: asyncio.Future[Published] = self._loop.create_future()
        self._waiting.payloads.append(payload)
        self._waiting.answers.append(answer)
        self._waiting_bytes += len(payload)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return answer

    def close(self) -> None:
        """Refuse what waits, and end what is under way as unanswered."""
        self._closed = True
        self._flush()
        if self._connection is not None:
            self._connection.close()

    async def finished(self) -> None:
        """Wait until nothing is under way any more, after a close."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def close_if_idle(self, before: float) -> None:
        """Close the connection if it was last used before that time of the loop's clock."""
        connection = self._connection
        if connection is not None and not self._tasks and connection.idle_since < before:
            connection.close()
            self._connection = None

    # --- Batches ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._scheduled = False
        if self._closed:
            self._refuse_waiting()
        while self._waiting.payloads and len(self._tasks) < self._in_flight_max():
            batch = self._take()
            if batch.payloads:
                task = self._loop.create_task(self._deliver(batch))
                self._tasks.add(task)
                task.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting.payloads and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _in_flight_max(self) -> int:
        """Return how many requests may be under way; one until the server is known."""
        ours = self._connection is not None and self._connection.ours
        return self._settings.requests_in_flight_max if ours else 1

    def _take(self) -> _Batch:
        """Take what fits in one request, without the messages whose callers have gone."""
        payloads, answers = self._waiting
        count = self._fitting()
        self._waiting = _Batch(payloads[count:], answers[count:])
        del payloads[count:], answers[count:]
        self._waiting_bytes -= sum(map(len, payloads))
        if any(answer.done() for answer in answers):
            kept = [
                (payload, answer)
                for payload, answer in zip(payloads, answers, strict=True)
                if not answer.done()
            ]
            return _Batch([payload for payload, _ in kept], [answer for _, answer in kept])
        return _Batch(payloads, answers)

    def _fitting(self) -> int:
        """Return how many waiting messages fit in one request, at least one."""
        payloads, settings = self._waiting.payloads, self._settings
        if self._waiting_bytes <= settings.batch_bytes_max:
            return min(len(payloads), settings.batch_messages_max)
        size = 0
        for count, payload in enumerate(payloads[: settings.batch_messages_max]):
            size += len(payload)
            if size > settings.batch_bytes_max and count:
                return count
        return min(len(payloads), settings.batch_messages_max)

    def _refuse_waiting(self) -> None:
        batch, self._waiting, self._waiting_bytes = self._waiting, _Batch([], []), 0
        _fail(batch, outcomes.never_sent("the client was closed"))

    async def _deliver(self, batch: _Batch) -> None:
        """Send a batch and give each caller its outcome; never leave one without."""
        try:
            published = await self._publish(batch.payloads)
        except BrokerError as error:
            if len(batch.payloads) > 1 and outcomes.concerns_one_message(error):
                await self._deliver_each(batch)
            else:
                _fail(batch, error)
        else:
            for answer in batch.answers:
                if not answer.done():
                    answer.set_result(published)
        finally:
            # Only after a defect of ours or a cancelled loop: nobody knows how far it came.
            _fail(batch, outcomes.gave_up())

    async def _deliver_each(self, batch: _Batch) -> None:
        for payload, answer in zip(batch.payloads, batch.answers, strict=True):
            if answer.done():
                continue
            try:
                published = await self._publish([payload])
            except BrokerError as error:
                _fail(_Batch([payload], [answer]), error)
            else:
                if not answer.done():
                    answer.set_result(published)

    async def _publish(self, payloads: list[bytes]) -> Published:
        key = uuid.uuid4().hex if self._settings.idempotent else None
        request = protocol.publish(self._topic, payloads, key=key)
        return await self._retrier.run(request, lambda left_s: self._attempt(request, left_s))

    async def _attempt(self, request: Request, timeout_s: float) -> Published:
        connection = await self._usable_connection()
        reply = await connection.send(request, timeout_s)
        if not outcomes.succeeded(reply):
            raise outcomes.error_of(request, reply)
        return protocol.published(reply)

    async def _usable_connection(self) -> Connection:
        connection = self._connection
        oldest = self._loop.time() - self._settings.idle_s_max
        if connection is not None and connection.usable:
            if connection.requests_in_flight or connection.idle_since >= oldest:
                return connection
            connection.close()
        async with self._connecting:
            connection = self._connection
            if connection is None or not connection.usable:
                if self._closed:
                    raise outcomes.never_sent("the client was closed")
                connection = self._connection = await self._transport.connect()
            return connection


def _fail(batch: _Batch, error: BrokerError) -> None:
    """Give every caller that still waits an error of its own (a shared one would pile up frames)."""
    for answer in batch.answers:
        if not answer.done():
            answer.set_exception(copy.copy(error))

"""Publishing in the background: the caller continues while a bounded queue holds its messages.

::

    publish_later ──> [ queue of a topic ] ──> one request at a time, as full as its bounds allow
         │                                          │ refused for now: again, up to attempts_max
         └ full: wait | drop | raise                └ acknowledged, refused, unknown: the future

One request of a topic is in flight at a time, and the next one leaves only after it is settled. So the
order of the calls is the order in the topic, also with retries. Calls that wait for room also keep their
order: they enter the queue one after the other, even if a later, smaller message would fit first. The bounds
apply to all topics together.
No message is lost in silence: the queue counts each message that it drops or gives up, and sets the error
on its future. It logs the first of a series of losses.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.client import outcomes, protocol
from broker.client.acknowledgements import each_of
from broker.client.protocol import ClientRequest
from broker.client.publish_request import EncodedMessage, joined
from broker.client.retrier import Retrier
from broker.client.values import OnFull, Published, Settings, check_on_full
from broker.errors import BrokerError, Overloaded
from broker.model import TopicId

log: Final = logging.getLogger(__name__)

Answer = asyncio.Future[Published]
Send = Callable[[ClientRequest, float], Awaitable[Published]]
_Batch = list[tuple[EncodedMessage, Answer]]


@dataclass(slots=True)
class Counts:
    """Counts messages by outcome. Every accepted message ends as published, refused or unknown."""

    accepted: int = 0
    published: int = 0
    refused: int = 0
    unknown: int = 0
    dropped: int = 0
    """Not accepted, because the queue was full."""


class Later:
    """The queue of ``publish_later``."""

    def __init__(self, settings: Settings, retrier: Retrier, send: Send) -> None:
        self.counts = Counts()
        self._settings = settings
        self._retrier = retrier
        self._send = send
        self._queues: dict[TopicId, deque[tuple[EncodedMessage, Answer]]] = {}
        self._workers: dict[TopicId, asyncio.Task[None]] = {}
        self._unsettled: set[Answer] = set()
        self._bytes = 0
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held by the call that waits for room. An asyncio.Lock is granted in the order of requests."""
        self._closed = False
        self._losing = False

    @property
    def waiting(self) -> int:
        """The number of messages that are not settled yet."""
        return len(self._unsettled)

    async def put(
        self, topic: TopicId, message: EncodedMessage, on_full: OnFull | None = None
    ) -> Answer:
        """Queue a message.

        Raises:
            Overloaded: there is no room, and ``on_full`` is ``"raise"``.
            Unavailable: the client was closed.
            ValueError: ``on_full`` is none of the allowed words.
        """
        choice = check_on_full(on_full or self._settings.later_on_full)
        if choice == "wait":
            async with self._turn:
                while not self._closed and not self._has_room(message):
                    self._room.clear()
                    await self._room.wait()
                return self._accept(topic, message)
        if not self._closed and (self._turn.locked() or not self._has_room(message)):
            return self._turn_away(choice)
        return self._accept(topic, message)

    async def flush(self) -> None:
        """Wait until all messages accepted so far are settled."""
        if self._unsettled:
            await asyncio.wait(set(self._unsettled))

    async def close(self, timeout_s: float) -> None:
        """Accept nothing more; give the queued messages ``timeout_s`` seconds, then give them up."""
        self._closed = True
        self._room.set()
        if self._unsettled:
            await asyncio.wait(set(self._unsettled), timeout=timeout_s)
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        for queue in self._queues.values():
            self._settle_all(list(queue), outcomes.never_sent("the client was closed"))
        self._queues.clear()

    # --- Inside -----------------------------------------------------------------------------------

    def _has_room(self, message: EncodedMessage) -> bool:
        """Return whether one more message fits; one message always fits in an empty queue."""
        waiting, settings = len(self._unsettled), self._settings
        return not waiting or (
            waiting < settings.later_messages_max
            and self._bytes + message.size <= settings.later_bytes_max
        )

    def _turn_away(self, choice: OnFull) -> Answer:
        """Drop a message for which there is no room, or raise Overloaded."""
        error = Overloaded("The queue of messages to be published later is full.")
        if choice == "raise":
            raise error
        answer: Answer = asyncio.get_running_loop().create_future()
        self.counts.dropped += 1
        self._lose(answer, error)
        return answer

    def _accept(self, topic: TopicId, message: EncodedMessage) -> Answer:
        """Queue a message. Raises Unavailable if the queue is closed."""
        if self._closed:
            raise outcomes.never_sent("the client was closed")
        answer: Answer = asyncio.get_running_loop().create_future()
        self.counts.accepted += 1
        self._bytes += message.size
        self._unsettled.add(answer)
        self._queues.setdefault(topic, deque()).append((message, answer))
        if topic not in self._workers:
            self._workers[topic] = asyncio.create_task(self._work(topic))
        return answer

    async def _work(self, topic: TopicId) -> None:
        """Publish the waiting messages of a topic, then end."""
        batch: _Batch = []
        try:
            queue = self._queues[topic]
            while queue:
                batch = self._take(queue)
                await self._publish(topic, batch)
        finally:
            # A no-op, unless this task was cancelled.
            self._settle_all(batch, outcomes.gave_up())
            del self._workers[topic]
            if not self._queues.get(topic, True):
                del self._queues[topic]

    def _take(self, queue: deque[tuple[EncodedMessage, Answer]]) -> _Batch:
        batch, size = [queue.popleft()], 0
        while queue and len(batch) < self._settings.batch_messages_max:
            size += batch[-1][0].size
            if size + queue[0][0].size > self._settings.batch_bytes_max:
                break
            batch.append(queue.popleft())
        return batch

    async def _publish(self, topic: TopicId, batch: _Batch) -> None:
        key = uuid.uuid4().hex if self._settings.idempotent else None
        request = protocol.publish(topic, joined([message for message, _ in batch]), key=key)
        try:
            published = await self._retrier.run(
                request,
                lambda left_s: self._send(request, left_s),
                attempts_max=self._settings.later_attempts_max,
            )
        except BrokerError as error:
            if len(batch) > 1 and outcomes.concerns_one_message(error):
                for single in batch:
                    await self._publish(topic, [single])
            else:
                self._settle_all(batch, error)
        else:
            self._settle(batch, each_of(published, len(batch)))

    def _settle_all(self, batch: _Batch, outcome: BrokerError) -> None:
        self._settle(batch, [outcome] * len(batch))

    def _settle(self, batch: _Batch, results: Sequence[Published | BrokerError]) -> None:
        for (message, answer), outcome in zip(batch, results, strict=True):
            if answer not in self._unsettled:
                continue
            self._unsettled.discard(answer)
            self._bytes -= message.size
            if isinstance(outcome, BrokerError):
                self._count_loss(outcome)
                self._lose(answer, outcome)
            else:
                self.counts.published += 1
                self._losing = False
                if not answer.done():
                    answer.set_result(outcome)
        self._room.set()

    def _count_loss(self, error: BrokerError) -> None:
        if error.outcome == "unknown":
            self.counts.unknown += 1
        else:
            self.counts.refused += 1

    def _lose(self, answer: Answer, error: BrokerError) -> None:
        """Set a future's error, and log the first of a series of losses."""
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # The caller may ignore the future; ``counts`` has the loss.
        if not self._losing:
            self._losing = True
            log.warning(
                "messages to be published later are lost: %s %s", error.message, self.counts
            )

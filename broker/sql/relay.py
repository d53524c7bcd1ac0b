"""Relay an outbox: publish the batches of each topic, one at a time. ``outbox`` says why each is published once."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy.exc import IntegrityError

from broker import retries
from broker.client.acknowledgements import ids_of
from broker.clock import Clock, SystemClock
from broker.errors import BrokerError, OutcomeUnknown
from broker.escapes import escaping_logger
from broker.sql.work import DATABASE_ERRORS, SqlWork

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from broker.client import Client, Published
    from broker.sql.outbox import Outbox, OutboxBatch

log: Final = escaping_logger(__name__)

KNOWN_MS: Final = 7 * 24 * 3600 * 1000
"""The shortest time for which the broker knows a producer's number; the topic's ttl comes on top."""

PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 30.0

TOPICS_AT_ONCE: Final = 16
"""How many topics are relayed side by side. Their SQL transactions come one after the other."""
BATCHES_A_TURN: Final = 32
"""After so many batches another topic may take a topic's place."""

EXPECTED: Final = (BrokerError, *DATABASE_ERRORS)
"""Errors that the relay logs without a traceback. Any other one is of a row that this client can't publish, or a defect."""


class TopicDelay(NamedTuple):
    """The back-off of a topic: its failures in a row, and the monotonic time of the next try."""

    failures: int
    until: float


NO_DELAY: Final = TopicDelay(0, 0.0)


class Overtaken(Exception):
    """Another relay has assigned the next batch."""


class CounterWentBack(BrokerError):
    """The broker has seen higher numbers of this topic's producer than the database has."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"The outbox counts the batches of {topic} from a number that the broker has seen before: was the database "
            "restored from a backup? Nothing was deleted. Call outbox.renew, so that the relay can go on."
        )


class Relay:
    """One relay. Several may run over the same outbox."""

    def __init__(
        self,
        outbox: Outbox,
        client: Client,
        engine: Engine | AsyncEngine,
        clock: Clock | None = None,
    ) -> None:
        self._outbox = outbox
        self._client = client
        self._work = SqlWork(engine, in_turn=True)
        self._clock = clock or SystemClock()
        self._rng = random.Random()  # noqa: S311 - Jitter is no secret.
        self._failures = 0
        """How often the outbox could not be read, in a row."""
        self._delays: dict[str, TopicDelay] = {}
        self._served: dict[str, int] = {}
        """The number of the last turn of each topic with rows."""
        self._turns = 0
        self._stopped = asyncio.Event()

    async def run(self, stop: asyncio.Event | None, idle_s: float) -> None:
        """Relay until ``stop`` is set. A failing or a slow topic does not block the others."""
        stopped = self._stopped = stop or asyncio.Event()
        waiting_for_stop = asyncio.ensure_future(stopped.wait())
        turns: dict[str, asyncio.Task[None]] = {}
        try:
            while not stopped.is_set():
                pause_s = await self._begin_turns(turns, idle_s)
                await asyncio.wait(
                    {waiting_for_stop, *turns.values()},
                    timeout=pause_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for topic in [topic for topic, turn in turns.items() if turn.done()]:
                    turns.pop(topic).result()
            await asyncio.gather(*turns.values())
        finally:
            waiting_for_stop.cancel()
            await _end(turns.values())

    async def _begin_turns(self, turns: dict[str, asyncio.Task[None]], idle_s: float) -> float:
        """Begin a turn of each topic that has rows, has no turn, and does not back off. Return how long to wait at most.

        Those whose last turn is longest ago come first.
        """
        try:
            rows = await self._work(self._outbox.counts)
        except Exception as error:
            self._failures += 1
            pause_s = retries.jittered_s(self._failures, PAUSE_MIN_S, PAUSE_MAX_S, self._rng)
            log.warning(
                "the outbox can't be read, and the relay retries in %.1f s: %r",
                pause_s,
                error,
                exc_info=not isinstance(error, EXPECTED),
            )
            return pause_s
        self._failures = 0
        self._delays = {topic: delay for topic, delay in self._delays.items() if topic in rows}
        self._served = {topic: turn for topic, turn in self._served.items() if topic in rows}
        now = self._clock.monotonic()
        for topic in sorted(rows, key=lambda topic: self._served.get(topic, 0)):
            delay = self._delays.get(topic, NO_DELAY)
            if topic in turns or delay.until > now:
                continue
            if len(turns) >= TOPICS_AT_ONCE:
                break
            self._turns += 1
            self._served[topic] = self._turns
            turns[topic] = asyncio.create_task(self._turn(topic))
        return min(
            [idle_s, *(each.until - now for each in self._delays.values() if each.until > now)]
        )

    async def _turn(self, topic: str) -> None:
        """Relay some batches of a topic. After a failure, let the topic back off."""
        try:
            for _ in range(BATCHES_A_TURN):
                if self._stopped.is_set() or not await self._next(topic):
                    break
            self._delays.pop(topic, None)
        except Exception as error:
            failures = self._delays.get(topic, NO_DELAY).failures + 1
            pause_s = retries.jittered_s(failures, PAUSE_MIN_S, PAUSE_MAX_S, self._rng)
            self._delays[topic] = TopicDelay(failures, self._clock.monotonic() + pause_s)
            log.warning(
                "messages of %s stay in the outbox, and the relay retries in %.1f s: %s",
                topic,
                pause_s,
                error,
                exc_info=not isinstance(error, EXPECTED),
            )

    async def all(self) -> int:
        """Relay the messages that are in the outbox now, and return their number.

        The topics take turns, a batch each. So a topic that gets ever more messages does not hold the others up.

        Raises:
            Exception: the first error, after all other topics are done.
        """
        relayed = 0
        first: Exception | None = None
        waiting = OrderedDict(await self._work(self._outbox.counts))
        while waiting:
            topic, left = waiting.popitem(last=False)
            try:
                count = await self._next(topic)
            except Exception as error:
                error.add_note(f"In the outbox, of topic {topic}.")
                if first is None:
                    first = error
                else:
                    log.warning(
                        "messages of %s stay in the outbox, too: %s",
                        topic,
                        error,
                        exc_info=not isinstance(error, EXPECTED),
                    )
                continue
            relayed += count
            if 0 < count < left:
                waiting[topic] = left - count
        try:
            if first is not None:
                raise first
        finally:
            del first  # The error's traceback keeps this frame.
        return relayed

    async def _next(self, topic: str) -> int:
        """Relay the next batch of a topic, and return the number of its messages."""
        batch = await self._work(self._outbox.assigned, topic)
        if batch is None:
            batch = await self._assign(topic)
        else:
            await self._check_age(batch)
        if batch is None:
            return 0
        published = await self._client.publish(
            batch.topic, batch.messages, producer=(batch.producer, batch.number)
        )
        known = not published.replayed or await self._is_in_topic(batch, published)
        await self._work(self._outbox.forget, batch, known=known)
        return len(batch.messages)

    async def _is_in_topic(self, batch: OutboxBatch, published: Published) -> bool:
        """Return whether the messages that the broker has under the number of a batch are those of the batch.

        This compares their count, and each message that has not expired or been purged. A leader that did not store
        the batch itself answers without the count. Then the ids tell it.
        """
        count, first, last = len(batch.messages), published.first_id, published.last_id
        if published.count not in {None, count}:
            return False
        ids = None if first is None or last is None else ids_of(first, last, count)
        if ids is None and published.count is None:
            return False  # The ids are those of another number of messages, or of none that the broker remembers.
        sent = dict(zip(ids or (), batch.messages, strict=False))
        found = await self._client.poll(batch.topic, first, limit=count) if sent else []
        return all(
            (message.payload, message.key, message.headers) == (own.payload, own.key, own.headers)
            for message in found
            if (own := sent.get(message.id)) is not None
        )

    async def _assign(self, topic: str) -> OutboxBatch | None:
        """Assign the next batch, and return it; None if there are no rows."""
        try:
            if not await self._work(self._outbox.assign, topic, self._clock.now_ms()):
                return None
        except (Overtaken, IntegrityError):
            log.info("another relay has assigned the next batch of %s", topic)
        return await self._work(self._outbox.assigned, topic)

    async def _check_age(self, batch: OutboxBatch) -> None:
        """Raise OutcomeUnknown if the broker may have forgotten the number of a batch."""
        age_ms = self._clock.now_ms() - batch.assigned_ms
        if age_ms <= KNOWN_MS:
            return
        ttl_s = (await self._client.topic(batch.topic)).ttl_s
        if age_ms > KNOWN_MS + ttl_s * 1000:
            raise OutcomeUnknown(
                f"Batch {batch.number} of {batch.topic} was assigned {age_ms // 86_400_000} days ago. The broker no longer "
                "knows whether it was published. Look for its messages at the consumers, then call "
                f"outbox.settle(engine, {batch.topic!r}, batch={batch.number}, published=True or False)."
            )


async def _end(turns: Iterable[asyncio.Task[None]]) -> None:
    """Cancel turns that have not ended, and wait for their end."""
    left = [turn for turn in turns if not turn.done()]
    for turn in left:
        turn.cancel()
    if left:
        await asyncio.wait(left)

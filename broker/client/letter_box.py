"""Publishes the dead letters of one subscriber, and creates their topic on first use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from broker.client import dead_letters
from broker.client.retrier import Retrier
from broker.client.tail import Backoff
from broker.client.values import NewMessage
from broker.errors import (
    BodyTooLarge,
    IdempotencyKeyReused,
    OutcomeUnknown,
    TopicNotFound,
    UnavailableError,
)
from broker.model import Message, TopicId

if TYPE_CHECKING:
    from broker.client.aio import Client


class LetterBox:
    """The topic of a subscriber's dead letters."""

    def __init__(
        self,
        client: Client,
        retrier: Retrier,
        topic: TopicId,
        *,
        may_create: bool,
        unless_stopped: Callable[[Awaitable[None]], Awaitable[None]],
    ) -> None:
        """``may_create``: whether a missing topic is created. ``unless_stopped`` waits, or raises Stopped."""
        self.topic = topic
        self._client = client
        self._retrier = retrier
        self._may_create = may_create
        self._is_there = False
        self._unless_stopped = unless_stopped

    async def check(self) -> None:
        """Check that a topic that may not be created exists. Raises TopicNotFound."""
        if not self._may_create:
            await self._client.topic(self.topic)
            self._is_there = True

    async def put(self, message: Message, about: dict[str, str]) -> None:
        """Publish the dead letter of a message, and retry without a time limit.

        Its idempotency key prevents a second letter after a crash.

        Raises:
            Stopped: the subscriber must stop.
            BrokerError: the broker refused the letter for good.
        """
        key = dead_letters.key_of(about, message)
        letter = dead_letters.letter_of(about, message)
        backoff = Backoff(self._retrier, None)
        while True:
            try:
                await self._publish(letter, key)
            except IdempotencyKeyReused:
                return  # It was published before a crash, with another time in its headers.
            except BodyTooLarge:
                if not letter.payload:
                    raise
                letter = dead_letters.letter_of(about, message, with_payload=False)
            except TopicNotFound:
                if not (self._may_create and self._is_there):
                    raise
                self._is_there = False  # It was deleted since.
            except (UnavailableError, OutcomeUnknown) as error:
                await self._unless_stopped(backoff.failed(error))
            else:
                return

    async def _publish(self, letter: NewMessage, key: str) -> None:
        if not self._is_there:
            await self._client.create_topic(self.topic, if_exists="keep")
            self._is_there = True
        await self._client.publish(self.topic, letter, idempotency_key=key)

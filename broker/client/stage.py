"""A stage: one writer stores messages in it, until one publish of several stages makes all of them visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from broker.client import protocol
from broker.client.publish_request import request_of
from broker.client.values import Payload, Publishable
from broker.model import NO_HEADERS

if TYPE_CHECKING:
    from broker.client.calls import Calls
    from broker.model import TopicId


class Stage:
    """A stage of one topic, which begins with ``async with``; see ``Client.stage``.

    Leaving the block neither publishes nor removes the stage. ``Client.publish_stages`` takes its ``id``, from any
    client. The broker removes an unpublished stage at the end of its life, after an hour by default.

    Attributes:
        id: the number that the broker gave the stage.
    """

    def __init__(self, calls: Calls, topic: TopicId) -> None:
        self.id = ""
        self._calls = calls
        self._topic = topic

    async def __aenter__(self) -> Self:
        self.id = await self._calls.ask(protocol.begin_stage(self._topic), protocol.stage_begun)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the stage as it is."""

    async def store(
        self,
        messages: Publishable | Sequence[Publishable],
        *,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Store messages in the stage, behind the earlier ones. On return they are on disk.

        Args:
            messages: bytes, text or ``NewMessage``, one or a sequence.
            key: the key of each of these messages that has none of its own.
            headers: the headers, by name, of each of these messages that has none of its own.
            ttl_s: how many seconds these messages live after they are published, if shorter than the topic's.
            idempotency_key: within the broker's window the broker stores only one request with this key.

        Raises:
            PayloadsSealed: the stage was published, or its life has ended.
            BrokerError: the error of the answer; ``outcome`` says whether the messages may be stored anyway.
        """
        wanted = request_of(messages, key=key, headers=headers)
        make = partial(
            protocol.store_staged, self._topic, self.id, ttl_s=ttl_s, key=idempotency_key
        )
        await self._calls.write_messages(wanted, make)

"""Publishing under the write pointer of a transaction that another program runs: ``Client.transaction_publisher``.

The caller runs the transaction. This object remembers the publishes that a rollback must undo (``transaction_undo``).
The result of ``rollback`` says whether the caller may abort the transaction or must invalidate it.
``Client.transaction`` does all of that by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from broker.client.transaction_undo import Undo
from broker.client.values import Payload, Publishable, Published, Start, TopicName
from broker.model import NO_HEADERS, Message, Snapshot

if TYPE_CHECKING:
    from broker.client.aio import Client


class TransactionPublisher:
    """Publishes under one write pointer, and remembers the publishes for a rollback."""

    def __init__(self, client: Client, pointer: int, snapshot: Snapshot | None = None) -> None:
        self.pointer = pointer
        self.snapshot = snapshot
        self._client = client
        self._undo = Undo(client)
        self._generations: dict[TopicName, int | None] = {}
        """The generation of each topic in which messages were stored."""

    async def publish(
        self,
        topic: TopicName,
        messages: Publishable | Sequence[Publishable],
        *,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
        idempotency_key: str | None = None,
    ) -> Published:
        """Publish within the transaction. Raises as ``Client.publish``."""
        return await self._undo.keep(
            topic,
            self._client.publish(
                topic,
                messages,
                key=key,
                headers=headers,
                pointer=self.pointer,
                ttl_s=ttl_s,
                idempotency_key=idempotency_key,
            ),
        )

    async def store(
        self,
        topic: TopicName,
        messages: Publishable | Sequence[Publishable],
        *,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Store within the transaction. The messages stay invisible until ``publish_stored``."""
        self._generations[topic] = await self._client.store(
            topic,
            messages,
            pointer=self.pointer,
            key=key,
            headers=headers,
            ttl_s=ttl_s,
            idempotency_key=idempotency_key,
            generation=self._generations.get(topic),
        )

    async def publish_stored(
        self, topic: TopicName, *, idempotency_key: str | None = None
    ) -> Published:
        """Publish the messages stored in that topic. Raises as ``Client.publish``."""
        return await self._undo.keep(
            topic,
            self._client.publish_stored(
                topic,
                pointer=self.pointer,
                idempotency_key=idempotency_key,
                generation=self._generations.get(topic),
            ),
        )

    async def poll(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        wait_s: float | None = None,
    ) -> list[Message]:
        """Poll with the transaction's snapshot. Raises ValueError if it has none."""
        if self.snapshot is None:
            raise ValueError("This transaction was made without a snapshot.")
        return await self._client.poll(
            topic,
            start,
            inclusive=inclusive,
            limit=limit,
            snapshot=self.snapshot,
            wait_s=wait_s,
        )

    async def rollback(self) -> bool:
        """Undo every publish of the transaction, the last one first.

        It first waits for publishes in flight: a publish that reaches the broker after the rollback would stay. It
        tries to undo all of them, also after an error.

        Returns:
            True if all publishes are certainly undone; if False, the transaction must be invalidated.
        """
        return await self._undo.rollback()

"""What one transaction publishes, and how to undo it.

The broker can roll back only what it is told: each transactional publish answers with the range of
its rows, and this object keeps these answers. Its last word decides how the transaction may end:

    rollback() -> True     everything is undone: the transaction may be aborted
    rollback() -> False    a publish or a rollback has an unknown outcome: the transaction must be
                           *invalidated*. Aborted, its write pointer would become visible, and with it
                           a message of which the publisher never heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.client.values import Payload, Publishable, Published, Start, TopicName
from broker.errors import BrokerError
from broker.model import NO_HEADERS, Message, Snapshot

if TYPE_CHECKING:
    from broker.client.aio import Client


class TransactionPublisher:
    """Publishes under one write pointer and keeps what a rollback needs."""

    def __init__(self, client: Client, pointer: int, snapshot: Snapshot | None = None) -> None:
        self.pointer = pointer
        self.snapshot = snapshot
        self._client = client
        self._published: list[tuple[TopicName, Published]] = []
        self._unknown = False
        self._under_way: set[asyncio.Future[None]] = set()

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
        return await self._keep(
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
        """Store within the transaction. Nothing of it is seen before ``publish_stored``."""
        await self._client.store(
            topic,
            messages,
            pointer=self.pointer,
            key=key,
            headers=headers,
            ttl_s=ttl_s,
            idempotency_key=idempotency_key,
        )

    async def publish_stored(
        self, topic: TopicName, *, idempotency_key: str | None = None
    ) -> Published:
        """Publish what was stored in that topic. Raises as ``Client.publish``."""
        return await self._keep(
            topic,
            self._client.publish_stored(
                topic, pointer=self.pointer, idempotency_key=idempotency_key
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

        Publishes that are under way are waited for: what lands after a rollback would stay. All are
        tried, also after an error.

        Returns:
            Whether all is undone for certain; if not, the transaction must be invalidated.
        """
        while self._under_way:
            await asyncio.wait(set(self._under_way))
        for entry in reversed(self._published.copy()):
            try:
                await self._client.rollback(*entry)
            except BrokerError:
                continue  # It stays in the list, which is what the answer goes by.
            self._published.remove(entry)
        return not (self._unknown or self._published or self._under_way)

    async def _keep(
        self, topic: TopicName, publishing: Coroutine[Any, Any, Published]
    ) -> Published:
        """Await a publish and keep its answer, or that it has none."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(settled)
        try:
            published = await publishing
        except BrokerError as error:
            self._unknown = self._unknown or error.outcome == "unknown"
            raise
        except asyncio.CancelledError:
            self._unknown = True
            raise
        else:
            self._published.append((topic, published))
            return published
        finally:
            self._under_way.discard(settled)
            settled.set_result(None)

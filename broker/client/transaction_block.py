"""A transaction as a block: ``async with client.transaction() as tx``.

::

    async with client.transaction() as tx:
        for order in await tx.poll("shop/orders", place):      messages committed before the transaction began
            await tx.publish("shop/bills", bill(order))        held in memory; no consumer sees it yet
            tx.changes(order.key)                              conflicts with transactions that change the same key
                                                               the end of the block commits; an exception aborts

``transaction_context`` has the order of calls; ``transaction_buffer`` holds the published messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from broker.client.protocol import topic_id
from broker.client.publish_request import EncodedMessage, parts_of, several, with_life
from broker.client.transaction_aware import DecidingAware
from broker.client.transaction_context import TransactionContext
from broker.client.values import Payload, Publishable, Start, TopicName
from broker.model import NO_HEADERS, Message, Snapshot

if TYPE_CHECKING:
    from broker.client.aio import Client
    from broker.client.transaction_aware import TransactionAware
    from broker.client.transaction_buffer import BufferedPublisher
    from broker.client.transaction_context import State


class _Keys:
    """The conflict keys of the block itself, as a participant."""

    name = "the block"

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def start_tx(self, transaction: Snapshot) -> None:
        """Do nothing."""

    def update_tx(self, transaction: Snapshot) -> None:
        """Do nothing."""

    def changes(self) -> set[bytes]:
        return self.keys

    def commit_tx(self) -> bool:
        """Persist nothing."""
        return True

    def post_commit(self) -> None:
        """Do nothing."""

    def rollback_tx(self) -> bool:
        """Undo nothing."""
        return True


class Transaction:
    """One transaction, which begins with ``async with``; see ``Client.transaction``.

    Attributes:
        context: the participants, and the state of the transaction.
    """

    def __init__(
        self,
        client: Client,
        publisher: BufferedPublisher,
        context: TransactionContext,
        awares: Sequence[TransactionAware] = (),
    ) -> None:
        self.context = context
        self._client = client
        self._publisher = publisher
        self._awares = awares
        self._keys = _Keys()

    async def __aenter__(self) -> Self:
        if self.context.state != "new":
            raise ValueError("A transaction is used once. Make another one.")
        for aware in (self._keys, *self._awares):
            await self.add(aware)
        await self.context.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._publisher.end()
            await self.context.finish(published=self._publisher.published)
        else:
            await self.context.abort(error)

    @property
    def id(self) -> int:
        """The transaction's number. Raises ValueError before it has begun."""
        return self.snapshot.transaction_id

    @property
    def snapshot(self) -> Snapshot:
        """The transaction's snapshot, with its write pointers. Raises ValueError before it has begun."""
        if self.context.transaction is None:
            raise ValueError("The transaction begins with its block.")
        return self.context.transaction

    @property
    def state(self) -> State:
        """The state of the transaction: new, in_progress, then committed, aborted, invalid, unknown or decided."""
        return self.context.state

    async def publish(
        self,
        topic: TopicName,
        messages: Publishable | Sequence[Publishable],
        *,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
    ) -> None:
        """Publish messages when the transaction commits.

        The transaction holds them in memory. Above ``buffer_bytes_max`` of messages in all, it sends messages to the
        broker's payload table. No consumer sees them there before the commit, either.

        Args:
            topic: the topic.
            messages: bytes, text or ``NewMessage``, one or a sequence.
            key: the key of each of these messages that has none of its own.
            headers: the headers, by name, of each of these messages that has none of its own.
            ttl_s: how many seconds each of these messages without a lifetime of its own lives, if shorter than the
                topic's. The time counts from the commit.

        Raises:
            TypeError, BadRequest: these are not messages.
            TransactionNotInProgress: the transaction has ended, or is being committed or undone.
            BrokerError: a write to the payload table failed; the transaction can't be committed any more.
        """
        await self._take(topic, _parts(messages, key, headers, ttl_s), store=False)

    async def store(
        self,
        topic: TopicName,
        messages: Publishable | Sequence[Publishable],
        *,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
    ) -> None:
        """Send messages to the broker's payload table at once. The commit publishes them with those of ``publish``.

        All earlier and later messages of that topic are stored, too, so that their order is that of the calls.

        Args:
            topic: as for ``publish``, as are the other arguments.
            messages: as for ``publish``.
            key: as for ``publish``.
            headers: as for ``publish``.
            ttl_s: as for ``publish``.

        Raises:
            ValueError: the transaction has a SQL session.
            BrokerError: as for ``publish``.
        """
        await self._take(topic, _parts(messages, key, headers, ttl_s), store=True)

    async def poll(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        wait_s: float | None = None,
    ) -> list[Message]:
        """Return the messages from a place on that the transaction may see, as ``Client.poll``.

        They do not include this transaction's own messages, which it holds back. They do include the messages that it
        published before a ``checkpoint``.
        """
        return await self._client.poll(
            topic,
            start,
            inclusive=inclusive,
            limit=limit,
            snapshot=self.snapshot,
            wait_s=wait_s,
        )

    async def add(self, aware: TransactionAware) -> None:
        """Add a participant. It commits before the publisher, and is rolled back if the transaction fails.

        Raises:
            ValueError: it is the second SQL session, or messages were stored or published before a SQL session.
        """
        if isinstance(aware, DecidingAware):
            self._publisher.keep_messages()
        await self.context.add(aware)

    def changes(self, *keys: Payload) -> None:
        """Declare the keys that the transaction changes. If two transactions change a key, the later commit conflicts."""
        self._keys.keys.update(key.encode() if isinstance(key, str) else key for key in keys)

    async def checkpoint(self) -> Snapshot:
        """Publish the held messages, and continue under a further write pointer. Others see them after the commit.

        Returns:
            The transaction with its new pointer.

        Raises:
            BrokerError: it failed; the transaction is aborted.
        """
        return await self.context.checkpoint()

    async def _take(
        self, topic: TopicName, parts: Sequence[EncodedMessage], *, store: bool
    ) -> None:
        self.context.check()
        await self._publisher.take(
            topic_id(topic, self._client.settings.namespace), parts, store=store
        )


def _parts(
    messages: Publishable | Sequence[Publishable],
    key: Payload | None,
    headers: Mapping[str, Payload],
    ttl_s: int | None,
) -> list[EncodedMessage]:
    parts = [
        parts_of(each, key=key, headers=headers, name="messages", place=at)
        for at, each in enumerate(several(messages))
    ]
    return with_life(parts, ttl_s)

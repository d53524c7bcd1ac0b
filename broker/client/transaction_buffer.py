"""The publisher of a transaction. It holds messages back until the commit: in memory, and above a bound in the broker.

::

    publish ─▶ [ buffer of each topic ]            commit_tx: one request for each topic, in the order of first use
                     │ all together above the bound
                     └▶ store: send the fullest topics to the broker's payload table, until half of the bound is free.
                        From then on, store all messages of such a topic; commit_tx publishes one reference

So a topic has either one publish or one reference for each write pointer, and the order in the topic is the order of
the calls. A stored message keeps its key, its headers and its lifetime. Its lifetime counts from the commit, as for
every other message. No consumer sees stored messages before they are published. Unpublished ones expire.

A failed store ends the transaction, even if its caller ignores the error: the broker may have a part of the messages.
A store of unknown outcome needs no undo, because its reference is never published.

A deciding participant (``broker.sql.record``) records the messages in its database. So they stay in memory until the
commit, and the bound of the buffer is the bound of the transaction.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.client import protocol
from broker.client.publish_request import EncodedMessage, joined
from broker.client.transaction_aware import Topical
from broker.client.transaction_undo import Undo
from broker.client.values import Published, Settings
from broker.errors import BodyTooLarge, OutcomeUnknown, TransactionNotInProgress
from broker.model import PublishRequest, Snapshot, TopicId

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.client.aio import Client
    from broker.client.calls import Calls

BUFFER_BYTES_MAX: Final = 8 << 20
"""The default for how many bytes of messages a transaction holds in memory."""

PER_MESSAGE_BYTES: Final = 100
"""The overhead that each message counts in addition to its own bytes."""


@dataclass(slots=True)
class _Buffer:
    """The messages to publish to one topic."""

    parts: list[EncodedMessage] = field(default_factory=list)
    size: int = 0
    stored: bool = False
    """True if earlier messages are in the payload table."""
    generation: int | None = None
    """The generation of the topic in which they are; None: no message was stored, or the broker does not say it."""


class BufferedPublisher:
    """Publishes at the commit. It is a participant, and the last one of a ``Transaction``."""

    name = "the publisher"

    def __init__(
        self,
        client: Client,
        calls: Calls,
        key: Callable[[], str | None],
        *,
        bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        """Begin empty. ``key`` returns the idempotency key of each write, or None."""
        self._settings: Settings = client.settings
        self._calls = calls
        self._key = key
        self._bytes_max = bytes_max
        self._undo = Undo(client)
        self._pointer = 0
        self._buffers: dict[TopicId, _Buffer] = {}
        self._size = 0
        self._turn = asyncio.Lock()
        """Held while a call adds messages, so that later calls do not overtake one that waits for a store."""
        self._failure: BaseException | None = None
        self._ending = self._closed = False
        self._moves = False
        """True during a checkpoint, from ``commit_tx`` on: the next publish has another pointer than ``_pointer``."""
        self._kept: dict[TopicId, list[EncodedMessage]] | None = None

    # --- Taking messages --------------------------------------------------------------------------

    async def take(
        self, topic: TopicId, parts: Sequence[EncodedMessage], *, store: bool = False
    ) -> None:
        """Add messages to the buffer. With ``store``, or above the bound, send them to the payload table.

        Raises:
            TransactionNotInProgress: the transaction is being ended.
            BodyTooLarge: there is a deciding participant, and the messages exceed the bound.
            BrokerError: the store failed, which ends the transaction.
        """
        async with self._turn:
            if self._closed:
                raise TransactionNotInProgress("The transaction is being ended: publish before.")
            self._check()
            size = sum(_size(part) for part in parts)
            if self._kept is not None:
                self._check_bound(size, store=store)
            buffer = self._buffers.setdefault(topic, _Buffer())
            buffer.parts += parts
            buffer.size += size
            self._size += size
            if self._moves:
                # The payload log of this pointer is published already: the next ``commit_tx`` sends the messages.
                buffer.stored = buffer.stored or store
            elif store:
                await self._store(topic, buffer)
            elif self._size > self._bytes_max and self._kept is None:
                await self._spill()

    def end(self) -> None:
        """Let the next ``commit_tx`` be the last one. From then on ``take`` refuses messages, which would be lost."""
        self._ending = True

    def keep_messages(self) -> None:
        """Keep all messages in memory until the end, for a deciding participant.

        Raises:
            ValueError: some were stored or published already.
        """
        if self._kept is None and (
            self._undo.began or any(buffer.stored for buffer in self._buffers.values())
        ):
            raise ValueError(
                "Add the SQL session first: messages of this transaction were stored or published already, and its "
                "database must record all of them."
            )
        self._kept = {} if self._kept is None else self._kept

    def published(self) -> list[Topical]:
        """Return the published messages; an empty list unless ``keep_messages`` was called."""
        return [Topical(topic, parts) for topic, parts in (self._kept or {}).items()]

    def _check(self) -> None:
        """Raise the error that has ended the transaction, if there is one."""
        if isinstance(self._failure, Exception):
            raise copy.copy(self._failure)
        if self._failure is not None:
            raise OutcomeUnknown("Storing messages of this transaction was interrupted.")

    def _check_bound(self, size: int, *, store: bool) -> None:
        if store:
            raise ValueError(
                "With a SQL session messages can't be stored: its database records all of them."
            )
        kept = sum(_size(part) for parts in (self._kept or {}).values() for part in parts)
        if self._size + kept + size > self._bytes_max:
            raise BodyTooLarge(
                f"With a SQL session a transaction holds its messages in memory, at most {self._bytes_max} bytes "
                "(buffer_bytes_max): its database records all of them."
            )

    async def _spill(self) -> None:
        while self._size > self._bytes_max // 2:
            topic = max(self._buffers, key=lambda each: self._buffers[each].size)
            await self._store(topic, self._buffers[topic])

    async def _store(self, topic: TopicId, buffer: _Buffer) -> None:
        """Send the messages of a topic's buffer to the payload table, in as many requests as necessary."""
        parts, buffer.parts, buffer.stored = buffer.parts, [], True
        self._size -= buffer.size
        buffer.size = 0
        try:
            for chunk in self._chunks(parts):
                wanted, ttl_s = _request(chunk, self._pointer)
                request = protocol.store(
                    topic, wanted, ttl_s=ttl_s, key=self._key(), generation=buffer.generation
                )
                reply = await self._calls.write(request)
                buffer.generation = protocol.generation(reply.headers)
        except BaseException as error:
            self._failure = copy.copy(error)  # Without its traceback, which leads here.
            raise

    def _chunks(self, parts: Sequence[EncodedMessage]) -> list[list[EncodedMessage]]:
        """Split messages into one list for each request."""
        chunks: list[list[EncodedMessage]] = []
        size, settings = 0, self._settings
        for part in parts:
            fits = size + part.size <= settings.batch_bytes_max
            if chunks and fits and len(chunks[-1]) < settings.batch_messages_max:
                chunks[-1].append(part)
                size += part.size
            else:
                chunks.append([part])
                size = part.size
        return chunks

    # --- As a participant -------------------------------------------------------------------------

    def start_tx(self, transaction: Snapshot) -> None:
        """Publish under the transaction's pointer."""
        self._pointer = transaction.write_pointer

    def update_tx(self, transaction: Snapshot) -> None:
        """Continue under another pointer."""
        self._pointer = transaction.write_pointer
        self._moves = False

    def changes(self) -> Sequence[bytes]:
        """Return nothing: published messages do not conflict."""
        return ()

    async def commit_tx(self) -> bool:
        """Publish all messages, topic by topic."""
        async with self._turn:
            self._check()
            self._closed = self._ending
            self._moves = True
            for topic, buffer in self._buffers.items():
                if buffer.stored:
                    await self._store(topic, buffer)
                    await self._publish(topic, [], buffer.generation)
                elif buffer.parts:
                    await self._publish(topic, buffer.parts)
                if self._kept is not None and buffer.parts:
                    self._kept.setdefault(topic, []).extend(buffer.parts)
            self._clear()
        return True

    async def _publish(
        self, topic: TopicId, parts: Sequence[EncodedMessage], generation: int | None = None
    ) -> None:
        wanted, ttl_s = _request(parts, self._pointer)
        request = protocol.publish(
            topic, wanted, ttl_s=ttl_s, key=self._key(), generation=generation
        )

        async def publishing() -> Published:
            return await self._calls.ask(request, protocol.published)

        await self._undo.keep(topic, publishing())

    def post_commit(self) -> None:
        """Forget the kept messages."""
        self._kept = None

    async def rollback_tx(self) -> bool:
        """Undo the publishes; see ``Undo.rollback``."""
        self._closed = True
        self._clear()
        return await self._undo.rollback()

    def _clear(self) -> None:
        self._buffers.clear()
        self._size = 0


def _size(part: EncodedMessage) -> int:
    return part.size + PER_MESSAGE_BYTES


def _request(parts: Sequence[EncodedMessage], pointer: int) -> tuple[PublishRequest, int | None]:
    """Return messages as a request. If all have the same lifetime, it is returned beside the request."""
    wanted: Any = joined(parts)._replace(pointer=pointer)
    lives = set(wanted.ttls_s)
    if len(lives) == 1 and len(wanted.ttls_s) == len(parts):
        return wanted._replace(ttls_s=()), lives.pop()
    return wanted, None

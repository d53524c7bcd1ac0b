"""The reading half of the client for asyncio: polls, tails, events, ranges, subscribers, and what is told of a topic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from broker.client import bulk, protocol
from broker.client import tail as tails
from broker.client.calls import Calls
from broker.client.cursors import CursorCalls
from broker.client.handler import Handler
from broker.client.place_keepers import PlaceStore
from broker.client.positions import id_of, start_of
from broker.client.range_read import Reading, ReadOptions
from broker.client.retrier import Retrier
from broker.client.subscriber import Subscriber
from broker.client.subscription import SubscriberOptions
from broker.client.values import BrowsePage, Settings, Start, Stats, TopicName, TopicRange
from broker.model import Message, MessageId, Poll, Snapshot, TopicId

if TYPE_CHECKING:
    from broker.client.aio import Client
    from broker.client.bulk import RecordBatch


class Reader:
    """Reads topics. ``Client`` has these methods beside those that publish.

    Args:
        settings: how the client behaves.
        calls: carries out its requests.
        retrier: says when a read that failed is tried again.
    """

    def __init__(self, settings: Settings, calls: Calls, retrier: Retrier) -> None:
        self.settings = settings
        self._calls = calls
        self._retrier = retrier

    async def poll(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        snapshot: Snapshot | None = None,
        wait_s: float | None = None,
    ) -> list[Message]:
        """Return the messages from a place on.

        Args:
            topic: where from.
            start: a message id (20 bytes, or their 40 hex digits), a moment (a datetime with a time zone, or ms
                since 1970), or None for the oldest message.
            inclusive: whether the message of that id itself is wanted; a moment is always inclusive.
            limit: how many messages at most; all there are by default.
            snapshot: what the consumer's transaction may see; without one, everything is seen.
            wait_s: how long the broker may wait for a first message (up to 60).

        Raises:
            BadRequest, TypeError: ``start`` is no place, such as a datetime without a time zone.
            TopicNotFound: there is no such topic.
        """
        poll = Poll(start_of(start), inclusive, limit, snapshot)
        request = protocol.poll(self._topic(topic), poll, wait_s=wait_s)
        return await self._calls.poll(request, wait_s or 0)

    async def tail(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        snapshot: Snapshot | None = None,
        options: tails.TailOptions | None = None,
    ) -> AsyncGenerator[Message]:
        """Give all messages from a place on, and new ones as they come, without end.

        Places are those of ``poll``. Lost connections are resumed after the last message that was handed out;
        see ``tailing``.
        """
        pages = self.tail_pages(
            topic, start, inclusive=inclusive, snapshot=snapshot, options=options
        )
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    yield message

    def tail_pages(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        snapshot: Snapshot | None = None,
        options: tails.TailOptions | None = None,
    ) -> AsyncGenerator[list[Message]]:
        """Give what ``tail`` gives, in the lists in which it arrives."""
        poll = Poll(start_of(start), inclusive, None, snapshot)
        return tails.tail(self._source(topic), poll, options or tails.TailOptions())

    def events(
        self,
        topic: TopicName,
        start: Start = None,
    ) -> AsyncGenerator[Message]:
        """Return messages from the broker's stream of server-sent events, without end.

        Args:
            topic: where from.
            start: the id of the last message seen; a moment, as for ``poll``; ``"now"`` for new messages only, of
                which none is lost when the stream has to be resumed; None for all.

        Raises:
            BadRequest, TypeError: ``start`` is no place.
        """
        is_now = start == tails.NOW
        place = tails.NOW if is_now else protocol.place_text(start, "start")
        return tails.events(self._source(topic), place)

    async def browse(  # noqa: PLR0913 - These are the parameters of the endpoint.
        self,
        topic: TopicName,
        *,
        start: Start = None,
        stop: Start = None,
        limit: int | None = None,
        descending: bool = False,
        full: bool = True,
        snapshot: Snapshot | None = None,
    ) -> BrowsePage:
        """Look at messages without consuming, also at those that consumers may not see yet.

        Args:
            topic: where.
            start: the first id or moment, as for ``poll``; inclusive. The oldest message by default.
            stop: the id or moment to stop before; exclusive.
            limit: how many at most (100 by default, up to 10,000). Of payloads of more than 2 MiB together
                there are fewer: go on at the page's ``next``.
            descending: newest first.
            full: False shows the first KiB of each payload.
            snapshot: adds to each message whether a transaction with it could consume it.

        Raises:
            BadRequest, TypeError: ``start`` or ``stop`` is no place, such as a datetime without a time zone.
            TopicNotFound: there is no such topic.
        """
        bounds = protocol.browse_bounds(start, stop, limit, descending=descending, full=full)
        request = protocol.browse(self._topic(topic), bounds=bounds, snapshot=snapshot)
        return protocol.browse_page(await self._calls.read(request))

    async def blockers(
        self,
        topic: TopicName,
        *,
        snapshot: Snapshot | None = None,
        transaction: int | None = None,
        start: Start = None,
        limit: int | None = None,
    ) -> Mapping[str, Any]:
        """Return which transactions hold a consumer back, as the broker answers ``POST …/blockers``.

        Args:
            topic: where.
            snapshot: what the consumer reads with; or
            transaction: the id of its transaction, of the broker's service. By default a snapshot of now.
            start: the consumer's place, as for ``poll``; inclusive. The oldest message by default.
            limit: how many transactions are looked for (10 by default, up to 100).

        Raises:
            BadRequest: a snapshot and a transaction are given, or a transaction that reads nothing any more.
            NotFound: the service knows nothing of that transaction.
            TopicNotFound: there is no such topic.
        """
        bounds = {
            "transaction": None if transaction is None else str(transaction),
            "from": protocol.place_text(start, "start"),
            "limit": None if limit is None else str(limit),
        }
        given = {name: value for name, value in bounds.items() if value is not None}
        request = protocol.blockers(self._topic(topic), bounds=given, snapshot=snapshot)
        return protocol.json_object(await self._calls.read(request))

    async def stats(self, topic: TopicName) -> Stats:
        """Return a topic's figures: messages, bytes, first and last, rates."""
        return protocol.json_object(await self._calls.read(protocol.stats(self._topic(topic))))

    async def lag(self, topic: TopicName, after: MessageId | str) -> int:
        """Return how many messages were published behind an id: how far a consumer is behind.

        Every message counts, also one that has expired or that its transaction rolled back.
        """
        request = protocol.lag(self._topic(topic), after)
        return protocol.lag_count(await self._calls.read(request))

    async def range(
        self,
        topic: TopicName,
        *,
        after: MessageId | str | None = None,
        through: MessageId | str | None = None,
        messages: int | None = None,
        size: int | None = None,
        parts: int = 1,
    ) -> TopicRange:
        """Return a range ``(after, through]`` of a topic, without reading messages.

        Args:
            topic: which.
            after: where it begins; None: with the oldest message.
            through: where it ends at the latest; None: with the newest one.
            messages: the most messages that it may have; it has one if there is one.
            size: about the most bytes of payloads that it may have.
            parts: into how many parts of about as many messages it is divided.
        """
        request = protocol.topic_range(
            self._topic(topic),
            after=after,
            through=through,
            messages=messages,
            size=size,
            parts=parts,
        )
        return protocol.range_found(await self._calls.read(request))

    def read(
        self,
        topic: TopicName,
        start: Start = None,
        end: Start = None,
        *,
        inclusive: bool = True,
        snapshot: Snapshot | None = None,
    ) -> Reading:
        """Return a range ``[start, end)`` to be read once, to its end: iterate it, or make a table of it.

        ``to_arrow``, ``to_pandas`` and ``to_polars`` of what is returned give all of it as one table. Messages that
        come while it is read are no part of it. Lost connections are resumed behind the last message.

        Args:
            topic: where from.
            start: the first id or moment, as for ``poll``. The oldest message by default.
            end: the id or moment to stop before. By default, and at the latest, the newest message that is there
                when reading begins is the last one.
            inclusive: whether the message of the id ``start`` itself is wanted; a moment is always inclusive.
            snapshot: what the reader's transaction may see; the range then ends before the first message of an
                open transaction. Without one everything is seen.

        Raises:
            BadRequest, TypeError: ``start`` or ``end`` is no place, such as a datetime without a time zone.
            BrokerError: later, while it is read: by name, or when nothing came for ``deadline_s``.
        """
        places = start_of(start), start_of(end, "end")
        wanted = ReadOptions(*places, inclusive, snapshot)
        source = self._source(topic)
        return Reading(source, partial(self.range, topic), wanted, self.settings.deadline_s)

    def read_arrow(
        self,
        topic: TopicName,
        *,
        through: MessageId | str,
        after: MessageId | str | None = None,
        snapshot: Snapshot | None = None,
    ) -> AsyncGenerator[RecordBatch]:
        """Return all messages of a range ``(after, through]``, as ``pyarrow.RecordBatch``.

        The columns are ``id`` and ``value``, both binary, ``key``, binary or null, and ``headers``, a map from
        strings to binary or null. No batch is empty, and one of them is held at a time. A lost connection is
        resumed behind the last message that was handed out (see ``bulk``).

        Args:
            topic: where from.
            through: the last id, such as ``range`` tells; it counts by its row, so it may be that of a reference.
            after: where the range begins; None: with the oldest message. The id of a message that a reference
                shows goes on behind that message, any other behind all of its row.
            snapshot: what the reader's transaction may see; the batches then end before the first message of an
                open transaction. Without one everything is seen.

        Raises:
            ImportError: pyarrow is missing; the extra ``arrow`` has it.
            BadRequest: no message is as late as ``through`` yet.
            NotInstalled: the broker lacks the extra ``arrow``.
            TopicNotFound: there is no such topic.
        """
        before = None if after is None else id_of(after, "after")
        span = bulk.BulkRange(before, id_of(through, "through"), snapshot)
        return bulk.record_batches(self._source(topic), span, self.settings.deadline_s)

    # --- Keeping a place ---------------------------------------------------------------------------

    def subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Handler,
        *,
        place: PlaceStore | None = None,
        options: SubscriberOptions | None = None,
        executor: Executor | None = None,
        **single: Any,
    ) -> Subscriber:
        """Return a subscriber, whose ``run`` hands each message of a topic to ``handler`` (see ``subscriber``).

        Args:
            topic: which.
            name: the name of its place, 1 to 128 letters, digits and any of ``_ - .``. Of several subscribers of one
                name one works, and the others wait to take over.
            handler: called with a message, or with a list if there is ``batch_messages_max``; for asyncio or not.
                A message counts as handled when it returns; when it raises it is called again.
            place: a store of the caller's own for the place, in the handler's own transaction; None: a named cursor
                at the broker.
            options: how it works.
            executor: where a handler runs that is for no asyncio; a thread of the subscriber's own by default.
            **single: single options by name, over ``options``.

        Raises:
            BadName: the name can be none.
            TypeError, ValueError: an option is none, or can't be meant.
        """
        return Subscriber(
            cast("Client", self),
            self._retrier,
            self._topic(topic),
            name,
            handler,
            executor=executor or ThreadPoolExecutor(1, "broker-subscriber"),
            place=place,
            options=replace(options or SubscriberOptions(), **single),
        )

    @property
    def cursors(self) -> CursorCalls:
        """The calls of named cursors: the places of readers that the broker keeps."""
        return CursorCalls(self._calls, self._topic)

    # --- Inside -----------------------------------------------------------------------------------

    def _topic(self, name: TopicName) -> TopicId:
        return protocol.topic_id(name, self.settings.namespace)

    def _source(self, topic: TopicName) -> tails.TailSource:
        return tails.TailSource(self._topic(topic), self._calls.stream, self._retrier)

"""The reading half of the asyncio client: polls, tails, events, ranges, subscribers, and a topic's figures."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Executor
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from broker.client import bulk, protocol
from broker.client import tail as tails
from broker.client.calls import Calls
from broker.client.client_request import read_as
from broker.client.cursors import CursorCalls
from broker.client.handler import Handler
from broker.client.place_store import PlaceStore
from broker.client.positions import generation_in, id_of, start_of
from broker.client.range_read import Reading, ReadOptions
from broker.client.retrier import Retrier
from broker.client.subscriber import Subscriber
from broker.client.subscriber_factory import SubscriberFactory
from broker.client.subscription import SubscriberOptions
from broker.client.values import BrowsePage, IdPlace, Settings, Start, Stats, TopicName, TopicRange
from broker.model import Message, Poll, Snapshot, TopicId

if TYPE_CHECKING:
    from broker.client.aio import Client
    from broker.client.bulk import RecordBatch


class Reader(SubscriberFactory[Subscriber]):
    """Reads topics. ``Client`` inherits these methods, and adds those that publish.

    Args:
        settings: the settings of the client.
        calls: sends its requests.
        retrier: decides when to retry a failed read.
    """

    def __init__(self, settings: Settings, calls: Calls, retrier: Retrier) -> None:
        self.settings = settings
        self._calls = calls
        self._retrier = retrier

    async def poll(  # noqa: PLR0913 - All but two by name.
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        snapshot: Snapshot | None = None,
        committed: bool = False,
        wait_s: float | None = None,
    ) -> list[Message]:
        """Return the messages from a place on.

        Args:
            topic: the topic.
            start: a message id (20 bytes, or their 40 hex digits), a moment (a datetime with a time zone, or ms
                since 1970), or None for the oldest message.
            inclusive: whether to return the message of that id itself; a moment is always inclusive.
            limit: the maximum number of messages; by default there is no limit.
            snapshot: the snapshot of the consumer's transaction. Without one, all messages are returned.
            committed: return only committed messages, by a new snapshot of the broker's own transaction service. The
                answer ends, at once, before the first message of an open transaction.
            wait_s: how long the broker may wait for a first message (up to 60).

        Raises:
            BadRequest, TypeError: ``start`` is not a place; for example, a datetime without a time zone.
            TopicNotFound: there is no such topic.
        """
        poll = Poll(start_of(start), inclusive, limit, snapshot, generation_in(start))
        request = protocol.poll(self._topic(topic), poll, wait_s=wait_s, committed=committed)
        return await self._calls.poll(request, wait_s or 0)

    async def tail(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        inclusive: bool = True,
        snapshot: Snapshot | None = None,
        committed: bool = False,
        options: tails.TailOptions | None = None,
    ) -> AsyncGenerator[Message]:
        """Yield all messages from a place on, and new ones as they arrive, without end.

        Places are as for ``poll``. After a lost connection the tail resumes behind the last message that it yielded;
        see the module ``tail``. It reads one generation of the topic. With ``committed`` it shows the messages of a
        transaction when it is committed, in their place of the order; without, it shows them at once.

        Raises:
            TopicRecreated: the topic was deleted and created again.
        """
        pages = self.tail_pages(
            topic,
            start,
            inclusive=inclusive,
            snapshot=snapshot,
            committed=committed,
            options=options,
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
        committed: bool = False,
        options: tails.TailOptions | None = None,
    ) -> AsyncGenerator[list[Message]]:
        """Yield the messages of ``tail`` in the lists in which they arrive."""
        poll = Poll(start_of(start), inclusive, None, snapshot, generation_in(start))
        return tails.tail(
            self._source(topic), poll, options or tails.TailOptions(), committed=committed
        )

    def events(
        self,
        topic: TopicName,
        start: Start = None,
        *,
        committed: bool = False,
    ) -> AsyncGenerator[Message]:
        """Yield messages from the broker's stream of server-sent events, without end.

        Args:
            topic: the topic.
            start: the id of the last message seen; a moment, as for ``poll``; ``"now"`` for new messages only; None
                for all. With ``"now"`` no new message is lost when the stream is resumed.
            committed: show only committed messages, as for ``tail``.

        Raises:
            BadRequest, TypeError: ``start`` is not a place.
        """
        is_now = start == tails.NOW
        place = tails.NOW if is_now else protocol.place_text(start, "start")
        return tails.events(self._source(topic), place, committed=committed)

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
        """Return messages without consuming them, also those that consumers may not see yet.

        Args:
            topic: the topic.
            start: the first id or moment, as for ``poll``; inclusive. The oldest message by default.
            stop: the id or moment to stop before; exclusive.
            limit: the maximum number of messages (100 by default, at most the broker's
                ``limits.browse_messages_max``). If their payloads are together larger than 2 MiB, the page has fewer;
                continue at its ``next``.
            descending: newest first.
            full: with False, each payload is cut to its first KiB.
            snapshot: adds to each message whether a transaction with this snapshot could consume it.

        Raises:
            BadRequest, TypeError: ``start`` or ``stop`` is not a place; for example, a datetime without a time zone.
            TopicNotFound: there is no such topic.
        """
        bounds = protocol.browse_bounds(start, stop, limit, descending=descending, full=full)
        request = protocol.browse(self._topic(topic), bounds=bounds, snapshot=snapshot)
        return await self._calls.ask(request, protocol.browse_page)

    async def blockers(
        self,
        topic: TopicName,
        *,
        snapshot: Snapshot | None = None,
        transaction: int | None = None,
        start: Start = None,
        limit: int | None = None,
    ) -> Mapping[str, Any]:
        """Return the transactions that block a consumer, in the form of the answer to ``POST …/blockers``.

        Args:
            topic: the topic.
            snapshot: the snapshot that the consumer reads with; or
            transaction: the id of its transaction in the broker's service. By default a new snapshot.
            start: the consumer's place, as for ``poll``; inclusive. The oldest message by default.
            limit: the maximum number of transactions to find (10 by default, up to 100).

        Raises:
            BadRequest: both a snapshot and a transaction are given, or the transaction can't read any more.
            NotFound: the service does not know the transaction.
            TopicNotFound: there is no such topic.
        """
        bounds = {
            "transaction": None if transaction is None else str(transaction),
            "from": protocol.place_text(start, "start"),
            "limit": None if limit is None else str(limit),
        }
        given = {name: value for name, value in bounds.items() if value is not None}
        request = protocol.blockers(self._topic(topic), bounds=given, snapshot=snapshot)
        return await self._calls.ask(request, read_as(request.answer))

    async def stats(self, topic: TopicName) -> Stats:
        """Return a topic's figures: messages, bytes, first and last, rates."""
        request = protocol.stats(self._topic(topic))
        return await self._calls.ask(request, read_as(request.answer))

    async def lag(self, topic: TopicName, after: IdPlace) -> int:
        """Return how many messages were published behind an id. This is the lag of a consumer at this id.

        Every message counts, also an expired one or one whose transaction was rolled back.
        """
        request = protocol.lag(self._topic(topic), after)
        return await self._calls.ask(request, protocol.lag_count)

    async def range(
        self,
        topic: TopicName,
        *,
        after: IdPlace | None = None,
        through: IdPlace | None = None,
        messages: int | None = None,
        size: int | None = None,
        parts: int = 1,
    ) -> TopicRange:
        """Return a range ``(after, through]`` of a topic, without reading messages.

        Args:
            topic: the topic.
            after: the range begins behind this id; None: with the oldest message.
            through: the range ends at the latest with this id; None: with the newest message.
            messages: the maximum number of messages. If the topic has a message there, the range has at least one.
            size: the approximate maximum of payload bytes.
            parts: the number of parts, of about equal numbers of messages, to divide it into.
        """
        request = protocol.topic_range(
            self._topic(topic),
            after=after,
            through=through,
            messages=messages,
            size=size,
            parts=parts,
        )
        return await self._calls.ask(request, protocol.range_found)

    def read(
        self,
        topic: TopicName,
        start: Start = None,
        end: Start = None,
        *,
        inclusive: bool = True,
        snapshot: Snapshot | None = None,
    ) -> Reading:
        """Return a range ``[start, end)`` to read once. Iterate over it, or convert it into a table.

        The methods ``to_arrow``, ``to_pandas`` and ``to_polars`` of the result return the range as one table. The
        range does not contain messages published after its first use. After a lost connection the client resumes
        behind the last message.

        Args:
            topic: the topic.
            start: the first id or moment, as for ``poll``. The oldest message by default.
            end: the id or moment to stop before. By default, and at the latest, the last message is the newest one
                of the moment when reading begins.
            inclusive: whether to return the message of the id ``start`` itself; a moment is always inclusive.
            snapshot: the snapshot of the reader's transaction; the range then ends before the first message of an
                open transaction. Without one, all messages are returned.

        Raises:
            BadRequest, TypeError: ``start`` or ``end`` is not a place; for example, a datetime without a time zone.
            BrokerError: later, while reading: the broker refused, or no answer came for ``deadline_s``.
        """
        places = start_of(start), start_of(end, "end")
        wanted = ReadOptions(*places, inclusive, snapshot, generation_in(start, end))
        source = self._source(topic)
        return Reading(source, partial(self.range, topic), wanted, self.settings.deadline_s)

    def read_arrow(
        self,
        topic: TopicName,
        *,
        through: IdPlace,
        after: IdPlace | None = None,
        snapshot: Snapshot | None = None,
    ) -> AsyncGenerator[RecordBatch]:
        """Yield all messages of a range ``(after, through]``, as ``pyarrow.RecordBatch``.

        The columns are ``id`` and ``value``, both binary; ``key``, binary or null; and ``headers``, a map from
        strings to binary or null. No batch is empty, and one batch at a time is in memory. After a lost connection
        the client resumes behind the last message that it yielded (see ``bulk``).

        Args:
            topic: the topic.
            through: the last id, for example from ``range``. It may be the id of a reference: the range includes all
                messages of it.
            after: the range begins behind this id; None: with the oldest message. The id of a message of a reference
                stands for that message; any other id stands for all messages of a reference.
            snapshot: the snapshot of the reader's transaction; the batches then end before the first message of an
                open transaction. Without one, all messages are returned.

        Raises:
            ImportError: pyarrow is missing; the extra ``arrow`` installs it.
            BadRequest: ``through`` is later than the newest message.
            NotInstalled: the broker lacks the extra ``arrow``.
            TopicNotFound: there is no such topic.
        """
        before = None if after is None else id_of(after, "after")
        generation = generation_in(after, through)
        span = bulk.BulkRange(before, id_of(through, "through"), snapshot, generation)
        return bulk.record_batches(self._source(topic), span, self.settings.deadline_s)

    # --- Keeping a place ---------------------------------------------------------------------------

    @override
    def _subscriber(
        self,
        topic: TopicName,
        name: str,
        handler: Handler,
        place: PlaceStore | None,
        options: SubscriberOptions,
        executor: Executor | None = None,
    ) -> Subscriber:
        return Subscriber(
            cast("Client", self),
            self._retrier,
            self._topic(topic),
            name,
            handler,
            executor=executor,
            place=place,
            options=options,
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


for _method in vars(Reader).values():
    if inspect.isfunction(_method):  # Errors name the class that the caller uses.
        _method.__qualname__ = f"Client.{_method.__name__}"

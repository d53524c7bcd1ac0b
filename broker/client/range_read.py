"""A range of a topic, read once from its beginning to its end: message by message, or as one table.

::

    client.read(topic, start, end)      [start, end): the messages that exist at its first use, none that come later

    messages    polls of 1,000 each, resumed behind the last message that was yielded
    a table     one bulk read (see ``bulk``), which is several times as fast and holds the whole range in memory

The first use fixes the end: at the latest, it is the topic's latest id of that moment. So every use of one reading has
the same messages, except those that have expired or were rolled back in the meantime. It also fixes the topic's
generation: if the topic is deleted and created again, the reading ends with TopicRecreated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.client import bulk, dataframes, tail
from broker.client.values import TopicRange
from broker.errors import TopicRecreated
from broker.model import (
    LOG_KEY_BYTES,
    LOG_KEY_MIN,
    Message,
    MessageId,
    Poll,
    Snapshot,
    first_log_key_at,
    log_key_after,
    log_key_before,
)

if TYPE_CHECKING:
    from broker.client.dataframes import PandasFrame, PolarsFrame, Table

PAGE_MESSAGES_MAX: Final = 1_000


class ReadOptions(NamedTuple):
    """The range that a caller asks for; its places are in the form of the protocol.

    ``start`` None: the oldest message. The message of the id ``start`` itself belongs to the range only if
    ``inclusive``. ``end`` None: the newest message. ``generation`` is that of the places; None: any.
    """

    start: MessageId | int | None = None
    end: MessageId | int | None = None
    inclusive: bool = True
    snapshot: Snapshot | None = None
    generation: int | None = None

    @property
    def first(self) -> MessageId:
        """The least id at which the range may begin."""
        if self.start is None:
            return LOG_KEY_MIN + LOG_KEY_MIN
        return _id_at(self.start)

    def stop(self, latest: MessageId) -> MessageId:
        """Return the id before which the range ends, in a topic with that latest id."""
        behind = log_key_after(latest[:LOG_KEY_BYTES]) + LOG_KEY_MIN
        return behind if self.end is None else min(behind, _id_at(self.end))

    def span(self, stop: MessageId) -> bulk.BulkRange:
        """Return the log keys that contain the range. Those at its ends may contain more than the range."""
        key, inside = stop[:LOG_KEY_BYTES], stop[LOG_KEY_BYTES:]
        through = (log_key_before(key) if inside == LOG_KEY_MIN else key) + LOG_KEY_MIN
        after = None
        if self.start is not None:
            after = log_key_before(self.first[:LOG_KEY_BYTES]) + LOG_KEY_MIN
        return bulk.BulkRange(after, through, self.snapshot, self.generation)

    def has_begun(self, identifier: MessageId) -> bool:
        """Return whether an id is at or after the beginning of the range."""
        if isinstance(self.start, bytes) and not self.inclusive:
            return identifier > self.start
        return identifier >= self.first


def _id_at(place: MessageId | int) -> MessageId:
    return first_log_key_at(place) + LOG_KEY_MIN if isinstance(place, int) else place


class Reading:
    """The result of ``Client.read``: iterate over it, or convert it into a table.

    ::

        async for message in client.read("shop/orders", start, end): ...
        table = await client.read("shop/orders", start, end).to_arrow()

    A table has these columns, and holds the whole range in memory:

    =========== ======================= ================================================
    ``id``      binary                  the message's 20 bytes, which sort as the topic's order
    ``time``    timestamp[ms, tz=UTC]   when it was published
    ``value``   binary                  its payload
    ``key``     binary                  its key; null: none
    ``headers`` map<string, binary>     its headers; null: none
    =========== ======================= ================================================
    """

    def __init__(
        self,
        source: tail.TailSource,
        topic_range: Callable[[], Awaitable[TopicRange]],
        wanted: ReadOptions,
        deadline_s: float,
    ) -> None:
        self._source = source
        self._topic_range = topic_range
        self._wanted = wanted
        self._deadline_s = deadline_s
        self._stop: MessageId | None = None

    def __aiter__(self) -> AsyncGenerator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Message]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for message in page:
                    yield message

    async def pages(self) -> AsyncGenerator[list[Message]]:
        """Yield the messages in the lists in which they arrive, none of them empty."""
        stop = await self._end()
        wanted = self._wanted
        if wanted.first >= stop:
            return
        poll = Poll(wanted.start, wanted.inclusive, None, wanted.snapshot, wanted.generation)
        options = tail.TailOptions(
            follow=False,
            page_messages_max=PAGE_MESSAGES_MAX,
            give_up_after_s=self._deadline_s,
        )
        async with aclosing(tail.tail(self._source, poll, options)) as pages:
            async for page in pages:
                count = bisect_left(page, stop, key=_id_of)
                if count:
                    yield page[:count]
                if count < len(page):
                    return

    async def to_arrow(self) -> Table:
        """Return the range as a ``pyarrow.Table``; the broker needs the extra ``arrow``.

        Raises:
            ImportError: pyarrow is missing.
            NotInstalled: the broker lacks the extra.
            BrokerError: the range can't be read, or every attempt failed for the client's ``deadline_s``.
        """
        dataframes.check_pyarrow()
        stop = await self._end()
        span = self._wanted.span(stop)
        if (span.after or LOG_KEY_MIN) >= span.through:
            return dataframes.table_of([])
        received = bulk.record_batches(self._source, span, self._deadline_s)
        async with aclosing(received):
            batches = [
                dataframes.cut(each, self._wanted.has_begun, stop) async for each in received
            ]
        return dataframes.table_of(batches)

    async def to_pandas(self) -> PandasFrame:
        """Return the range as a ``pandas.DataFrame``: ``time`` in UTC, ``headers`` as dicts. Raises as ``to_arrow``."""
        dataframes.check_pandas()
        return dataframes.pandas_of(await self.to_arrow())

    async def to_polars(self) -> PolarsFrame:
        """Return the range as a ``polars.DataFrame``: ``headers`` as lists of pairs. Raises as ``to_arrow``."""
        dataframes.check_polars()
        return dataframes.polars_of(await self.to_arrow())

    async def _end(self) -> MessageId:
        """Return the id before which the range ends. The first call fixes it, and the generation.

        Raises TopicRecreated.
        """
        if self._stop is None:
            found = await self._topic_range()
            asked = self._wanted.generation
            present = asked if found.generation is None else found.generation
            if asked is not None and present is not None and asked != present:
                raise TopicRecreated.between(self._source.topic, asked, present)
            self._wanted = self._wanted._replace(generation=present)
            self._stop = self._wanted.stop(found.latest)
        return self._stop


def _id_of(message: Message) -> MessageId:
    return message.id

"""The outbox: a SQL transaction writes notifications, and a relay publishes each of them once and in order.

A program that changes its database and notifies other programs does both in one SQL transaction: the notification is
a row of the outbox. It is published if, and only if, the transaction commits. The broker may be down meanwhile::

    with Session(engine) as session, session.begin():
        session.add(Order(...))
        session.execute(outbox.insert("shop/orders", b"...", key="order 7"))

    asyncio.run(outbox.relay(client, engine))           in another program, or in a task of this one

**Once.** The relay works in steps, and may crash after any of them::

    1 SQL     assign: the topic's counter goes from n to n + 1, and the oldest rows get the number n + 1 as their batch
    2 publish the batch as one request, with the topic's producer and the number (``Producer-Number``)
    3 SQL     delete the rows of the batch

Step 1 fixes a batch, and the relay assigns the next one only when none is left. So the same number always has the same
messages, and step 2 may be repeated: the broker stores nothing for a number at or below the producer's last one. A
topic keeps a producer's number for its ttl plus 7 days without a publish, but an idempotency key only for some
minutes. So the relay uses a number: after a weekend of downtime it can still repeat a publish of unknown outcome. If
a batch is older than even that, the relay does not guess: it raises OutcomeUnknown, which names the batch, and a person
decides with ``settle``.

**In order.** A database gives a row its id before the row's transaction commits. So ids may appear out of order: 7 may
be visible before 6. The relay does not remember a position in the ids. It takes the lowest visible ones, and deletes
them after their publish. A row that appears late is taken next, so the relay skips no row. The order in a topic is the
order of ids for rows that are visible together, and otherwise the order of commits. The rows of a transaction that
begins after another one has committed come behind those of the other one.

**Two relays** may run. Both publish the same batch with the same number. If both assign a batch at the same time, the
counter lets only one succeed. A relay that paused meanwhile publishes a number that the broker has already seen.

**A restored database** has an older counter. The broker has seen its next numbers, and would store nothing for new
messages. A relay detects this: the broker answers that the number is below its last one, or has other messages under it,
and the rows are still in the database. The relay deletes nothing and raises an error. After ``renew`` it continues
under new producers.

If the broker refuses a batch (the topic was deleted, a message is too large), the batch stays and its topic waits,
because the order must not change. Each topic has a back-off of its own, and topics are relayed side by side: so other
topics go on without a pause.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Insert,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from broker.client.protocol import topic_id
from broker.client.publish_request import parts_of, several, with_life
from broker.client.values import NewMessage, Payload, Publishable, TopicName
from broker.errors import BadRequest
from broker.model import NO_HEADERS
from broker.sql.insert_parts import InsertInParts
from broker.sql.relay import CounterWentBack, Overtaken, Relay
from broker.sql.work import LARGE, SqlWork
from broker.wire import attributes

if TYPE_CHECKING:
    import asyncio

    from sqlalchemy.ext.asyncio import AsyncEngine

    from broker.client import Client

BATCH_MESSAGES_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 1 << 20
"""The limit of one batch of a topic. It always has at least one message."""

IDLE_S: Final = 0.5
"""The pause of a relay that has found no messages."""

_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
"""SQLite generates ids only for a column of exactly this type."""


CHANGED_AT_ONCE: Final = 10_000
"""How many rows one statement names by their ids."""


class OutboxBatch(NamedTuple):
    """Messages of a topic that are published together, once."""

    topic: str
    producer: str
    number: int
    assigned_ms: int
    messages: list[NewMessage]


class Outbox:
    """The tables of an outbox, and their operations.

    Args:
        metadata: the MetaData of the tables; by default one of their own.
        name: the name of the first table; the second one has the suffix ``_topics``.
        namespace: the namespace of topics that are named without one.
        batch_messages_max: the maximum number of messages in a batch.
        batch_bytes_max: the maximum size of the messages in a batch.
    """

    def __init__(
        self,
        metadata: MetaData | None = None,
        *,
        name: str = "broker_outbox",
        namespace: str = "default",
        batch_messages_max: int = BATCH_MESSAGES_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self.metadata = MetaData() if metadata is None else metadata
        self.namespace = namespace
        self._batch_messages_max = batch_messages_max
        self._batch_bytes_max = batch_bytes_max
        self.rows = Table(
            name,
            self.metadata,
            Column("id", _NUMBER, primary_key=True, autoincrement=True),
            Column("topic", String(512), nullable=False),
            Column("batch", BigInteger),
            Column("size", Integer, nullable=False),
            Column("ttl_s", Integer),
            Column("payload", LARGE, nullable=False),
            Column("attributes", LARGE, nullable=False),
            Index(f"{name}_by_topic", "topic", "batch", "id"),
            sqlite_autoincrement=True,
        )
        self.topics = Table(
            f"{name}_topics",
            self.metadata,
            Column("topic", String(512), primary_key=True),
            Column("producer", String(40), nullable=False),
            Column("number", BigInteger, nullable=False),
            Column("assigned_ms", BigInteger, nullable=False),
        )

    def create(self, engine: Engine) -> None:
        """Create the two tables if they do not exist. With an AsyncEngine: ``run_sync(outbox.metadata.create_all)``."""
        self.metadata.create_all(engine, tables=[self.rows, self.topics])

    def insert(
        self,
        topic: TopicName,
        messages: Publishable | Sequence[Publishable],
        *,
        key: Payload | None = None,
        headers: Mapping[str, Payload] = NO_HEADERS,
        ttl_s: int | None = None,
    ) -> Insert:
        """Return the statement that inserts messages into the outbox. Execute it in your own SQL transaction.

        A connection or a session can execute it, plain or asynchronous. Databases bound the parameters of a statement
        (PostgreSQL: 65,535), so many messages are inserted in parts of ``INSERTED_AT_ONCE``, all in your transaction.

        Args:
            topic: the topic.
            messages: bytes, text or ``NewMessage``, one or a sequence.
            key: the key of each of these messages that has none of its own.
            headers: the headers, by name, of each of these messages that has none of its own.
            ttl_s: how many seconds each of these messages without a lifetime of its own lives. The time counts from
                the moment when the relay publishes it.

        Raises:
            TypeError, BadRequest: these are not messages. BadName: the name of the topic is not valid.
        """
        identifier = topic_id(topic, self.namespace)
        parts = with_life(
            [
                parts_of(each, key=key, headers=headers, name="messages", place=at)
                for at, each in enumerate(several(messages))
            ],
            ttl_s,
        )
        if not parts:
            raise BadRequest("messages: are missing; give at least one.")
        topic_name = f"{identifier.namespace}/{identifier.topic}"
        return InsertInParts(
            self.rows,
            [
                {
                    "topic": topic_name,
                    "size": part.size,
                    "ttl_s": part.ttl_s,
                    "payload": part.payload,
                    "attributes": part.attributes,
                }
                for part in parts
            ],
        )

    async def relay(
        self,
        client: Client,
        engine: Engine | AsyncEngine,
        *,
        stop: asyncio.Event | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """Publish the messages in the outbox, and new ones, until ``stop`` is set or the call is cancelled.

        The relay logs each error. It retries the topic of the error after a pause that doubles. Other topics go on.
        """
        await Relay(self, client, engine).run(stop, idle_s)

    async def relay_all(self, client: Client, engine: Engine | AsyncEngine) -> int:
        """Publish the messages that are in the outbox now, and return their number.

        Raises:
            Exception: the first error, mostly BrokerError or SQLAlchemyError, after all other topics are done. No message is lost.
        """
        return await Relay(self, client, engine).all()

    async def waiting(self, engine: Engine | AsyncEngine) -> dict[str, int]:
        """Return the number of waiting messages of each topic."""
        return await SqlWork(engine)(self.counts)

    async def settle(
        self, engine: Engine | AsyncEngine, topic: TopicName, *, batch: int, published: bool
    ) -> bool:
        """Decide the outcome of a batch that is too old for the broker to know; see the module's docstring.

        Args:
            engine: the database.
            topic: the topic of the batch.
            batch: the number of the batch, from the relay's error. A later batch is never touched.
            published: True if its messages were published: then the batch is deleted. If False, it is published now.

        Returns:
            Whether the batch was waiting. False: it was settled or published before.
        """
        name = "/".join(topic_id(topic, self.namespace))
        return await SqlWork(engine)(self._settle, name, batch, published=published)

    async def renew(self, engine: Engine | AsyncEngine) -> None:
        """Give every topic a new producer, after the database was restored from a backup.

        The numbers of the old producers are behind those that the broker has seen. Messages of the backup that were
        published before are published again.
        """
        await SqlWork(engine)(self._renew)

    # --- Functions that run in a SQL transaction ---------------------------------------------------

    def counts(self, connection: Connection) -> dict[str, int]:
        """Return the number of rows of each topic."""
        rows = self.rows
        found = select(rows.c.topic, func.count()).group_by(rows.c.topic).order_by(rows.c.topic)
        return {row[0]: row[1] for row in connection.execute(found)}

    def assigned(self, connection: Connection, topic: str) -> OutboxBatch | None:
        """Return the assigned batch of a topic, or None."""
        rows, topics = self.rows, self.topics
        found = connection.execute(
            select(rows.c.batch, rows.c.payload, rows.c.attributes, rows.c.ttl_s)
            .where(rows.c.topic == topic, rows.c.batch.is_not(None))
            .order_by(rows.c.id)
        ).all()
        if not found:
            return None
        of_topic = connection.execute(select(topics).where(topics.c.topic == topic)).one()
        return OutboxBatch(
            topic,
            of_topic.producer,
            found[0].batch,
            of_topic.assigned_ms,
            [
                NewMessage(row.payload, *attributes.decode(row.attributes), row.ttl_s)
                for row in found
            ],
        )

    def assign(self, connection: Connection, topic: str, now_ms: int) -> bool:
        """Assign the next batch of a topic. Return whether there were rows.

        Raises:
            Overtaken: another relay assigns at the same time; this transaction is rolled back.
        """
        rows, topics = self.rows, self.topics
        number = self._number(connection, topic)
        changed = connection.execute(
            update(topics)
            .where(topics.c.topic == topic, topics.c.number == number)
            .values(number=number + 1, assigned_ms=now_ms)
        )
        if changed.rowcount != 1 or self.is_assigned(connection, topic):
            raise Overtaken
        ids = self._next_ids(connection, topic)
        if not ids:
            return False
        for at in range(0, len(ids), CHANGED_AT_ONCE):
            some = ids[at : at + CHANGED_AT_ONCE]
            free = update(rows).where(rows.c.id.in_(some), rows.c.batch.is_(None))
            if connection.execute(free.values(batch=number + 1)).rowcount != len(some):
                raise Overtaken
        return True

    def is_assigned(self, connection: Connection, topic: str) -> bool:
        """Return whether a topic has an assigned batch."""
        rows = self.rows
        found = select(rows.c.id).where(rows.c.topic == topic, rows.c.batch.is_not(None)).limit(1)
        return connection.execute(found).first() is not None

    def _number(self, connection: Connection, topic: str) -> int:
        """Return the topic's last number. Give a new topic its producer."""
        topics = self.topics
        last = select(topics.c.number).where(topics.c.topic == topic)
        found = connection.execute(last).scalar_one_or_none()
        if found is not None:
            return int(found)
        new = {"topic": topic, "producer": uuid.uuid4().hex, "number": 0, "assigned_ms": 0}
        connection.execute(insert(topics), [new])
        return 0

    def _next_ids(self, connection: Connection, topic: str) -> list[int]:
        rows = self.rows
        found = connection.execute(
            select(rows.c.id, rows.c.size)
            .where(rows.c.topic == topic, rows.c.batch.is_(None))
            .order_by(rows.c.id)
            .limit(self._batch_messages_max)
        )
        ids: list[int] = []
        size = 0
        for row_id, row_size in found:
            size += row_size
            if ids and size > self._batch_bytes_max:
                break
            ids.append(row_id)
        return ids

    def forget(self, connection: Connection, batch: OutboxBatch, *, known: bool) -> None:
        """Delete the rows of a published batch.

        Args:
            connection: the connection of the SQL transaction.
            batch: the batch.
            known: whether the broker confirmed this batch. If not, it has seen higher numbers. Then another relay has
                deleted these rows long ago, unless the counter went back.

        Raises:
            CounterWentBack: the rows exist; they are not deleted.
        """
        rows = self.rows
        deleted = connection.execute(
            delete(rows).where(rows.c.topic == batch.topic, rows.c.batch == batch.number)
        )
        if deleted.rowcount and not known:
            raise CounterWentBack(batch.topic)

    def _renew(self, connection: Connection) -> None:
        topics = self.topics
        for topic in connection.scalars(select(topics.c.topic)).all():
            renewed = update(topics).where(topics.c.topic == topic)
            connection.execute(renewed.values(producer=uuid.uuid4().hex, assigned_ms=FRESH_MS))

    def _settle(self, connection: Connection, topic: str, batch: int, *, published: bool) -> bool:
        rows, topics = self.rows, self.topics
        of_batch = (rows.c.topic == topic, rows.c.batch == batch)
        if published:
            return connection.execute(delete(rows).where(*of_batch)).rowcount > 0
        if connection.execute(select(rows.c.id).where(*of_batch).limit(1)).first() is None:
            return False
        fresh: Any = update(topics).where(topics.c.topic == topic, topics.c.number == batch)
        connection.execute(fresh.values(assigned_ms=FRESH_MS))
        return True


FRESH_MS: Final = 1 << 62
"""The time of assignment of a batch that is published at any age."""

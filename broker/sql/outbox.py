"""The outbox: notifications that a SQL transaction writes, and a relay publishes, each once and in order.

A program that changes its database and tells the world does both in one SQL transaction: the notification is a row of
the outbox. It is published if, and only if, the transaction commits. No broker has to be up for that::

    with Session(engine) as session, session.begin():
        session.add(Order(...))
        session.execute(outbox.insert("shop/orders", b"...", key="order 7"))

    asyncio.run(outbox.relay(client, engine))           in another program, or in a task of this one

**Once.** The relay goes on in steps, of which each one may be the last before a crash::

    1 SQL     assign: the topic's counter goes from n to n + 1, and the oldest rows get the number n + 1 as their batch
    2 publish the batch as one request, under the topic's producer and the number (``Producer-Number``)
    3 SQL     delete the rows of the batch

A batch is fixed by step 1, and the next one is assigned when none is left. So the same number always has the same
messages, and step 2 may be repeated: the broker stores nothing for a number at or below the producer's last one. A
producer's number is kept with the topic for its ttl and 7 days of silence, an idempotency key only for some minutes,
so it is the number that a relay needs that was down for a weekend, with a publish of unknown outcome behind it. If
the batch is older than even that, the relay refuses to guess: OutcomeUnknown is raised, and ``settle`` takes a
person's word.

**In order.** A database gives a row its id before the row's transaction commits, so ids appear late: 7 may be there
when 6 is not yet. The relay keeps no place in the ids. It takes the lowest ones that it can see, and deletes what is
published; a row that appears late is the next one to be taken, and no row is passed over. So the order in a topic is
that of the ids among the rows that are there together, and else that of the commits. A transaction that begins when
another one has committed comes behind it.

**Two relays** may run: both publish the same batch under the same number, and of two that assign one loses, by the
counter. A relay that slept meanwhile publishes a number that the broker has seen.

**A restored database** has an older counter, whose next numbers the broker has seen: it would overlook new messages. A
relay notices: the broker answers that the number is below its last one, or that the batch had another count of messages,
and the rows are still there. It deletes nothing and says so; ``renew`` lets it go on under new producers.

A batch that is refused (the topic was deleted, a message is too large) stays, and its topic waits, since order comes
first; other topics go on.
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
    LargeBinary,
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
from broker.client.publish_request import parts_of, several
from broker.client.values import NewMessage, Payload, Publishable, TopicName
from broker.model import NO_HEADERS
from broker.sql.relay import CounterWentBack, Overtaken, Relay
from broker.sql.work import SqlWork
from broker.wire import attributes

if TYPE_CHECKING:
    import asyncio

    from sqlalchemy.ext.asyncio import AsyncEngine

    from broker.client import Client

BATCH_MESSAGES_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 1 << 20
"""How much of a topic is published at once; one message always is."""

IDLE_S: Final = 0.5
"""How long a relay rests that has found nothing."""

_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only under this name of the type."""


class OutboxBatch(NamedTuple):
    """Messages of a topic that are published together, once."""

    topic: str
    producer: str
    number: int
    assigned_ms: int
    messages: list[NewMessage]


class Outbox:
    """The tables of an outbox, and all that is done with them.

    Args:
        metadata: where the tables belong to; by default one of their own.
        name: the name of the first table; the second one's has ``_topics`` behind it.
        namespace: of topics that are named without one.
        batch_messages_max: how many messages are published at once.
        batch_bytes_max: how many bytes of messages.
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
            Column("payload", LargeBinary, nullable=False),
            Column("attributes", LargeBinary, nullable=False),
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
        """Create the two tables, if they are not there. With an AsyncEngine: ``run_sync(outbox.metadata.create_all)``."""
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
        """Return the statement that writes messages into the outbox, to be executed in the caller's SQL transaction.

        It may be given to a connection or a session, plain or for asyncio.

        Args:
            topic: where to.
            messages: bytes, text or ``NewMessage``, one or a sequence.
            key: the key of each of these messages that has none of its own.
            headers: the headers, by name, of each of these messages that has none of its own.
            ttl_s: how many seconds each of these messages lives that says nothing of its own. It counts from the
                moment at which it is relayed.

        Raises:
            TypeError, BadRequest: these are no messages. BadName: the topic can't have that name.
        """
        identifier = topic_id(topic, self.namespace)
        parts = [
            parts_of(each, key=key, headers=headers, name="messages", place=at)
            for at, each in enumerate(several(messages))
        ]
        return insert(self.rows).values(
            [
                {
                    "topic": f"{identifier.namespace}/{identifier.topic}",
                    "size": part.size,
                    "ttl_s": ttl_s if part.ttl_s is None else part.ttl_s,
                    "payload": part.payload,
                    "attributes": part.attributes,
                }
                for part in parts
            ]
        )

    async def relay(
        self,
        client: Client,
        engine: Engine | AsyncEngine,
        *,
        stop: asyncio.Event | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """Publish what is in the outbox, and what comes into it, until ``stop`` is set or the call is cancelled.

        What goes wrong is logged and tried again, after a pause that doubles.
        """
        await Relay(self, client, engine).run(stop, idle_s)

    async def relay_all(self, client: Client, engine: Engine | AsyncEngine) -> int:
        """Publish what is in the outbox, and return how many messages that were.

        Raises:
            BrokerError, SQLAlchemyError: the first that went wrong, when all other topics are done. Nothing is lost.
        """
        return await Relay(self, client, engine).all()

    async def waiting(self, engine: Engine | AsyncEngine) -> dict[str, int]:
        """Return how many messages of each topic wait."""
        return await SqlWork(engine)(self.counts)

    async def settle(
        self, engine: Engine | AsyncEngine, topic: TopicName, *, published: bool
    ) -> None:
        """Say what became of a batch that is too old for the broker to tell, see the top of the module.

        Args:
            engine: the database.
            topic: whose batch.
            published: whether its messages were published, so that the batch is deleted; else it is published now.
        """
        name = "/".join(topic_id(topic, self.namespace))
        await SqlWork(engine)(self._settle, name, published=published)

    async def renew(self, engine: Engine | AsyncEngine) -> None:
        """Give every topic a new producer, after the database was restored from a backup.

        The numbers of the old one are behind what the broker has seen. Messages of the backup that were published
        already are published once more.
        """
        await SqlWork(engine)(self._renew)

    # --- Pieces of work in SQL --------------------------------------------------------------------

    def counts(self, connection: Connection) -> dict[str, int]:
        """Return how many rows each topic has."""
        rows = self.rows
        found = select(rows.c.topic, func.count()).group_by(rows.c.topic).order_by(rows.c.topic)
        return {row[0]: row[1] for row in connection.execute(found)}

    def assigned(self, connection: Connection, topic: str) -> OutboxBatch | None:
        """Return the batch of a topic that is to be published, if one is assigned."""
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
        """Assign the next batch of a topic. Return whether there was something.

        Raises:
            Overtaken: another relay assigns at the same time; what this one has done is rolled back.
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
        taken = connection.execute(
            update(rows).where(rows.c.id.in_(ids), rows.c.batch.is_(None)).values(batch=number + 1)
        )
        if taken.rowcount != len(ids):
            raise Overtaken
        return True

    def is_assigned(self, connection: Connection, topic: str) -> bool:
        """Return whether a batch of a topic is assigned."""
        rows = self.rows
        found = select(rows.c.id).where(rows.c.topic == topic, rows.c.batch.is_not(None)).limit(1)
        return connection.execute(found).first() is not None

    def _number(self, connection: Connection, topic: str) -> int:
        """Return the topic's last number; a topic that is new gets its producer."""
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
        """Delete the rows of a batch that is published.

        Args:
            connection: has the SQL transaction.
            batch: which.
            known: whether the broker has it. If not, it has seen higher numbers: then another relay has deleted these
                rows long ago, unless the counter has gone back.

        Raises:
            CounterWentBack: the rows are there; they stay.
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

    def _settle(self, connection: Connection, topic: str, *, published: bool) -> None:
        rows, topics = self.rows, self.topics
        if published:
            connection.execute(delete(rows).where(rows.c.topic == topic, rows.c.batch.is_not(None)))
        else:
            fresh: Any = update(topics).where(topics.c.topic == topic)
            connection.execute(fresh.values(assigned_ms=FRESH_MS))


FRESH_MS: Final = 1 << 62
"""When a batch was assigned that is to be published whatever its age is."""

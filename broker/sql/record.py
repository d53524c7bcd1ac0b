"""A SQL database and the broker in one transaction: both commit or neither, also if a process is killed.

A SQL commit has one phase: it can't be prepared, and can't be undone. So the database commits last, and its commit
**decides** (this is known as *last resource commit with a record*)::

    1 the block                  SQL statements, uncommitted; messages, in memory
    2 can_commit; commit_tx      the session is flushed, so that violated constraints fail now; then the publisher
                                 publishes: the messages are stored, and consumers in transactions wait before them
    3 decide_tx                  the database commits, in the same SQL transaction, a **record**: the number of the
                                 broker's transaction, and its messages
    4 service.commit             consumers see the messages
    5 post_commit                the record is deleted

Why it is both or neither:

* Before step 3 is done there is no record. A program that fails then rolls everything back. If the process is killed,
  the broker's transaction times out and becomes invalid, and the database rolls the SQL transaction back: *neither*.
* From step 3 on there is a record, and **recovery** makes the broker follow it: *both*. For each record it asks the
  service for the outcome of the transaction::

      committed      delete the record. There is one exception: a transaction that was invalid so long that the service
                     has forgotten it looks like a committed one. But then its messages are rolled back, so recovery
                     checks them
      in progress    commit it: a record proves that every publish of it was acknowledged
      invalid        the transaction timed out. Its messages are skipped for good, so publish them again, in a new
                     transaction with the same protocol. It decides by changing the number in the record from the old
                     transaction's to its own. Of two recoveries one changes it, and the other one rolls back
      unknown        the service does not say: the record stays for the next recovery

  So at any time a record names the one transaction that can make its messages visible. A new one is named only when
  the old one is certainly invalid. Consumers in transactions see the messages once.
* After step 3 the client never rolls back or aborts. An aborted transaction would look like a committed one, and
  recovery would delete its record.
* If the outcome of the SQL commit itself is unknown (the connection broke), the client changes nothing. If the record
  exists, recovery follows it; if not, the transaction times out. That is why a record has the messages: it may appear
  after the transaction has become invalid.

The cost: the messages are also written to the database. They wait in memory for that, so they can't be stored in the
broker meanwhile (``buffer_bytes_max`` is their limit). A transaction with keys of changes is refused, because a
conflict could come after the decision. SQL's own locks and constraints find conflicts. One session decides; two
databases would need two.

Run ``recover`` when the program starts, and about every minute. A killed process may leave a decided transaction whose
messages are not visible yet, and consumers may have to wait until its time-out; recovery ends that. Several processes
may run it, also during transactions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    insert,
    select,
    update,
)

from broker.client.publish_request import joined
from broker.client.transaction_aware import AnyTransactionService, Topical
from broker.client.transaction_fate import pointers_of
from broker.client.values import NewMessage
from broker.model import Snapshot
from broker.sql.recovery import Recovered, Recovery
from broker.sql.session import AsyncParticipant, Participant
from broker.sql.work import LARGE
from broker.wire import attributes, messages

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

    from broker.client.aio import Client
    from broker.client.sync import SyncClient

_ALL: Final = 1 << 62
_POINTERS_PLACE: Final = -1
"""The place of the row with all write pointers of a transaction that has more than one checkpoint."""


class RecordOwner(NamedTuple):
    """A record: its key, and the transaction that has its messages now."""

    number: int
    transaction_id: int
    write_pointer: int


class SqlRecord:
    """The tables of the records, and their operations.

    ::

        record = SqlRecord(Base.metadata)               its tables are created with yours
        await record.recover(client, engine)            when the program starts
        async with AsyncSession(engine) as session, client.transaction() as tx:
            await tx.add(record.participant(session))
            session.add(Order(...))
            await tx.publish("shop/orders", b"...")

    Args:
        metadata: the MetaData of the tables; by default one of their own.
        name: the name of the first table; the second one has the suffix ``_messages``.
    """

    def __init__(
        self, metadata: MetaData | None = None, *, name: str = "broker_transactions"
    ) -> None:
        self.metadata = MetaData() if metadata is None else metadata
        self.decisions = Table(
            name,
            self.metadata,
            Column("number", BigInteger, primary_key=True, autoincrement=False),
            Column("transaction_id", BigInteger, nullable=False),
            Column("write_pointer", BigInteger, nullable=False),
        )
        self.messages = Table(
            f"{name}_messages",
            self.metadata,
            Column("number", BigInteger, primary_key=True, autoincrement=False),
            Column("place", Integer, primary_key=True, autoincrement=False),
            Column("topic", String(512), nullable=False),
            Column("body", LARGE, nullable=False),
        )

    def create(self, engine: Engine) -> None:
        """Create the two tables if they do not exist. With an AsyncEngine: ``run_sync(record.metadata.create_all)``."""
        self.metadata.create_all(engine, tables=[self.decisions, self.messages])

    def participant(self, session: Session | AsyncSession) -> Any:
        """Return a session as the deciding participant of a transaction, for ``tx.add``.

        Bind the session to an engine, and do not commit it inside of the block. The thread that runs the block uses a
        plain session, and the commit blocks this thread. So in an asyncio program an AsyncSession is better.
        """
        if hasattr(session, "sync_session"):
            return AsyncParticipant(self, session)
        return Participant(self, session)

    async def recover(
        self,
        client: Client,
        engine: Engine | AsyncEngine,
        *,
        service: AnyTransactionService | None = None,
    ) -> Recovered:
        """Make the broker follow all records. Messages to a topic that was deleted meanwhile are dropped.

        Args:
            client: publishes messages again if necessary.
            engine: the database.
            service: the transaction service, if it is not the broker's.

        Raises:
            OutcomeUnknown: some records stay for the next recovery, after an error of the service, of a topic or of
                the database. It names the first error, which is also its cause.
        """
        return await Recovery(self, client, engine, service).run()

    def recover_blocking(
        self, client: SyncClient, engine: Engine, *, service: AnyTransactionService | None = None
    ) -> Recovered:
        """Do the same as ``recover`` in a program without asyncio."""
        work = self.recover(client._client, engine, service=service)  # noqa: SLF001 - The blocking form of Client.
        return client._wait(work)  # noqa: SLF001

    # --- Functions that run in a SQL transaction ---------------------------------------------------

    def write(self, connection: Any, transaction: Snapshot, published: Sequence[Topical]) -> None:
        """Write a record in the SQL transaction of a connection or a session."""
        number = transaction.transaction_id
        decision = RecordOwner(number, number, transaction.write_pointer)
        connection.execute(insert(self.decisions), [decision._asdict()])
        rows = [
            {
                "number": number,
                "place": place,
                "topic": f"{topic.namespace}/{topic.topic}",
                "body": messages.encode_publish_request(joined(parts)),
            }
            for place, (topic, parts) in enumerate(published)
        ]
        pointers = sorted(pointers_of(transaction))
        if len(pointers) > 2:  # The decision has the first and the last one.
            body = json.dumps(pointers).encode()
            rows.append(
                {"number": number, "place": _POINTERS_PLACE, "topic": "pointers", "body": body}
            )
        if rows:
            connection.execute(insert(self.messages), rows)

    def all(self, connection: Connection) -> list[RecordOwner]:
        """Return all records."""
        found = connection.execute(select(self.decisions).order_by(self.decisions.c.number))
        return [RecordOwner(*row) for row in found]

    def get(self, connection: Connection, number: int) -> RecordOwner | None:
        """Return one record, or None."""
        found = select(self.decisions).where(self.decisions.c.number == number)
        row = connection.execute(found).one_or_none()
        return None if row is None else RecordOwner(*row)

    def published(self, connection: Connection, number: int) -> list[tuple[str, list[NewMessage]]]:
        """Return the messages of a record, by topic."""
        table = self.messages
        found = (
            select(table.c.topic, table.c.body)
            .where(table.c.number == number, table.c.place >= 0)
            .order_by(table.c.place)
        )
        return [(topic, _messages(body)) for topic, body in connection.execute(found)]

    def pointers(self, connection: Connection, decision: RecordOwner) -> set[int]:
        """Return the write pointers under which the messages of a record may be published."""
        known = {decision.transaction_id, decision.write_pointer}
        if decision.transaction_id != decision.number:
            return known  # A transaction of recovery, which has no checkpoints.
        table = self.messages
        found = select(table.c.body).where(
            table.c.number == decision.number, table.c.place == _POINTERS_PLACE
        )
        body = connection.execute(found).scalar_one_or_none()
        return known if body is None else {*known, *json.loads(body)}

    def change(self, connection: Connection, old: RecordOwner, new: Snapshot) -> bool:
        """Name another transaction in a record. Return False if it does not name the old one any more."""
        table = self.decisions
        changed = connection.execute(
            update(table)
            .where(table.c.number == old.number, table.c.transaction_id == old.transaction_id)
            .values(transaction_id=new.transaction_id, write_pointer=new.write_pointer)
        )
        return changed.rowcount == 1

    def forget(self, connection: Connection, number: int, transaction_id: int) -> None:
        """Delete a record whose transaction is committed."""
        table = self.decisions
        where = (table.c.number == number, table.c.transaction_id == transaction_id)
        if connection.execute(delete(table).where(*where)).rowcount:
            connection.execute(delete(self.messages).where(self.messages.c.number == number))


def _messages(body: bytes) -> list[NewMessage]:
    request = messages.decode_publish_request(body, messages_max=_ALL)
    beside = request.attributes or [b""] * len(request.payloads)
    lives = request.ttls_s or [None] * len(request.payloads)
    return [
        NewMessage(payload, *attributes.decode(encoded), ttl_s)
        for payload, encoded, ttl_s in zip(request.payloads, beside, lives, strict=True)
    ]

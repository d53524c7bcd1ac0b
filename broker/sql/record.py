"""A SQL database and the broker in one transaction: both or neither, whatever is killed when.

A SQL commit has one phase: it can't be prepared, and can't be taken back. So the database comes last, and its commit
**decides** (this is known as *last resource commit with a record*)::

    1 the block                  SQL statements, uncommitted; messages, in memory
    2 can_commit; commit_tx      the session is flushed, so that constraints speak now; then the publisher publishes:
                                 the messages are stored, and consumers in transactions are held before them
    3 decide_tx                  the database commits, in the same SQL transaction, a **record**: the number of the
                                 broker's transaction, and its messages
    4 service.commit             consumers see the messages
    5 post_commit                the record is deleted

Why it is both or neither:

* Before 3 is done there is no record. A program that fails then rolls everything back. A process that is killed leaves a
  transaction that times out and becomes invalid, and a SQL transaction that the database rolls back: *neither*.
* From 3 on there is a record, and **recovery** brings the broker to follow it: *both*. For each record it asks the
  service what became of the transaction::

      committed      the record is deleted. A transaction that was invalid so long that the service has forgotten it
                     looks as a committed one; but its messages are rolled back then, and that is looked for
      in progress    it is committed: a record says that every publish of it was acknowledged
      invalid        its time has passed. Its messages are skipped for good, so they are published once more, by a new
                     transaction with the same protocol, which decides by changing the number in the record from the
                     old one to its own. Of two recoveries one changes it, and the other one rolls back
      unknown        the service does not say: the record stays for the next recovery

  So at any time a record names the one transaction that can make its messages visible, and a new one is named only
  when the old one is invalid for certain. Consumers in transactions see the messages once.
* After 3 nothing is ever rolled back or aborted by the client. An aborted transaction would look as a committed one,
  and recovery would delete its record.
* If the outcome of the SQL commit itself is unknown (the connection broke), all stays as it is: the record, if it is
  there, decides by recovery, and if not, the transaction times out. That is why a record has the messages: it may
  appear when the transaction is invalid already.

What it costs: the messages are written to the database, too, and wait in memory for that, so they can't be stored in
the broker meanwhile (``buffer_bytes_max`` is their bound). Keys of changes are refused: a conflict could come after
the decision; SQL's own locks and constraints find conflicts. One session decides; two databases would need two.

Run ``recover`` when the program starts, and every minute or so: until then messages of a decided transaction whose
process was killed are missing, and consumers may be held until its time-out. Several processes may run it, also
while transactions are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
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
from broker.client.values import NewMessage
from broker.model import Snapshot
from broker.sql.recovery import Recovered, Recovery
from broker.sql.session import AsyncParticipant, Participant
from broker.wire import attributes, messages

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

    from broker.client.aio import Client
    from broker.client.sync import SyncClient

_ALL: Final = 1 << 62


class RecordOwner(NamedTuple):
    """A record: its key, and the transaction that has its messages now."""

    number: int
    transaction_id: int
    write_pointer: int


class SqlRecord:
    """The tables of the records, and all that is done with them.

    ::

        record = SqlRecord(Base.metadata)               its tables are created with yours
        await record.recover(client, engine)            when the program starts
        async with AsyncSession(engine) as session, client.transaction() as tx:
            await tx.add(record.participant(session))
            session.add(Order(...))
            await tx.publish("shop/orders", b"...")

    Args:
        metadata: where the tables belong to; by default one of their own.
        name: the name of the first table; the second one's has ``_messages`` behind it.
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
            Column("body", LargeBinary, nullable=False),
        )

    def create(self, engine: Engine) -> None:
        """Create the two tables, if they are not there. With an AsyncEngine: ``run_sync(record.metadata.create_all)``."""
        self.metadata.create_all(engine, tables=[self.decisions, self.messages])

    def participant(self, session: Session | AsyncSession) -> Any:
        """Return a session as the deciding participant of a transaction, to be given to ``tx.add``.

        The session must be bound to an engine, and must not be committed inside of the block. A plain session is
        used by the thread that runs the block: in a program for asyncio it blocks the loop while it commits, so an
        AsyncSession is better there.
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
        """Bring the broker to follow all records.

        Args:
            client: publishes what has to be published again.
            engine: the database.
            service: the transaction service, if not the broker's.

        Raises:
            OutcomeUnknown: the service did not say what became of some transactions; their records stay.
        """
        return await Recovery(self, client, engine, service).run()

    def recover_blocking(
        self, client: SyncClient, engine: Engine, *, service: AnyTransactionService | None = None
    ) -> Recovered:
        """Do the same in a program without asyncio."""
        work = self.recover(client._client, engine, service=service)  # noqa: SLF001 - Its own.
        return client._wait(work)  # noqa: SLF001

    # --- Pieces of work in SQL --------------------------------------------------------------------

    def write(self, connection: Any, transaction: Snapshot, published: Sequence[Topical]) -> None:
        """Write a record, in the SQL transaction of a connection or a session."""
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
        if rows:
            connection.execute(insert(self.messages), rows)

    def all(self, connection: Connection) -> list[RecordOwner]:
        """Return all records."""
        found = connection.execute(select(self.decisions).order_by(self.decisions.c.number))
        return [RecordOwner(*row) for row in found]

    def get(self, connection: Connection, number: int) -> RecordOwner | None:
        """Return one record."""
        found = select(self.decisions).where(self.decisions.c.number == number)
        row = connection.execute(found).one_or_none()
        return None if row is None else RecordOwner(*row)

    def published(self, connection: Connection, number: int) -> list[tuple[str, list[NewMessage]]]:
        """Return the messages of a record, by topic."""
        table = self.messages
        found = (
            select(table.c.topic, table.c.body)
            .where(table.c.number == number)
            .order_by(table.c.place)
        )
        return [(topic, _messages(body)) for topic, body in connection.execute(found)]

    def change(self, connection: Connection, old: RecordOwner, new: Snapshot) -> bool:
        """Name another transaction in a record, if it still names the old one."""
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

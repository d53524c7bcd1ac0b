"""The place of a subscriber in a SQL database: it changes in the transaction of the handler's own writes.

::

    place = SqlPlace(engine, "adder")                   an Engine, or an AsyncEngine

    async def add(message, session):                    a Session, or an AsyncSession
        session.add(Deposit(...))                       committed together with the place, or not at all

    await client.subscriber("shop/deposits", "adder", add, place=place).run()

The row has the topic, its generation and the id of the last message. The transaction moves it only from the id that this
process has loaded. So of two processes that handle the same message, one commits; the other one gets CursorMoved, and its
writes are rolled back.

The handler's own rows are often written only here, behind the handler: by a flush, or checked by the commit. An error of
theirs is a failed try of the handler (HandlerFailed). Any other error is one of the place, which is asked again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    insert,
    select,
    update,
)
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InvalidRequestError,
    NotSupportedError,
    ProgrammingError,
    StatementError,
)
from sqlalchemy.orm import Session

from broker.client.handler import HandlerFailed
from broker.errors import CursorMoved
from broker.model import MessageId, TopicId
from broker.places import Place
from broker.sql.work import run

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


_FAILED_TRANSACTION: Final = "25P02"
"""The state of SQL in which PostgreSQL refuses all statements: the handler has hidden an error of an earlier one."""

_STATES_OF_ROWS: Final = {"22", "23", "42"}
"""The classes of SQL's states for wrong values, for constraints, and for wrong statements."""


@contextmanager
def _errors_of_the_handler() -> Iterator[None]:
    """Raise an error that only the handler's rows or statements can have caused as HandlerFailed."""
    try:
        yield
    except (IntegrityError, DataError, ProgrammingError, NotSupportedError) as error:
        raise HandlerFailed from error
    except DBAPIError as error:
        # asyncpg's errors have a state only. Of other states: the database is away, or asks for a repetition.
        if str(getattr(error.orig, "sqlstate", ""))[:2] in _STATES_OF_ROWS:
            raise HandlerFailed from error
        raise
    except (StatementError, InvalidRequestError) as error:
        raise HandlerFailed from error


class SqlPlace:
    """The place of one subscriber: a row of a table; use it for one subscriber of this process.

    Args:
        engine: a plain Engine, whose handler gets a Session; or an AsyncEngine, whose handler gets an AsyncSession.
        name: the name of the subscriber.
        metadata: the MetaData of the table; by default one of its own.
        table: the name of the table. It is created if it is missing, unless ``create_table`` is False.
        create_table: whether to create a missing table.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        name: str,
        *,
        metadata: MetaData | None = None,
        table: str = "broker_places",
        create_table: bool = True,
    ) -> None:
        self.metadata = MetaData() if metadata is None else metadata
        known = self.metadata.tables.get(table)
        self.places = (
            Table(
                table,
                self.metadata,
                Column("topic", String(512), primary_key=True),
                Column("name", String(128), primary_key=True),
                Column("generation", Integer, nullable=False),
                Column("after", String(40), nullable=False),
            )
            if known is None
            else known
        )
        self._engine = engine
        self._name = name
        self._create_table = create_table
        self._topic = ""
        self._generation = 0
        self._loaded: str | None = None

    def begin(self, topic: TopicId, generation: int) -> None:
        """Learn the topic to which the place belongs."""
        self._topic, self._generation = f"{topic.namespace}/{topic.topic}", generation

    def load(self) -> Place | Awaitable[Place | None] | None:
        """Return the place; None if no message was handled. Raises the errors of the database."""
        if isinstance(self._engine, Engine):
            return run(self._engine, self._load)
        return self._load_async(self._engine)

    def work(
        self, after: MessageId
    ) -> AbstractContextManager[Session] | AbstractAsyncContextManager[Any]:
        """Return a transaction with a session, which also moves the place. Raises CursorMoved: another one moved it."""
        if isinstance(self._engine, Engine):
            return self._work(self._engine, after.hex())
        return self._work_async(self._engine, after.hex())

    async def _load_async(self, engine: AsyncEngine) -> Place | None:
        async with engine.begin() as connection:
            return await connection.run_sync(self._load)

    def _load(self, connection: Connection) -> Place | None:
        if self._create_table:
            self.places.create(connection, checkfirst=True)
            self._create_table = False
        table = self.places.c
        found = connection.execute(
            select(table.after, table.generation).where(*self._mine())
        ).one_or_none()
        self._loaded = None if found is None else found.after
        return None if found is None else Place(bytes.fromhex(found.after), found.generation)

    @contextmanager
    def _work(self, engine: Engine, after: str) -> Iterator[Session]:
        with Session(engine) as session, session.begin() as transaction:
            yield session
            self._end(session, after)
            with _errors_of_the_handler():
                transaction.commit()
        self._loaded = after

    @asynccontextmanager
    async def _work_async(self, engine: AsyncEngine, after: str) -> AsyncIterator[Any]:
        from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415 - It imports greenlet.

        async with AsyncSession(engine) as session, session.begin() as transaction:
            yield session
            await session.run_sync(self._end, after)
            with _errors_of_the_handler():
                await transaction.commit()
        self._loaded = after

    def _end(self, session: Session, after: str) -> None:
        with _errors_of_the_handler():
            session.flush()
        try:
            self._move(session, after)
        except InvalidRequestError as error:  # The handler has ended the transaction.
            raise HandlerFailed from error
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _FAILED_TRANSACTION:
                raise HandlerFailed from error
            raise

    def _move(self, session: Session, after: str) -> None:
        """Move the place from where this process has loaded it. Raises CursorMoved."""
        values = {"generation": self._generation, "after": after}
        if self._loaded is None:
            try:
                session.execute(
                    insert(self.places).values(topic=self._topic, name=self._name, **values)
                )
            except IntegrityError as error:
                raise self._moved() from error
            return
        done: Any = session.execute(
            update(self.places)
            .where(*self._mine(), self.places.c.after == self._loaded)
            .values(**values)
        )
        if done.rowcount != 1:
            raise self._moved()

    def _moved(self) -> CursorMoved:
        return CursorMoved(f"The place of {self._name} in {self._topic} was moved by another one.")

    def _mine(self) -> tuple[Any, ...]:
        table = self.places.c
        return table.topic == self._topic, table.name == self._name

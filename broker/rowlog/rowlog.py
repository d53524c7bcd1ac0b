"""RowLog: what applications use."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from broker import logs
from broker.clock import Clock, SystemClock
from broker.coordination.ports import (
    Coordinator,
)
from broker.errors import BadRequest, OutcomeUnknown, Unavailable
from broker.rowlog.attempt import Attempts, Tools
from broker.rowlog.cell_keys import INDEX_FAMILY, TABLE_PREFIX, Columns, check_id
from broker.rowlog.counters import Figures
from broker.rowlog.doors import row_table
from broker.rowlog.execution_state import Standing
from broker.rowlog.host import Host
from broker.rowlog.index import Index, TableIndex
from broker.rowlog.letters import LISTED_MAX, DeadLetter, DeadLetters
from broker.rowlog.listeners import Listener, LocalListeners
from broker.rowlog.meta import Meta
from broker.rowlog.puts import Parts, Put, Putting
from broker.rowlog.repair import Repair, Report
from broker.rowlog.row_locks import RowLocks
from broker.rowlog.row_table import RowTable, TableError
from broker.rowlog.rows import Message, Rows
from broker.rowlog.setup import Settings, Setup, Shard, Subscription, changed_settings
from broker.rowlog.subscriptions import Subscribing
from broker.rowlog.upkeep import COUNTED_MAX, Upkeep
from broker.rowlog.wakeups import Wakeups
from broker.rowlog.workoff import WorkingOff

if TYPE_CHECKING:
    import happybase

log = logs.get_logger()

SESSION_TIMEOUT_MS: Final = 10_000
"""Of ZooKeeper: a dead processor is succeeded within this and a second."""


class RowLog:
    """A queue that is tied to rows of a table.

    Use it as an async context, in one event loop. ``put`` and ``process`` need HBase alone; ``start`` makes
    this process a candidate for processing, which needs ZooKeeper where there is more than one.
    """

    def __init__(  # noqa: PLR0913 - All but two by name.
        self,
        pool: happybase.ConnectionPool | None,
        table: str,
        *,
        id: str,  # noqa: A002 - As Lily has it.
        family: str = "rowlog",
        log_byte: int = 4,
        zookeeper: Sequence[str] = (),
        synced: bool = False,
        thrift2: Sequence[str] = (),
        threads: int = 8,
        settings: Mapping[str, Any] | None = None,
        shards: int = 1,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        clock: Clock | None = None,
        rows: RowTable | None = None,
        coordinator: Coordinator | None = None,
        index: Callable[[RowLog], Index] | None = None,
    ) -> None:
        """Use the rows of ``table``; nothing is read or made before the context is entered.

        Args:
            pool: the application's own pool; it stays open. None if ``synced``.
            table: the user's table; it has the family.
            id: the rowlog's id; its index lies in the table ``rowlog-<id>``.
            family: where the messages lie in the user's rows.
            log_byte: tells rowlogs in one family apart, 0 to 255. Lily's: 3 for a WAL, 4 for an MQ.
            zookeeper: "host:port" of each server; none: this process is the only one that processes.
            synced: write through the Thrift-2 gateways at ``thrift2``, each write on disk.
            thrift2: "host:port" of each Thrift-2 gateway.
            threads: how many calls to happybase run at once; as many as the pool has connections.
            settings: of a rowlog that is made now; one that is there keeps its own (``change_settings``).
            shards: likewise (``reshard``).
            session_timeout_ms: of the session with ZooKeeper.
            clock: for tests.
            rows: the same; in place of HBase.
            coordinator: the session to use, in place of one of this object's own.
            index: makes another index than the table's (topicindex.py).

        Raises:
            BadName, BadRequest: an argument is wrong.
        """
        self.id = check_id(id)
        self.clock = clock or SystemClock()
        self.figures = Figures(id)
        self.listeners = LocalListeners()
        self._columns = Columns(family.encode(), log_byte)
        self._first = Setup(
            id,
            table,
            family,
            log_byte,
            topic=getattr(index, "topic", ""),
            settings=changed_settings(Settings(), settings or {}),
            shards=tuple(Shard(each) for each in range(shards)),
        )
        self._first = self._first.with_shards(shards)
        self.zookeeper = tuple(zookeeper)
        self._session_timeout_ms = session_timeout_ms
        self._coordinator = coordinator
        self._own_coordinator = coordinator is None
        self._given = rows
        self._door = partial(row_table, pool, tuple(thrift2), self.clock, threads, synced=synced)
        self._make_index = index

    # Life.

    async def __aenter__(self) -> Self:
        """Open the rowlog; make it if it is not there."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    async def open(self, *, make: bool = True) -> None:
        """Read the setup, and connect to ZooKeeper.

        Raises:
            NotFound: it is not there, and ``make`` is False.
            BadRequest: it belongs to another table, family or log byte.
            Unavailable: HBase or ZooKeeper does not answer.
        """
        self.rows = self._given or self._door()
        name = (TABLE_PREFIX + self.id).encode()
        self.meta = Meta(self.rows, name, self.clock)
        self.messages = Rows(self.rows, self._first.table.encode(), self._columns)
        self.table_index = TableIndex(self.rows, name, self.meta.setup)
        self.index = self._make_index(self) if self._make_index else self.table_index
        try:
            await self._check_setup(name, make=make)
            await self._connect()
        except TableError as error:
            raise Unavailable(f"The rowlog can't be opened: {error}.") from error
        self._wire()

    async def _check_setup(self, name: bytes, *, make: bool) -> None:
        if make:
            splits = [bytes([each.id]) for each in self._first.shards[1:]]
            if await self.rows.make_table(name, INDEX_FAMILY, splits):
                log.info("rowlog index table made", table=name.decode())
            with suppress(OutcomeUnknown):
                await self.meta.make(self._first)
        setup = await self.meta.fresh()
        wanted = (self._first.table, self._first.family, self._first.log_byte)
        if setup.topic != self._first.topic:
            there = f"the topic {setup.topic}" if setup.topic else "its table"
            raise BadRequest(f"The index of rowlog '{self.id}' is {there}.")
        if (setup.table, setup.family, setup.log_byte) != wanted:
            raise BadRequest(
                f"Rowlog '{self.id}' belongs to table {setup.table}, family {setup.family}, "
                f"log byte {setup.log_byte}."
            )

    async def _connect(self) -> None:
        if self._coordinator is None and self.zookeeper:
            from broker.coordination.zookeeper import connect  # noqa: PLC0415 - It needs kazoo.

            self._coordinator = await connect(
                self.zookeeper,
                root=f"/rowlog/{self.id}",
                session_timeout_ms=self._session_timeout_ms,
                clock=self.clock,
            )
        self.wakeups = Wakeups(self.id, self.clock, self._coordinator)
        if self._coordinator is not None:
            self._coordinator.on_hint(self.wakeups.hint("setup"), self.meta.forget)

    def _wire(self) -> None:
        """Make the parts that the methods below call."""
        chance = random.Random(secrets.randbits(64)).random  # noqa: S311 - Jitter is no secret.
        self.tools = Tools(self.id, self.messages, self.meta, self.clock, self.figures, chance)
        self._attempts = Attempts(self.tools)
        self.repair = Repair(
            self.messages,
            self.index,
            self.table_index,
            self.meta,
            self.clock,
            self.figures,
            self.wakeups.wake_for_all,
        )
        self._working_off = WorkingOff(
            self._attempts,
            self.messages,
            self.meta,
            self.index,
            self.table_index,
            self.listeners,
        )
        self._letters = DeadLetters(
            self._attempts, self.messages, self.meta, self.index, self.table_index, self.wakeups
        )
        self.setting = Subscribing(
            self.id,
            self.messages,
            self.meta,
            self.index,
            self.table_index,
            self.repair,
            self.wakeups,
            self._coordinator,
        )
        locks = RowLocks(self.rows, self.messages, self.clock)
        parts = Parts(
            self.id,
            self.rows,
            self.messages,
            self.index,
            self.meta,
            locks,
            self.wakeups,
            self.figures,
            self.clock,
        )
        self._putting = Putting(parts, self.work_off)
        self._upkeep = Upkeep(
            self.meta,
            self.index,
            self.table_index,
            self.repair,
            self.setting,
            self.figures,
            self.clock,
        )
        self.host = Host(
            self.tools,
            self.index,
            self.table_index,
            self.wakeups,
            self.listeners,
            self._upkeep,
            self._coordinator,
        )

    async def close(self) -> None:
        """End what runs, the session and what is this object's own; the pool stays open."""
        if hasattr(self, "host"):
            await self.host.end()
        if hasattr(self, "wakeups"):
            await self.wakeups.close()
        if hasattr(self, "host"):
            await self.host.leave()
        if self._coordinator is not None and self._own_coordinator:
            await self._coordinator.close()
        if hasattr(self, "rows"):
            with suppress(TableError):
                await self.table_index.flush()
            await self.rows.close()

    # Putting.

    async def put(
        self,
        row: bytes,
        put: Mapping[bytes, bytes | None] | None = None,
        payload: bytes = b"",
        *,
        data: bytes = b"",
        subscriptions: Collection[str] | None = None,
    ) -> Message | None:
        """Change a row and put a message about it, in one atomic step.

        Args:
            row: the row's key.
            put: the change: values by ``family:qualifier``. None for a value: the column goes (not by Thrift-1).
            payload: what the message says; it lies in the row.
            data: something small that lies in the index, too.
            subscriptions: of these alone; None: of all whose filter takes the message.

        Returns:
            The message; None if no subscription takes it: then only the row was changed.

        Raises:
            NotFound, BadRequest, BodyTooLarge: it can't be put.
            MessagesOpen, RowLocked, Unavailable: nothing was written; it may be put again.
            OutcomeUnknown: the row may have been changed, or may be yet.
        """
        return await self._putting.put(Put(row, put or {}, payload, data, subscriptions))

    async def put_many(self, puts: Sequence[Put]) -> list[Message | Exception | None]:
        """Put many messages with few calls; of each the message, or why it was not put.

        Each row changes in one step; all together do not. Messages of one row are put in their order.
        """
        return await asyncio.gather(
            *(self._putting.put(each) for each in puts), return_exceptions=True
        )  # type: ignore[return-value]  # No cancellation is gathered here.

    # Looking.

    async def open_messages(self, row: bytes, *subscriptions: str) -> list[Message]:
        """Return a row's messages that are open for any of these subscriptions; none named: for any."""
        found = await self.messages.open(row)
        return [
            await self._attempts.message(row, each)
            for each in found
            if any(
                part.standing is Standing.OPEN and (not subscriptions or name in subscriptions)
                for name, part in each.state.parts.items()
            )
        ]

    async def is_done(self, message: Message, subscription: str) -> bool:
        """Whether a message is done for a subscription; one that it was not put for counts as done."""
        found = await self.messages.one(message.row, message.id)
        part = None if found is None else found.state.parts.get(subscription)
        return part is None or part.standing is Standing.DONE

    # Working off, by the caller.

    async def process(self, message: Message) -> bool:
        """Call the listeners of a message in their order, and return whether it is done for all.

        Messages of the row that come before it are worked off first. A subscription without a listener in this
        process stays open, and so does one whose listener fails.
        """
        return await self._working_off.process(message)

    async def work_off(self, row: bytes) -> None:
        """Work off all open messages of a row. Raises MessagesOpen: it says which stay open, and why."""
        await self._working_off.work_off(row)

    # Subscriptions.

    async def subscribe(
        self, subscription: Subscription, *, since: Literal["now", "open"] = "now"
    ) -> None:
        """Add a subscription, or change the one of its id.

        Args:
            subscription: what it is.
            since: "now": it gets messages that are put from now on. "open": also those that are open for any
                other subscription.
        """
        await self.setting.subscribe(subscription, since=since)

    async def unsubscribe(self, name: str) -> int:
        """Remove a subscription, and its messages; return how many waited for it. Raises NotFound."""
        return await self.setting.unsubscribe(name)

    async def pause(self, name: str, *, paused: bool = True) -> None:
        """Process a subscription's messages no more, or again; they are put all the same. Raises NotFound."""
        await self.setting.pause(name, paused=paused)

    async def change_settings(self, **changes: Any) -> Settings:
        """Change settings by name; return all of them. Raises BadRequest."""
        return await self.setting.change_settings(**changes)

    async def reshard(self, shards: int) -> None:
        """Have another number of shards: new entries go by it, old ones are read until they are gone."""
        await self.setting.reshard(shards)

    # Processing.

    def listen(self, subscription: str, listener: Listener) -> None:
        """Have a local listener for a subscription: an async function of a message."""
        self.listeners.add(subscription, listener)

    async def serve_listeners(
        self, host: str = "127.0.0.1", port: int = 0, *, url: str = ""
    ) -> str:
        """Let processors on other nodes offer messages to this process's listeners; return the URL.

        Args:
            host: where to listen.
            port: 0 takes a free one.
            url: under which other nodes reach it; empty: as it listens.

        Raises:
            OSError: the address can't be had.
            Unavailable: there is no coordinator, or it can't be asked.
        """
        return await self.host.serve(host, port, url)

    async def start(self, *, remote: bool = False) -> None:
        """Be a candidate for processing, until the context is left.

        ``remote``: offer messages to the listeners of other nodes, too (``serve_listeners``).
        """
        await self.host.start(remote=remote)

    # Dead letters.

    async def dead(self, subscription: str, limit: int = LISTED_MAX) -> list[DeadLetter]:
        """Return the oldest dead letters of a subscription."""
        return await self._letters.listed(subscription, limit)

    async def revive(self, letter: DeadLetter) -> None:
        """Open a dead message again. It comes after what its row has passed meanwhile. Raises NotFound."""
        await self._letters.revive(letter)

    async def drop(self, letter: DeadLetter) -> None:
        """Give a dead message up: it counts as done. Raises NotFound."""
        await self._letters.drop(letter)

    # Repair and figures.

    async def verify(self, *, mend: bool = False) -> Report:
        """Go through all rows and the whole index; say what is wrong, and mend it if asked to."""
        report = Report()
        await self.repair.sweep(report, mend=mend)
        await self.repair.entries(report, mend=mend)
        return report

    async def depth(self, subscription: str, limit: int = COUNTED_MAX) -> tuple[int, float]:
        """Return how many messages are open, counted up to a limit, and the age of the oldest, seconds."""
        return await self._upkeep.depth(subscription, limit)

"""RowLog, the class that applications use: it wires the parts of a rowlog, and passes calls on to them."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from broker import logs
from broker.clock import Clock, SystemClock
from broker.coordination.ports import Coordinator
from broker.errors import BadRequest, NotFound, OutcomeUnknown, Unavailable
from broker.rowlog.attempt import Attempts, Tools
from broker.rowlog.cell_keys import INDEX_FAMILY, TABLE_PREFIX, Columns, check_id
from broker.rowlog.counters import Figures
from broker.rowlog.doors import rows_maker
from broker.rowlog.entries import Entries
from broker.rowlog.execution_state import Standing
from broker.rowlog.host import Host
from broker.rowlog.index import Index
from broker.rowlog.letters import LISTED_MAX, DeadLetter, DeadLetters
from broker.rowlog.listeners import Listener, LocalListeners
from broker.rowlog.meta import Meta
from broker.rowlog.puts import Parts, Put, Putting
from broker.rowlog.repair import Repair, Report
from broker.rowlog.row_locks import RowLocks
from broker.rowlog.row_table import RowTable, TableError
from broker.rowlog.rows import Message, Rows
from broker.rowlog.setup import Settings, Setup, Subscription, changed_settings
from broker.rowlog.subscriptions import Subscribing
from broker.rowlog.upkeep import COUNTED_MAX, Upkeep
from broker.rowlog.wakeups import Wakeups
from broker.rowlog.workoff import WorkingOff

if TYPE_CHECKING:
    import happybase

log = logs.get_logger()

SESSION_TIMEOUT_MS: Final = 10_000
"""The time-out of a session with ZooKeeper. After a processor's death another takes over within this and a second."""


class RowLog:
    """A queue that is tied to rows of a table.

    Use it as an async context, in one event loop. ``put`` and ``process`` need HBase alone. ``start`` makes this
    process a candidate for processing; if several processes call it, they need ZooKeeper.
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
    ) -> None:
        """Use the rows of ``table``. The rowlog reads and makes nothing until its context is entered.

        Args:
            pool: the application's own pool, which stays open; None if ``synced`` or ``rows`` is given.
            table: the user's table.
            id: the rowlog's id; its index lies in the table ``rowlog-<id>``.
            family: the family of the messages in the user's table; the table must have it.
            log_byte: tells rowlogs in one family apart, 0 to 255. Lily has 3 for a WAL, 4 for an MQ.
            zookeeper: "host:port" of each server; empty: this process is the only one that processes.
            synced: write through the Thrift-2 gateways at ``thrift2``, each write on disk.
            thrift2: "host:port" of each Thrift-2 gateway.
            threads: how many calls to happybase run at once; give as many as the pool has connections.
            settings: the settings if this object makes the rowlog; later use ``change_settings``.
            shards: the number of shards if this object makes the rowlog; later use ``reshard``.
            session_timeout_ms: the time-out of the session with ZooKeeper.
            clock: a clock for tests.
            rows: the rows to use in place of HBase; they stay open.
            coordinator: the session to use in place of one with ``zookeeper``; it stays open.

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
            settings=changed_settings(Settings(), settings or {}),
        ).with_shards(shards)
        self.zookeeper = tuple(zookeeper)
        self._session_timeout_ms = session_timeout_ms
        self._coordinator = coordinator
        self._given_rows = rows
        if rows is None:
            self._make_rows = rows_maker(pool, tuple(thrift2), self.clock, threads, synced=synced)
        self._opened = AsyncExitStack()
        """Ends what ``open`` began."""

    # Opening and closing.

    async def __aenter__(self) -> Self:
        """Open the rowlog; make it if it is not there."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    async def open(self, *, make: bool = True) -> None:
        """Read the setup, and connect to ZooKeeper. After an error nothing is open, and it may be called again.

        Raises:
            NotFound: it is not there, and ``make`` is False.
            BadRequest: it belongs to another table, family or log byte.
            Unavailable: HBase or ZooKeeper does not answer.
        """
        async with AsyncExitStack() as opened:
            if self._given_rows is None:
                self.rows = self._make_rows()
                opened.push_async_callback(self.rows.close)
            else:
                self.rows = self._given_rows
            name = (TABLE_PREFIX + self.id).encode()
            self.meta = Meta(self.rows, name, self.clock)
            self.messages = Rows(self.rows, self._first.table.encode(), self._columns)
            self.index = Index(self.rows, name, self.meta.setup)
            opened.push_async_callback(self._flush)
            try:
                await self._check_setup(name, make=make)
                coordinator = await self._connected(opened)
            except TableError as error:
                raise Unavailable(f"The rowlog can't be opened: {error}.") from error
            self._wire(coordinator)
            for end in (self.host.leave, self.wakeups.close, self.host.end):
                opened.push_async_callback(end)
            self._opened = opened.pop_all()

    async def _check_setup(self, name: bytes, *, make: bool) -> None:
        if make:
            splits = [bytes([each.id]) for each in self._first.shards[1:]]
            if await self.rows.make_table(name, INDEX_FAMILY, splits):
                log.info("rowlog index table made", table=name.decode())
            with suppress(OutcomeUnknown):
                await self.meta.make(self._first)
        setup = await self.meta.find()
        wanted = (self._first.table, self._first.family, self._first.log_byte)
        if (setup.table, setup.family, setup.log_byte) != wanted:
            raise BadRequest(
                f"Rowlog '{self.id}' belongs to table {setup.table}, family {setup.family}, "
                f"log byte {setup.log_byte}."
            )

    async def _connected(self, opened: AsyncExitStack) -> Coordinator | None:
        """Return the session with the coordinator, if there is one; ``opened`` closes it if it is new."""
        coordinator = self._coordinator
        if coordinator is None and self.zookeeper:
            from broker.coordination.zookeeper import connect  # noqa: PLC0415 - It needs kazoo.

            coordinator = await connect(
                self.zookeeper,
                root=f"/rowlog/{self.id}",
                session_timeout_ms=self._session_timeout_ms,
                clock=self.clock,
            )
            opened.push_async_callback(coordinator.close)
        return coordinator

    def _wire(self, coordinator: Coordinator | None) -> None:
        """Make the parts that the methods below call."""
        self.wakeups = Wakeups(self.id, self.clock, coordinator)
        if coordinator is not None:
            coordinator.on_hint(self.wakeups.hint("setup"), self.meta.forget)
        chance = random.Random(secrets.randbits(64)).random  # noqa: S311 - Jitter is no secret.
        tools = Tools(self.id, self.messages, self.meta, self.clock, self.figures, chance)
        self._attempts = Attempts(tools)
        entries = Entries(self.meta, self.messages, self.index, self.wakeups.wake_for_all)
        self.repair = Repair(
            self.messages,
            self.index,
            self.meta,
            self.clock,
            self.figures,
            entries,
        )
        self._working_off = WorkingOff(
            self._attempts,
            self.messages,
            self.meta,
            entries,
            self.listeners,
        )
        self._letters = DeadLetters(self._attempts, self.messages, self.meta, self.index, entries)
        self._subscribing = Subscribing(
            self.id,
            self.messages,
            self.meta,
            entries,
            self.index,
            self.repair,
            self.wakeups,
            coordinator,
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
            self.repair,
            self._subscribing,
            self.figures,
            self.clock,
        )
        self.host = Host(
            tools,
            self.wakeups,
            self.listeners,
            self._upkeep,
            coordinator,
            entries,
        )

    async def close(self) -> None:
        """End the processing, the session and all else that ``open`` began; the pool stays open."""
        await self._opened.aclose()

    async def _flush(self) -> None:
        self.index.close()
        with suppress(TableError):
            await self.index.flush()

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
            put: the change: values by ``family:qualifier``; None deletes the column (not through Thrift-1).
            payload: the content of the message; it lies in the row.
            data: at most 64 KiB for filters; it lies in the row and in the index.
            subscriptions: the message is for these alone; None: for all whose filter takes it.

        Returns:
            The message; None if no subscription takes it: then only the row was changed.

        Raises:
            NotFound: a subscription is unknown.
            BadRequest, BodyTooLarge: the message or the change is not allowed.
            MessagesOpen, RowLocked, Unavailable: nothing was written, and the same call may succeed later.
            OutcomeUnknown: the row may have been changed, or may still change.
        """
        return await self._putting.put(Put(row, put or {}, payload, data, subscriptions))

    async def put_many(self, puts: Sequence[Put]) -> list[Message | Exception | None]:
        """Put many messages with few calls. Return the result of each: as ``put`` returns it, or its error.

        Each row changes in one step; all together do not. Messages of one row are put in their order.
        """
        return await asyncio.gather(
            *(self._putting.put(each) for each in puts), return_exceptions=True
        )  # type: ignore[return-value]  # No cancellation is gathered here.

    # Reading.

    async def open_messages(self, row: bytes, *subscriptions: str) -> list[Message]:
        """Return a row's messages that are open for any of these subscriptions; without names: for any at all."""
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
        """Return whether a message is done for a subscription. It is for one that it was not put for."""
        found = await self.messages.one(message.row, message.id)
        part = None if found is None else found.state.parts.get(subscription)
        return part is None or part.standing is Standing.DONE

    # Working off by the caller.

    async def process(self, message: Message) -> bool:
        """Call the listeners of a message in their order, and return whether it is done for all.

        Messages of the row that come before it are worked off first. A subscription without a listener in this
        process stays open, and so does one whose listener fails.
        """
        return await self._working_off.process(message)

    async def work_off(self, row: bytes) -> None:
        """Call the listeners for all open messages of a row. Raises MessagesOpen: some stay open; its text says why."""
        await self._working_off.work_off(row)

    # Subscriptions.

    async def subscribe(
        self, subscription: Subscription, *, since: Literal["now", "open"] = "now"
    ) -> None:
        """Add a subscription, or change the one of its id; return when every writer knows it.

        Args:
            subscription: the subscription.
            since: "now": it gets messages that are put from now on. "open": it also gets messages that are not
                finished, and were not put for it.

        Raises:
            BadName, BadRequest: it can't be as it is given.
            TableError, Unavailable, OutcomeUnknown: the table does not answer. The change may have been made in part,
                and the same call may be repeated.
        """
        await self._subscribing.subscribe(subscription, since=since)

    async def unsubscribe(self, name: str) -> int:
        """Remove a subscription and its messages; return how many were not done for it. Raises NotFound."""
        return await self._subscribing.unsubscribe(name)

    async def pause(self, name: str, *, paused: bool = True) -> None:
        """Stop or resume the processing of a subscription. Puts go on. Raises NotFound."""
        await self._subscribing.pause(name, paused=paused)

    async def change_settings(self, **changes: Any) -> Settings:
        """Change settings by name; return all of them. Raises BadRequest."""
        return await self._subscribing.change_settings(**changes)

    async def reshard(self, shards: int) -> None:
        """Change the number of shards. New entries use it; old shards are read until they are empty."""
        await self._subscribing.reshard(shards)

    # Processing.

    def listen(self, subscription: str, listener: Listener) -> None:
        """Call an async function of this process for each message of a subscription, in place of an earlier one."""
        self.listeners.add(subscription, listener)

    async def serve_listeners(
        self, host: str = "127.0.0.1", port: int = 0, *, url: str = ""
    ) -> str:
        """Let processors on other nodes offer messages to this process's listeners; return the URL.

        Call it before ``start``, and once. After an error nothing is served, and it may be called again.

        Args:
            host: the address to listen on.
            port: the port; 0: a free one.
            url: the URL under which other nodes reach this one; empty: made from host and port. Give it if the host is
                not one that other nodes can connect to, such as ``0.0.0.0``.

        Raises:
            BadRequest: this process is already a member of the rowlog's nodes, or ``url`` is missing or can't be read.
            OSError: the address can't be had.
            Unavailable: there is no coordinator, or it does not answer.
        """
        return await self.host.serve(host, port, url)

    async def start(self, *, remote: bool = False) -> None:
        """Be a candidate for processing, until this object is closed.

        ``remote``: offer messages to the listeners of other nodes, too (``serve_listeners``).

        Raises:
            BadRequest: it was started before.
            Unavailable: the coordinator does not answer. This call began nothing; the caller may repeat it.
        """
        await self.host.start(remote=remote)

    # Dead letters.

    async def dead(
        self, subscription: str, limit: int = LISTED_MAX, after: DeadLetter | None = None
    ) -> list[DeadLetter]:
        """Return the oldest dead letters of a subscription, ``limit`` at most; ``after``: only those behind it."""
        return await self._letters.listed(subscription, limit, after)

    async def revive(self, letter: DeadLetter) -> None:
        """Open a dead message again. Later messages of its row may have been processed before it.

        Raises NotFound: it is not dead any more. BadRequest: it is held; revive the earlier subscription's letter.
        """
        await self._letters.revive(letter)

    async def drop(self, letter: DeadLetter) -> None:
        """Drop a dead message: it counts as done. Raises NotFound, BadRequest, as ``revive`` does."""
        await self._letters.drop(letter)

    async def settled(
        self,
        subscription: str,
        places: Sequence[str] | None,
        settle: Callable[[DeadLetter], Awaitable[None]],
    ) -> AsyncIterator[DeadLetter]:
        """Revive or drop dead letters by ``settle``, and yield each: those at the places (``row:seq``), or all.

        Of all, those that are held, or that another process has finished meanwhile, are passed over.
        Raises NotFound: one at the places is missing, and none is settled.
        """
        async for letter in self._letters.chosen(subscription, places):
            with suppress(*(() if places is not None else (BadRequest, NotFound))):
                await settle(letter)
                yield letter

    # Repair and figures.

    async def verify(self, *, mend: bool = False) -> Report:
        """Compare all rows with the whole index. Return what was found; ``mend`` also repairs it."""
        report = Report()
        await self.repair.sweep(report, mend=mend)
        await self.repair.entries(report, mend=mend)
        return report

    async def depth(self, subscription: str, limit: int = COUNTED_MAX) -> tuple[int, float]:
        """Return how many messages are open, counted up to ``limit``, and the age of the oldest, seconds."""
        return await self._upkeep.depth(subscription, limit)

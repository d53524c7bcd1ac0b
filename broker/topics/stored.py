"""Payload logs under one leader: storing, publishing the reference, dropping.

**Publishing a reference** makes a transaction's stored payloads part of the topic, in three steps::

    open ──seal──▶ sealed(at) ──append the reference──▶ (committed) ──▶ published(row id), lazily

The seal comes first, so that whoever sees the reference sees a log to which nothing is added. A second
publish of the same number finds *published* and answers as the first; it finds *sealed* after a crash
between, and looks in the topic behind ``at`` for the reference before it appends one. That search must
find what is there, so the sweeper sets the mark before it removes what a search would look at.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from broker import guards
from broker.errors import BrokerError, Fenced, OutcomeUnknown, PayloadsSealed, TransactionTooOld
from broker.model import PublishRequest, RowId
from broker.storage.control import Control, State
from broker.storage.ports import Batch, Hold
from broker.topics.keyed import KeyedLog, request_hash
from broker.topics.settings import Published, PublishOptions
from broker.storage.shared import SharedRead
from broker.topics.surroundings import Surroundings
from broker.topics.writer import KeyMark, LogWriter, Write, ends_hold, fail

Result = TypeVar("Result")


class StoredPayloads:
    """The payload logs of one topic while one hold lasts. ``ended`` is told when the hold is done."""

    def __init__(
        self,
        around: Surroundings,
        messages: KeyedLog,
        ended: Callable[[BrokerError], None],
    ) -> None:
        """Lead the payload logs of the topic whose message log ``messages`` writes to."""
        self._around = around
        self._messages = messages
        self._hold = messages.writer.hold
        self._ended = ended
        self._logs: OrderedDict[int, KeyedLog] = OrderedDict()
        self._users: Counter[int] = Counter()
        self._references: dict[int, asyncio.Task[Published]] = {}
        self._marking: set[asyncio.Task[None]] = set()
        self._read_control = SharedRead(lambda: around.store.head(self._hold.log))

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(
            self._references or self._marking or any(log.busy for log in self._logs.values())
        )

    # Publishing references.

    async def publish_reference(
        self, number: int, lifetime_ms: int | None, key: KeyMark | None = None
    ) -> Published:
        """Make a transaction's stored payloads part of the topic; repeated, answer as before.

        Raises:
            TransactionTooOld: the payloads were dropped already.
        """
        task = self._references.get(number)
        if task is None:
            task = asyncio.ensure_future(self._publish_reference(number, lifetime_ms, key))
            self._references[number] = task
            task.add_done_callback(lambda done: self._reference_done(number, done))
        return await asyncio.shield(task)

    def _reference_done(self, number: int, done: asyncio.Task[Published]) -> None:
        del self._references[number]
        if not done.cancelled():
            done.exception()  # Looked at here, since its callers may all be gone.

    async def _publish_reference(
        self, number: int, lifetime_ms: int | None, key: KeyMark | None
    ) -> Published:
        async with self._opened(number) as payloads:
            hold = payloads.writer.hold
            await payloads.writer.idle()
            before = await self._sealed_before(hold, number)
            if before is not None:
                return before
            future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            write = Write(future, None, number, lifetime_ms=lifetime_ms, key=key)
            published = await self._messages.write(write)
            self._mark_later(hold, published.first)
            return published

    async def _sealed_before(self, hold: Hold, number: int) -> Published | None:
        """Seal a payload log; return the answer if its reference was published before.

        What was known of the log may be old, so what decides is its control row as the seal left it.
        """
        control = hold.control
        if control.state is State.OPEN:
            if not guards.holds("seal-first"):
                return None
            at = self._hold.control.pointer
            await self._guarded(self._around.store.seal(hold, at))
            control = hold.control
            if control.state is State.SEALED and control.sealed_at == at:
                return None
        if control.state is State.PUBLISHED:
            return Published(control.published, control.published, number, replayed=True)
        if control.state is State.DROPPED:
            raise TransactionTooOld(f"The payloads of transaction {number} have expired.")
        found = await self._find_reference(number, control.sealed_at)
        if found is None:
            return None
        self._mark_later(hold, found)
        return Published(found, found, number, replayed=True)

    async def _find_reference(self, number: int, at: RowId) -> RowId | None:
        """Look behind ``at`` for a reference that a crash left without its mark."""
        after, through = at, self._hold.control.pointer
        while True:
            page = await self._around.store.scan(
                self._hold.log,
                after,
                through,
                rows_max=self._around.settings.page_rows_max,
                bytes_max=self._around.settings.page_bytes_max,
            )
            for row in page.rows:
                if row.payload_log == number:
                    return row.id
            if not page.more:
                return None
            after = page.seen

    def _mark_later(self, hold: Hold, reference: RowId) -> None:
        # The mark only saves a search: without it a publish finds the reference by looking.
        if not guards.holds("seal-first"):
            return
        task = asyncio.ensure_future(self._mark(hold, reference))
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    async def _mark(self, hold: Hold, reference: RowId) -> None:
        try:
            await self._around.store.mark_published(hold, reference)
        except BrokerError as error:
            self._ended(error)

    async def mark_published(self, number: int) -> None:
        """Set the mark that a crash may have left out, if the reference is there."""
        async with self._opened(number) as payloads:
            hold = payloads.writer.hold
            if hold.control.state is not State.SEALED or number in self._references:
                return
            found = await self._find_reference(number, hold.control.sealed_at)
            if found is not None:
                await self._guarded(self._around.store.mark_published(hold, found))

    # Storing.

    async def store(self, request: PublishRequest, options: PublishOptions) -> Published:
        """Store payloads of a transaction, to be published by a reference later.

        Raises:
            PayloadsSealed: the reference was published.
            TransactionTooOld: the payloads were dropped already.
        """
        assert request.pointer is not None
        number = request.pointer
        async with self._opened(number) as payloads:
            if options.key is None:
                return await self._store(payloads, number, request, options, None)
            return await payloads.once(
                options,
                request_hash(request, options),
                number,
                lambda mark: self._store(payloads, number, request, options, mark),
            )

    async def _store(
        self,
        payloads: KeyedLog,
        number: int,
        request: PublishRequest,
        options: PublishOptions,
        key: KeyMark | None,
    ) -> Published:
        while (reference := self._references.get(number)) is not None:
            # Whether it seals the log is known when it is done.
            await asyncio.wait((reference,))
        _check_open(number, payloads.writer.hold.control.state)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        lifetime_ms = None if options.ttl_s is None else options.ttl_s * 1000
        write = Write(
            future, request.payloads, lifetime_ms=lifetime_ms, key=key, deadline=options.deadline
        )
        return (await payloads.write(write))._replace(pointer=number)

    @asynccontextmanager
    async def _opened(self, number: int) -> AsyncIterator[KeyedLog]:
        """Give a payload log, which is not forgotten while it is in use.

        Raises:
            Fenced: another leads the topic.
        """
        self._users[number] += 1
        try:
            yield await self._open(number)
        finally:
            self._users[number] -= 1
            if not self._users[number]:
                del self._users[number]

    async def _open(self, number: int) -> KeyedLog:
        known = self._logs.get(number)
        if known is not None:
            self._logs.move_to_end(number)
            return known
        hold = await self._guarded(self._around.store.open_payloads(self._hold, number))
        again = self._logs.get(number)
        if again is not None:
            return again
        if self._messages.writer.closed:
            raise Fenced(f"Nobody leads topic '{self._hold.log.topic}' just now.")
        writer = LogWriter(
            self._around,
            hold,
            committed=_nothing,
            lost=lambda _, error: self._ended(error),
            confirm=self._confirm,
        )
        opened = self._logs[number] = KeyedLog(self._around, writer)
        self._forget_idle()
        return opened

    def _forget_idle(self) -> None:
        surplus = len(self._logs) - self._around.settings.payload_logs_open_max
        for number in list(self._logs)[: max(surplus, 0)]:
            if number not in self._users and not self._logs[number].busy:
                del self._logs[number]

    async def _confirm(self) -> None:
        """Make sure, by a look at the control row begun after the call, that this leader leads yet."""
        seen = await self._read_control()
        if (
            seen is None
            or seen.epoch != self._hold.epoch
            or seen.generation != self._hold.log.generation
            or seen.state is State.DELETED
        ):
            raise OutcomeUnknown("The topic changed hands while the payloads were stored.")

    # Dropping, and ends.

    async def drop(self, number: int, may_drop: Callable[[Control], bool]) -> bool:
        """Declare that a payload log's rows may go; False if that may not be, looked at now."""
        async with self._opened(number) as payloads:
            hold = payloads.writer.hold
            if payloads.busy or number in self._references or not may_drop(hold.control):
                return False
            await self._guarded(self._around.store.drop(hold))
            return True

    async def forget(self, number: int) -> None:
        """Remove the control row of a dropped payload log whose rows are gone."""
        known = self._logs.get(number)
        if number in self._users or (known is not None and known.busy):
            return
        self._logs.pop(number, None)
        await self._guarded(self._around.store.forget_payloads(self._hold, number))

    async def _guarded(self, change: Awaitable[Result]) -> Result:
        try:
            return await change
        except BrokerError as error:
            if ends_hold(error, self._hold):
                self._ended(error)
            raise

    def close(self, error: BrokerError) -> None:
        """Stop: the topic's hold is done."""
        for log in list(self._logs.values()):
            log.writer.close(error)

    async def quiet(self) -> None:
        """Wait, after the end, until everything that was sent has its outcome."""
        for log in list(self._logs.values()):
            await log.writer.idle()

    async def settled(self) -> None:
        """Wait until nothing is under way; give what certainly was not stored back to its callers."""
        for log in list(self._logs.values()):
            fail(await log.writer.settled(), Fenced("Not stored: the topic changed hands."))

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while self.busy:
            for log in list(self._logs.values()):
                await log.idle()
            tasks = {*self._references.values(), *self._marking}
            if tasks:
                await asyncio.wait(tasks)


def _check_open(number: int, state: State) -> None:
    if state is State.DROPPED:
        raise TransactionTooOld(f"The payloads of transaction {number} have expired.")
    if state is not State.OPEN:
        raise PayloadsSealed(
            f"The payloads of transaction {number} were published: nothing can be added. "
            "Store before you publish, or publish the rest as messages of the transaction."
        )


def _nothing(_: Batch) -> None:
    """Payload logs have no cache."""

"""Payload logs under one leader: storing, publishing the reference, dropping.

**Publishing a reference** makes a transaction's stored payloads part of the topic, in three steps::

    open ──seal──▶ sealed(at) ──append the reference──▶ (committed) ──▶ published(row id), lazily

The log is closed first, so that a reader of the reference sees a log to which nothing is added. A second
publish of the same number finds *published* and answers as the first; it finds *sealed* after a crash
between, and looks in the topic behind ``at`` for the reference before it appends one.

A payload log whose change has an unknown outcome is claimed again, under the same epoch: what was sent
expects a head that is no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

from broker.errors import (
    BrokerError,
    Fenced,
    OutcomeUnknown,
    Overloaded,
    PayloadsSealed,
    TransactionTooOld,
    Unavailable,
)
from broker.model import PublishRequest, RowId, row_after
from broker.storage.payloads import LogClosed, Sealed
from broker.storage.root import Root, RootState
from broker.topics.batches import IDEMPOTENCY, Batch
from broker.topics.dedupe import Answer, check_same_body, key_hash
from broker.topics.keyed import KeyedLog, request_hash
from broker.topics.settings import Published, PublishOptions
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
        self._closed = False
        self._opening: dict[int, asyncio.Task[KeyedLog]] = {}
        self._references: dict[int, asyncio.Task[Published]] = {}
        self._marking: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(
            self._references
            or self._opening
            or self._marking
            or any(log.busy for log in self._logs.values())
        )

    # Publishing references.

    async def publish_reference(
        self,
        number: int,
        lifetime_ms: int | None,
        key: KeyMark | None = None,
        *,
        deadline: float | None = None,
    ) -> Published:
        """Make a transaction's stored payloads part of the topic; repeated, answer as before.

        ``deadline``: monotonic seconds after which the reference is not appended any more.

        Raises:
            TransactionTooOld: the payloads were dropped already.
            Overloaded: the deadline passed before.
        """
        task = self._references.get(number)
        if task is None:
            work = self._publish_reference(number, lifetime_ms, key, deadline)
            task = asyncio.ensure_future(work)
            self._references[number] = task
            task.add_done_callback(lambda done: self._reference_done(number, done))
        return await asyncio.shield(task)

    def _reference_done(self, number: int, done: asyncio.Task[Published]) -> None:
        del self._references[number]
        if not done.cancelled():
            done.exception()  # Looked at here, since its callers may all be gone.

    async def _publish_reference(
        self, number: int, lifetime_ms: int | None, key: KeyMark | None, deadline: float | None
    ) -> Published:
        known = self._logs.pop(number, None)
        if known is not None:
            # What is being written comes to its end. A store that comes now, or still looks for its key,
            # opens the log anew, and waits for this.
            await known.writer.idle()
            known.writer.retire()
        if deadline is not None and deadline <= self._around.clock.monotonic():
            raise Overloaded("The deadline passed in the queue.")
        sealed = await self._guarded(self._around.payload_logs.seal(self._hold, number))
        before = await self._published_before(number, sealed)
        if before is not None:
            return before
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        write = Write(
            future, None, number, number=number, lifetime_ms=lifetime_ms, key=key, deadline=deadline
        )
        write.messages = sealed.tail.total if sealed.tail is not None else 0
        published = await self._messages.write(write)
        self._mark_later(number, published.first)
        return published

    async def _published_before(self, number: int, sealed: Sealed) -> Published | None:
        """Return the answer if the reference of a closed payload log was published before."""
        root = sealed.root
        if sealed.was_open:
            return None
        if root.state is RootState.PUBLISHED:
            return Published(root.reference, root.reference, number, replayed=True)
        if root.state is RootState.DROPPED:
            raise TransactionTooOld(f"The payloads of transaction {number} have expired.")
        found = await self._find_reference(number, root.at)
        if found is None:
            return None
        self._mark_later(number, found)
        return Published(found, found, number, replayed=True)

    async def _find_reference(self, number: int, at: RowId) -> RowId | None:
        """Look behind ``at`` for a reference that a crash left without its note in the root.

        Raises:
            OutcomeUnknown: it may have expired meanwhile, so that it can't be known any more.
        """
        hold = self._hold
        through = hold.pointer
        if hold.root.floor > row_after(at):
            raise OutcomeUnknown("Whether the payloads were published before can't be known.")
        for page, head in await hold.chain(row_after(at), through):
            reader = self._around.logs.reader(hold.log, at, through)
            for entry in await reader.page_entries(page, head):
                if entry.is_reference and entry.number == number:
                    return entry.first
        return None

    def _mark_later(self, number: int, reference: RowId) -> None:
        # The note only saves a search: without it a publish finds the reference by looking.
        task = asyncio.ensure_future(self._mark(number, reference))
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    async def _mark(self, number: int, reference: RowId) -> None:
        try:
            await self._around.payload_logs.mark_published(self._hold, number, reference)
        except BrokerError:
            self._around.metrics.happened("reference_note_failed")

    # Storing.

    async def store(self, request: PublishRequest, options: PublishOptions) -> Published:
        """Store payloads of a transaction, to be published by a reference later.

        Raises:
            PayloadsSealed: the reference was published.
            TransactionTooOld: the payloads were dropped already.
        """
        assert request.pointer is not None
        number = request.pointer
        while True:
            try:
                async with self._opened(number) as payloads:
                    return await self._store_into(payloads, number, request, options)
            except _Retired:
                continue
            except PayloadsSealed:
                before = await self._stored_before(number, request, options)
                if before is None:
                    raise
                return before

    async def _stored_before(
        self, number: int, request: PublishRequest, options: PublishOptions
    ) -> Published | None:
        """Return the answer that a key's store had before its payloads were published."""
        log = self._hold.log._replace(number=number)
        root = await self._around.payload_logs.root(log)
        if options.key is None or root is None:
            return None
        find = self._around.payload_logs.find_mark
        mark = await find(log, root, IDEMPOTENCY, key_hash(options.key))
        if mark is None:
            return None
        check_same_body(Answer(mark.first, mark.last, mark.body), request_hash(request, options))
        return Published(mark.first, mark.last, number, replayed=True)

    async def _store_into(
        self, payloads: KeyedLog, number: int, request: PublishRequest, options: PublishOptions
    ) -> Published:
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
            await asyncio.wait((reference,))
        if payloads.writer.closed and not self._closed:
            raise _Retired
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
        while (reference := self._references.get(number)) is not None:
            # Whether it closes the log is known when it is done.
            await asyncio.wait((reference,))
        known = self._logs.get(number)
        if known is not None and not known.writer.closed:
            self._logs.move_to_end(number)
            return known
        opening = self._opening.get(number)
        if opening is None:
            opening = asyncio.ensure_future(self._open_anew(number))
            self._opening[number] = opening
            opening.add_done_callback(lambda done: self._opened_anew(number, done))
        return await asyncio.shield(opening)

    def _opened_anew(self, number: int, done: asyncio.Task[KeyedLog]) -> None:
        del self._opening[number]
        if not done.cancelled():
            done.exception()  # Looked at here, since its callers may all be gone.

    async def _open_anew(self, number: int) -> KeyedLog:
        try:
            hold = await self._guarded(self._around.payload_logs.open(self._hold, number))
        except LogClosed as closed:
            _refuse_closed(number, closed.root)
        if self._messages.writer.closed:
            raise Fenced(f"Nobody leads topic '{self._hold.log.topic}' just now.")
        writer = LogWriter(
            self._around,
            hold,
            committed=_nothing,
            lost=lambda lost, error: self._lost(number, lost, error),
            confirm=self._confirm,
        )
        opened = self._logs[number] = KeyedLog(self._around, writer)
        self._forget_idle()
        return opened

    def _lost(self, number: int, writer: LogWriter, error: BrokerError) -> None:
        """Forget a log whose hold is done; the next store claims it again."""
        if self._closed:
            return
        known = self._logs.get(number)
        if known is not None and known.writer is writer:
            del self._logs[number]
        task = asyncio.ensure_future(_give_back(writer, error))
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    def _forget_idle(self) -> None:
        surplus = len(self._logs) - self._around.settings.payload_logs_open_max
        for number in list(self._logs)[: max(surplus, 0)]:
            if number not in self._users and not self._logs[number].busy:
                del self._logs[number]

    async def _confirm(self) -> None:
        """Make sure, by a reading begun after the call, that this leader leads yet."""
        if not await self._hold.proof():
            raise OutcomeUnknown("The topic changed hands while the payloads were stored.")

    # Dropping, and ends.

    async def drop(self, number: int, may_drop: Callable[[Root], bool]) -> bool:
        """Declare that a payload log's pages may go; False if that may not be, looked at now."""
        known = self._logs.get(number)
        if number in self._references or (known is not None and known.busy):
            return False
        log = self._hold.log._replace(number=number)
        root = await self._around.payload_logs.root(log)
        if root is None or not may_drop(root):
            return False
        if known is not None:
            del self._logs[number]
            known.writer.retire()
        now_ms = self._around.clock.now_ms()
        await self._guarded(self._around.payload_logs.drop(self._hold, number, now_ms))
        return True

    async def forget(self, number: int) -> None:
        """Remove what is left of a payload log that was dropped a margin ago."""
        if number not in self._logs and number not in self._opening:
            await self._around.payload_logs.forget(self._hold.log._replace(number=number))

    async def _guarded(self, change: Awaitable[Result]) -> Result:
        try:
            return await change
        except BrokerError as error:
            if ends_hold(error, self._hold):
                self._ended(error)
            raise

    def close(self, error: BrokerError) -> None:
        """Stop: the topic's hold is done."""
        self._closed = True
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
            tasks = {*self._references.values(), *self._opening.values(), *self._marking}
            if tasks:
                await asyncio.wait(tasks)


class _Retired(Exception):
    """The writer of a payload log was retired meanwhile: its log is opened anew, or closed."""


async def _give_back(writer: LogWriter, error: BrokerError) -> None:
    """Answer what a writer certainly did not store."""
    again = Fenced if isinstance(error, Fenced) else Unavailable
    fail(await writer.settled(), again("Not stored: the payload log is being claimed again."))


def _refuse_closed(number: int, root: Root) -> NoReturn:
    if root.state is RootState.DROPPED:
        raise TransactionTooOld(f"The payloads of transaction {number} have expired.")
    raise PayloadsSealed(
        f"The payloads of transaction {number} were published: nothing can be added. "
        "Store before you publish, or publish the rest as messages of the transaction."
    )


def _nothing(_: Batch) -> None:
    """Payload logs have no cache."""

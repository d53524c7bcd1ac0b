"""Store into the payload logs of one leader, and drop them. References make them part of the topic (references.py).

A transaction's payload log begins with its first store. A stage begins on request, because the leader gives its
number: a stage without a log was never begun, or was swept.

If a change of a payload log has an unknown outcome, the leader claims the log again, under the same epoch. Then the
write in flight fails, because it expects a head that exists no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import TypeVar

from broker.errors import (
    BrokerError,
    Fenced,
    OutcomeUnknown,
    PayloadsSealed,
    StorageFull,
    Unavailable,
)
from broker.long_work import soon
from broker.model import LOG_KEY_MIN, PublishRequest
from broker.shield import begin, result_of
from broker.storage.marks import IDEMPOTENCY
from broker.storage.payloads import LogClosed
from broker.storage.root import Root
from broker.topics import stages
from broker.topics.batches import Batch
from broker.topics.dedupe import check_same_request, key_hash
from broker.topics.keyed_log import KeyedLog, request_hash
from broker.topics.overdue import in_time
from broker.topics.references import References, closed, too_old
from broker.topics.settings import PublishedIds, PublishOptions, lifetimes_of
from broker.topics.surroundings import Surroundings
from broker.topics.write import KeyMark, Write, fail
from broker.topics.writer import LogWriter, ends_hold

Result = TypeVar("Result")


class StoredPayloads:
    """The payload logs of one topic while one hold lasts. It calls ``ended`` when the hold is done."""

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
        self._logs: dict[int, KeyedLog] = {}
        self._retiring: set[KeyedLog] = set()
        """Logs that a publish closes. Their writers may still have requests; so ``settled`` answers these, too."""
        self._users: Counter[int] = Counter()
        self._closed = False
        self._opening: dict[int, asyncio.Task[KeyedLog]] = {}
        self.references = References(
            around, messages, retire=self._retire, guarded=self._first_change
        )
        self._window = around.mark_window(LOG_KEY_MIN)
        """Of keys of stores: the topic's last id says nothing of the ids in payload logs."""
        self._stage_numbers = stages.StageNumbers()
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Return whether any work is in progress."""
        return bool(
            self.references.busy
            or self._opening
            or self._answering
            or any(log.busy for log in self._logs.values())
        )

    async def _retire(self, number: int) -> None:
        """Wait until the writes to a payload log are done, and accept no more.

        A store that comes now, or still looks up its key, opens the log again, and waits for the reference.
        """
        known = self._pop(number)
        if known is not None:
            self._retiring.add(known)
            await known.writer.idle()
            known.writer.retire()
            known.forget()
            if not self._closed:
                self._retiring.discard(known)

    # Storing.

    async def store(self, request: PublishRequest, options: PublishOptions) -> PublishedIds:
        """Store payloads for a transaction or in a stage; a reference publishes them later.

        Raises:
            PayloadsSealed: the reference was published, or the stage was swept.
            TransactionTooOld: the payloads were dropped already.
            AlreadyPublished: the same store was done before; its payloads were published, and rolled back.
            Unavailable: the deadline passed before the payload log was open.
        """
        number = request.stages[0] if request.stages else request.pointer
        assert number is not None
        while True:
            try:
                async with self._in_use(number, options.deadline) as payloads:
                    return await self._store_into(payloads, number, request, options)
            except _Retired:
                continue
            except PayloadsSealed:
                async with in_time(self._around.clock, options.deadline):
                    before = await self._stored_before(number, request, options)
                if before is None:
                    raise
                return before

    async def _stored_before(
        self, number: int, request: PublishRequest, options: PublishOptions
    ) -> PublishedIds | None:
        """Return the answer to a key's store that was done before its payloads were published, if any."""
        log = self._hold.log._replace(number=number)
        root = await self._around.payload_logs.root(log)
        if options.key is None or root is None:
            return None
        find = self._around.payload_logs.find_mark
        mark = await find(log, root, IDEMPOTENCY, key_hash(options.key))
        if mark is None or mark.first < self._window.passed():
            return None
        check_same_request(mark.body, await request_hash(request, options))
        await self.references.check_kept(number, root)
        count = len(request.payloads)
        return PublishedIds(mark.first, mark.last, number, replayed=True, messages=count)

    async def _store_into(
        self, payloads: KeyedLog, number: int, request: PublishRequest, options: PublishOptions
    ) -> PublishedIds:
        if options.key is None:
            return await self._store(payloads, number, request, options, None)
        return await payloads.once(
            options,
            await request_hash(request, options),
            number,
            lambda mark: self._store(payloads, number, request, options, mark),
            messages=len(request.payloads),
        )

    async def _store(
        self,
        payloads: KeyedLog,
        number: int,
        request: PublishRequest,
        options: PublishOptions,
        key: KeyMark | None,
    ) -> PublishedIds:
        async with in_time(self._around.clock, options.deadline):
            while (reference := self.references.of(number)) is not None:
                await asyncio.wait((reference,))
        if payloads.writer.closed and not self._closed:
            raise _Retired
        lives = lifetimes_of(request, options)
        write = Write(
            asyncio.get_running_loop().create_future(),
            request.payloads,
            attributes=request.attributes,
            lifetime_ms=lives.all_ms,
            lifetimes_ms=lives.each_ms,
            key=key,
            deadline=options.deadline,
            caller=options.caller,
        )
        return (await payloads.write(write))._replace(pointer=number)

    @asynccontextmanager
    async def _in_use(self, number: int, deadline: float | None) -> AsyncIterator[KeyedLog]:
        """Open a payload log, and keep it open during the block.

        Raises:
            Fenced: another node leads the topic.
        """
        self._users[number] += 1
        try:
            async with in_time(self._around.clock, deadline):
                opened = await self._open(number)
            yield opened
        finally:
            self._users[number] -= 1
            if not self._users[number]:
                del self._users[number]

    async def begin_stage(self, deadline: float | None) -> int:
        """Begin a stage on disk, and return its number.

        Raises:
            Fenced: another node leads the topic.
            Unavailable: the deadline passed. The stage may have begun; its number is not given again.
        """
        while True:
            number = self._stage_numbers.next(self._around.clock.now_ms())
            log = self._hold.log._replace(number=number)
            async with in_time(self._around.clock, deadline):
                if await self._around.payload_logs.root(log) is None:
                    await self._open(number, begins=True)
                    return number

    async def _open(self, number: int, *, begins: bool = False) -> KeyedLog:
        while (reference := self.references.of(number)) is not None:
            # The publish may close the log: wait for its outcome.
            await asyncio.wait((reference,))
        known = self._logs.get(number)
        if known is not None and not known.writer.closed:
            self._use(number, known)
            return known
        if number not in self._opening:
            claim = self._claim_log(number, begins=begins)
            self._opening[number] = begin(claim, lambda: self._opening.pop(number))
        return await result_of(self._opening[number])

    async def _claim_log(self, number: int, *, begins: bool) -> KeyedLog:
        if number < 0 and not begins:
            log = self._hold.log._replace(number=number)
            if await self._around.payload_logs.root(log) is None:
                raise too_old(number)
        try:
            hold = await self._first_change(self._around.payload_logs.open(self._hold, number))
        except LogClosed as error:
            raise closed(number, error.root) from error
        if self._messages.writer.closed:
            raise Fenced(f"No node leads topic '{self._hold.log.topic}' just now.")
        writer = LogWriter(
            self._around,
            hold,
            committed=_ignore_batch,
            lost=lambda lost, error: self._forget_lost(number, lost, error),
            confirm=lambda: self._confirm(number),
        )
        opened = self._logs[number] = KeyedLog(self._around, writer)
        self._use(number, opened)
        return opened

    def _use(self, number: int, log: KeyedLog) -> None:
        self._around.open_logs.use(log, partial(self._forget_idle, number))

    def _pop(self, number: int) -> KeyedLog | None:
        known = self._logs.pop(number, None)
        if known is not None:
            self._around.open_logs.leave(known)
        return known

    def _forget_lost(self, number: int, writer: LogWriter, error: BrokerError) -> None:
        """Forget a log whose hold is done; the next store claims it again."""
        if self._closed:
            return
        known = self._logs.get(number)
        if known is not None and known.writer is writer:
            self._pop(number)
            known.forget()
        task = asyncio.ensure_future(_answer_unstored(writer, error))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _forget_idle(self, number: int) -> bool:
        """Close a payload log that no request uses; the next store opens it again. Return False if one does."""
        if number in self._users or self._logs[number].busy:
            return False
        known = self._pop(number)
        assert known is not None, "it is open"
        known.writer.retire()
        known.forget()
        return True

    async def _confirm(self, number: int) -> None:
        """Prove, with a read that begins after the call, that this leader still leads.

        Raises:
            Fenced: the topic was deleted meanwhile, so no reader ever sees the stored payloads.
            OutcomeUnknown: another node took the topic over.
        """
        if await self._hold.proof():
            return
        if await self._around.payload_logs.is_void(self._hold.log._replace(number=number)):
            raise Fenced(f"Topic '{self._hold.log.topic}' was deleted.")
        raise OutcomeUnknown("Another node took the topic over while the payloads were stored.")

    # Dropping, and ends.

    async def drop(self, number: int, may_drop: Callable[[Root], bool]) -> bool:
        """Declare that a payload log's pages may be removed. Return False if a fresh check forbids it."""
        if self._is_in_use(number):
            return False
        log = self._hold.log._replace(number=number)
        root = await self._around.payload_logs.root(log)
        if root is None or not may_drop(root) or self._is_in_use(number):
            return False
        known = self._pop(number)
        if known is not None:
            known.writer.retire()
            known.forget()
        now_ms = self._around.clock.now_ms()
        await self._guarded(self._around.payload_logs.drop(self._hold, number, now_ms))
        return True

    def _is_in_use(self, number: int) -> bool:
        known = self._logs.get(number)
        return (
            self.references.of(number) is not None
            or number in self._opening
            or (known is not None and known.busy)
        )

    async def forget(self, number: int) -> None:
        """Remove the remains of a payload log that was dropped a margin ago."""
        if number not in self._logs and number not in self._opening:
            await self._around.payload_logs.forget(self._hold.log._replace(number=number))

    async def _first_change(self, change: Awaitable[Result]) -> Result:
        """Make a request's first change. If its outcome is unknown, the request was certainly not done.

        Raises:
            Fenced: the next leader may do the request.
        """
        try:
            return await self._guarded(change)
        except OutcomeUnknown as error:
            raise Fenced(f"Not done: {error.message}") from error
        except StorageFull as error:
            raise StorageFull(error.message) from error

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
        for writer in self._writers():
            writer.close(error)
        for log in self._logs.values():
            self._around.open_logs.leave(log)
        soon(chain.from_iterable([log.forgetting() for log in self._logs.values()]))

    async def quiet(self) -> None:
        """Wait, after the end, until every write in flight has its outcome."""
        for writer in self._writers():
            await writer.idle()

    async def settled(self) -> None:
        """Wait until no work is in progress. Answer the stores that were certainly not done with Fenced."""
        for writer in self._writers():
            fail(await writer.settled(), Fenced("Not stored: another node leads the topic now."))

    def _writers(self) -> list[LogWriter]:
        return [log.writer for log in (*self._logs.values(), *self._retiring)]

    async def idle(self) -> None:
        """Wait until no work is in progress."""
        while self.busy:
            for log in list(self._logs.values()):
                await log.idle()
            tasks = {
                *self.references.tasks(),
                *self._opening.values(),
                *self._answering,
            }
            if tasks:
                await asyncio.wait(tasks)


class _Retired(Exception):
    """The writer of a payload log was retired meanwhile: its log must be opened again, or is closed."""


async def _answer_unstored(writer: LogWriter, error: BrokerError) -> None:
    """Answer the requests that a writer certainly did not store."""
    again = Fenced if isinstance(error, Fenced) else Unavailable
    fail(await writer.settled(), again("Not stored: the payload log is being claimed again."))


def _ignore_batch(_: Batch) -> None:
    """Do nothing: payload logs have no cache."""

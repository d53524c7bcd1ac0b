"""The journal: the log of a reserved topic, and the state on which this node decides while it leads that topic.

Like any topic, the reserved topic has claims, leases, fencing, takeover and group commit (topics/leaders.py). This
module adds::

    request ─▶ lead ─▶ replay, if this leader is new ─▶ decide ─▶ edits: applied in memory, queued for the disk
                                                          │                              │
                                                          └── answer ◀── on disk ────────┘

The state in memory is ahead of the disk. So if an append fails, the state ends: this node drops it, with all decisions
on it, and the next request claims the log and replays it. A request gets the outcome of its own edit.

A decision without edits depends on earlier edits, and another leader may have decided otherwise meanwhile. So it is
answered only after those edits are on disk, and storage then proves that this node still led after the request came.
An edit on disk proves the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Final, TypeVar

from broker import logs
from broker.errors import (
    BrokerError,
    ChangesTooLarge,
    Fenced,
    NoLeader,
    RequestError,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from broker.long_work import Pace, soon
from broker.model import LOG_KEY_MIN, LogKey
from broker.shield import begin, is_done_within, result_of
from broker.storage.keys import LogId
from broker.topics.leader import TopicLeader
from broker.topics.leaders import Leaders
from broker.topics.reserved import KEPT_S, TRANSACTIONS
from broker.topics.settings import PublishedIds
from broker.topics.write import Write
from broker.transactions import manager, snapshots
from broker.transactions.edits import Edit, Reset, encode_edit
from broker.transactions.manager import Decision
from broker.transactions.replay import Replay
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState, emptied

Result = TypeVar("Result")
Decide = Callable[[ServiceState, int], Decision[Result]]
"""Decides on a request, from the state and the time in ms since 1970. Raises RequestError or Overloaded to refuse."""

DOUBT_PAUSE_S: Final = 0.05
READ_BYTES: Final = 1024 * 1024
SNAPSHOT_PARTS_AHEAD: Final = 4
"""How many parts of a snapshot are queued at once. Few, so that edits can go between them."""

log = logs.get_logger()


class Doubt(Exception):
    """No edit was stored, and the decision is stale: decide again on the current state."""


class LedState:
    """The state during the time of one leader. It ends with the first failed append."""

    def __init__(
        self,
        leader: TopicLeader,
        state: ServiceState,
        settings: TransactionSettings,
        is_handed_over: Callable[[], bool],
    ) -> None:
        """Continue a state that was replayed under ``leader``. A snapshot stops once the leader is being handed over."""
        self.leader = leader
        self.state = state
        self.ended = False
        self.edits = 0
        """The number of edits since the last snapshot."""
        self.bytes = 0
        """Their bytes."""
        self.snapshot_bytes = 0
        """The size of the last snapshot."""
        self._settings = settings
        self._is_handed_over = is_handed_over
        self._last: asyncio.Future[PublishedIds] | None = None
        """The outcome of the last append. Once it is done, all earlier ones are done."""
        self._snapshot: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """True if no decision may use this state any more."""
        return self.ended or self.leader.ended is not None

    def append(self, message: bytes) -> asyncio.Future[PublishedIds]:
        """Queue a message. The caller must not cancel the future: later messages depend on this one.

        Raises:
            Fenced, Overloaded, ChangesTooLarge: the message was not queued.
        """
        write = Write(self.leader.loop.create_future(), [message], depends=True)
        try:
            future = self.leader.writer.submit(write)
        except RequestError as error:
            raise ChangesTooLarge(
                "The change set has more bytes than the store can hold."
            ) from error
        future.add_done_callback(self._end_if_failed)
        return future

    def _end_if_failed(self, future: asyncio.Future[PublishedIds]) -> None:
        """End the state if the append failed: the messages queued behind it must not be stored.

        The writer forms its next batch in a later round of the loop, and is closed by then. Of two appends in flight
        at once, the second is stored only if the first is.
        """
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """End this state: no later decision may use it."""
        self.ended = True
        self._last = None  # Its error leads to frames that name this state.
        known = error if isinstance(error, BrokerError) else NoLeader("The journal was closed.")
        self.leader.end(known)

    async def carry_out(self, decide: Decide[Result], now_ms: int) -> Result:
        """Decide, and return the answer once the decision is on disk.

        Raises:
            Doubt: no edit was stored; decide again.
            BrokerError: the refusal, or the outcome of the edits.
        """
        try:
            decision = decide(self.state, now_ms)
        except BrokerError as refused:
            await self._prove()
            raise refused from None
        if not decision.edits:
            await self._prove()
            return decision.answer
        for edit in decision.edits:
            self._write(edit)
        await self._on_disk()
        return decision.answer

    async def _on_disk(self) -> None:
        """Wait until the last edit is on disk, and with it all others. Raises Doubt if it certainly was not stored."""
        assert self._last is not None, "an edit was queued just now"
        try:
            await result_of(self._last)
        except Fenced as error:
            raise Doubt from error

    def begin(self, now_ms: int) -> None:
        """Queue the first edit of a journal."""
        decision = manager.begin(self.state, now_ms)
        self._write(decision.edits[0])

    def _write(self, edit: Edit) -> None:
        """Queue an edit and apply it."""
        number = self.state.number + 1
        message = encode_edit(number, edit)
        self._last = self.append(message)
        forgets = isinstance(edit, Reset) and self.state.gone is None  # Else a snapshot needs it.
        before = copy(self.state) if forgets else None
        self.state.apply(number, edit)
        if before is not None:
            soon(emptied(before))
        self.edits += 1
        self.bytes += len(message)

    async def _prove(self) -> None:
        """Wait until the last edit is on disk, and storage proves that this node still led during this call. Raises Doubt."""
        if self._last is not None:
            try:
                await result_of(self._last)
            except BrokerError as error:
                raise Doubt from error
        if self.is_over or not await self.leader.is_proven():
            raise Doubt

    # Snapshots.

    @property
    def wants_snapshot(self) -> bool:
        """True if the edits since the last snapshot would take long to replay.

        Their bytes must reach the size of that snapshot. So snapshots at most double the bytes that edits write.
        """
        bytes_max = max(self._settings.snapshot_bytes, self.snapshot_bytes)
        return self.edits >= self._settings.snapshot_edits or self.bytes >= bytes_max

    def snapshot_soon(self) -> None:
        """Begin a snapshot if it is time for one and none is being written."""
        if self.wants_snapshot and self._snapshot is None and not self.is_over:
            self._snapshot = asyncio.ensure_future(self._try_snapshot())

    async def _try_snapshot(self) -> None:
        try:
            await self.write_snapshot()
        except BrokerError as error:
            # The journal is complete without the snapshot. If its append failed, this state has ended.
            log.warning("no snapshot of the transactions was written", error=error.message)
        finally:
            self._snapshot = None

    async def write_snapshot(self) -> None:
        """Write the current state into the journal. Then raise the floor, so that no earlier message is read.

        Raises:
            BrokerError: the snapshot was not written whole, or the floor was not raised.
        """
        edits, size = self.edits, self.bytes
        self.edits = self.bytes = 0
        self.state.gone = {}
        try:
            self.snapshot_bytes = await self._write_snapshot()
        except BaseException:
            # A half counts again: the next snapshot comes sooner, but not at once, while the store may be overloaded.
            self.edits += (edits + 1) // 2
            self.bytes += size // 2
            raise
        finally:
            self.state.gone = None

    async def _write_snapshot(self) -> int:
        """Write a snapshot, and return its size."""
        state = snapshots.frozen(self.state)
        begun = self.append(snapshots.encode_begin(state.number))
        parts, size, ahead, pace = 0, 0, [begun], Pace()
        try:
            for part in snapshots.encode_parts(state):
                if self._is_handed_over():
                    raise NoLeader("The journal is being handed over.")
                ahead.append(self.append(part))
                parts += 1
                size += len(part)
                if len(ahead) > SNAPSHOT_PARTS_AHEAD:
                    await result_of(ahead.pop(0))
                await pace.step()
            await result_of(self.append(snapshots.encode_end(state.number, parts)))
            first = begun.result().first
        finally:
            del begun, ahead  # See ``shield``.
        # The edits between the begin and the end of the snapshot are not in it.
        await self.leader.raise_floor(first)
        return size

    async def settle(self) -> None:
        """Wait until the snapshot in progress has ended, if there is one."""
        if self._snapshot is not None:
            await asyncio.wait((self._snapshot,))


class Journal:
    """One node's access to the journal."""

    def __init__(
        self,
        leaders: Leaders,
        settings: TransactionSettings,
        *,
        claimed: Callable[[LedState], None],
    ) -> None:
        """Claim nothing before the first request. ``claimed`` gets each state after its replay."""
        self.led: LedState | None = None
        self._leaders = leaders
        self._around = leaders.around
        self._settings = settings
        self._claimed = claimed
        self._replaying: asyncio.Task[None] | None = None
        self.begins_anew = False
        """Whether a journal that does not determine the state begins again, without transactions."""

    async def carry_out(self, decide: Decide[Result], deadline: float) -> Result:
        """Decide on the current state, as the journal's leader. After ``deadline`` (monotonic seconds) do not begin.

        Raises:
            NotLeader: another node should lead the journal.
            NoLeader: there was no leader before the deadline, and no edit was stored.
            BrokerError: the refusal, or the outcome of the edits.
        """
        clock = self._around.clock
        while True:
            led = await self._lead(deadline)
            try:
                return await led.carry_out(decide, clock.now_ms())
            except Doubt as error:
                if clock.monotonic() + DOUBT_PAUSE_S >= deadline:
                    raise NoLeader("No node leads the transaction service just now.") from error
            await clock.sleep(0 if led.is_over else DOUBT_PAUSE_S)

    async def _lead(self, deadline: float) -> LedState:
        """Return the state of this node's leader. It does not wait after its last check, so the state is current."""
        while True:
            leader = await self._leader(deadline)
            led = self.led
            if led is not None and led.leader is leader and not led.is_over:
                return led
            if self._replaying is None:
                self._replaying = begin(self._replay(leader))
            left_s = max(deadline - self._around.clock.monotonic(), 0)
            if not await is_done_within(self._replaying, left_s):
                raise NoLeader("The journal of transactions is still being read.")

    async def _replay(self, leader: TopicLeader) -> None:
        """Read the journal for all requests that wait for it, even after the first one was cancelled."""
        try:
            led = await self._replayed(leader)
            if not led.is_over:
                former, self.led = self.led, led
                if former is not None:
                    soon(emptied(former.state))
                self._claimed(led)
        finally:
            self._replaying = None

    async def _leader(self, deadline: float) -> TopicLeader:
        """Return this node's leader of the journal's topic. Create the topic if it does not exist."""
        while True:
            try:
                return await self._leaders.lead(TRANSACTIONS, deadline)
            except TopicNotFound:
                try:
                    await self._leaders.registry.create(TRANSACTIONS, {"ttl": str(KEPT_S)})
                except TopicExists:
                    continue

    async def _replayed(self, leader: TopicLeader) -> LedState:
        """Read the journal to this leader's pointer, and return the state.

        Raises:
            Unavailable: storage gives only stale reads, which end before the pointer.
            StorageCorrupt: see Replay.
        """
        began = self._around.clock.monotonic()
        replay, pace = Replay(), Pace()
        pointer, after = leader.hold.pointer, LOG_KEY_MIN
        pauses = self._around.logs.resolver.pauses()
        while after < pointer:
            after = await self._read(leader, replay, after, pointer, pace)
            if after < pointer and not await pauses.next():
                raise Unavailable("Storage gives a stale end of the journal. Try again.")
        is_new = not replay.messages or (self.begins_anew and not replay.is_determined)
        state = replay.anew() if is_new else replay.state
        topic = self._leaders.state(TRANSACTIONS)
        led = LedState(leader, state, self._settings, lambda: topic.leader is not leader)
        if is_new:
            led.begin(self._around.clock.now_ms())
        led.edits, led.bytes, led.snapshot_bytes = replay.edits, replay.bytes, replay.snapshot_bytes
        seconds = round(self._around.clock.monotonic() - began, 3)
        log.info(
            "transactions are led here", epoch=leader.epoch, edit=state.number, seconds=seconds
        )
        return led

    async def _read(
        self, leader: TopicLeader, replay: Replay, after: LogKey, pointer: LogKey, pace: Pace
    ) -> LogKey:
        reader = self._around.logs.reader(
            LogId(TRANSACTIONS, leader.topic.generation), after, pointer
        )
        while not reader.ended:
            for entry in await reader.next(READ_BYTES):
                for message in replay.messages_in(entry):
                    replay.take(message)
                    await pace.step()
        return reader.reached

    async def is_missing(self) -> bool:
        """Return whether no transaction was ever begun."""
        return await self._leaders.registry.read(TRANSACTIONS) is None

    def forget(self, led: LedState) -> None:
        """Free the memory of a state that is over."""
        if self.led is led:
            self.led = None
            soon(emptied(led.state))

    def touch(self) -> None:
        """Keep this node from closing the topic as idle: the leader must check for time-outs."""
        self._leaders.state(TRANSACTIONS).touched = True

    async def close(self) -> None:
        """Write a last snapshot, if this node leads and there are edits since the last one."""
        led = self.led
        if led is None or led.is_over:
            return
        await led.settle()
        if led.edits and not led.is_over:
            try:
                await led.write_snapshot()
            except BrokerError as error:
                log.warning("no snapshot of the transactions was written", error=error.message)

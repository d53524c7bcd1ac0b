"""The transaction service of one node: the methods behind the handlers.

One node leads the service, like a topic. If another node should lead it, every call is refused with NotLeader. The
first call after a takeover claims the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from broker import logs
from broker.errors import (
    BrokerError,
    StorageCorrupt,
    TransactionConflict,
    TransactionNotInProgress,
    UnavailableError,
)
from broker.http.budget import caller_at
from broker.long_work import aside
from broker.metrics import Metrics
from broker.model import Snapshot
from broker.topics.leaders import Leaders
from broker.topics.overdue import answered_in_time, in_time
from broker.transactions import manager
from broker.transactions.callers import Callers
from broker.transactions.edits import Invalidated
from broker.transactions.journal import Decide, Doubt, Journal, LedState
from broker.transactions.manager import Decision
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState
from broker.transactions.shown_transaction import details_of, shown
from broker.transactions.snapshots import frozen
from broker.transactions.tephra_snapshot import encode_state, state_of

Result = TypeVar("Result")
CLOSE_S: Final = 2.0
"""How long the last snapshot may take."""

log = logs.get_logger()


class Transactions:
    """The transaction service on one node. Deadlines are in monotonic seconds."""

    def __init__(self, leaders: Leaders, settings: TransactionSettings | None = None) -> None:
        """Keep the parts. Nothing is claimed before the first call."""
        self.settings, self._around = settings or TransactionSettings(), leaders.around
        self._journal = Journal(leaders, self.settings, claimed=self._claimed)
        self._sweeping: asyncio.Task[None] | None = None
        self._seen_at: dict[int, float] = {}
        """When this leader first saw each transaction in progress, in monotonic seconds."""
        self.callers = Callers(self.settings)
        self._is_unused: bool | None = None
        """Whether the service had no journal when this node looked. None: it has not looked."""
        self.counts = dict.fromkeys(
            ("started", "committed", "aborted", "invalidated", "timed_out", "conflicts"), 0
        )

    async def start(  # noqa: PLR0913 - All by name.
        self,
        *,
        long: bool = False,
        timeout_s: float | None = None,
        client: str = "",
        name: str = "",
        epoch: int | None = None,
        deadline: float | None = None,
        caller: str = "",
    ) -> Snapshot:
        """Begin a transaction. Return its snapshot. ``name`` and ``epoch``: see manager.start.

        ``caller`` is the client's principal or address. One caller can't take all places; without an address none is counted.

        Raises:
            BadRequest, TransactionFenced: see manager.start.
            NotLeader, NoLeader, Overloaded, Unavailable: no transaction began.
            OutcomeUnknown: a transaction may have begun; it ends by its time-out.
        """
        name_of = caller_at(caller) if caller else ""

        def decide(state: ServiceState, now_ms: int) -> Decision[Snapshot]:
            begun = manager.start(
                state,
                now_ms,
                self.settings,
                long=long,
                timeout_s=timeout_s,
                client=client,
                name=name,
                epoch=epoch,
                of_caller=self.callers.count(state, name_of),
            )
            self.callers.note(state, begun.answer.transaction_id, name_of)
            return begun

        return await self._execute("started", decide, deadline)

    async def can_commit(
        self, transaction_id: int, changes: Collection[bytes], deadline: float | None = None
    ) -> None:
        """Store the keys that a transaction changed.

        Raises:
            TransactionNotInProgress, TransactionConflict, ChangesTooLarge: the transaction can't commit.
        """

        def decide(state: ServiceState, _: int) -> Decision[None]:
            return manager.can_commit(state, transaction_id, changes, self.settings)

        await self._execute("", decide, deadline)

    async def commit(
        self,
        transaction_id: int,
        write_pointer: int | None = None,
        deadline: float | None = None,
    ) -> None:
        """Commit a transaction: its writes become visible.

        Raises:
            TransactionNotInProgress, TransactionConflict: the transaction can't commit.
            OutcomeUnknown: the transaction may have committed; a new snapshot shows it.
        """

        def decide(state: ServiceState, _: int) -> Decision[None]:
            return manager.commit(state, transaction_id, write_pointer)

        await self._execute("committed", decide, deadline)

    async def abort(
        self, transaction_id: int, deadline: float | None = None, caller: str = ""
    ) -> None:
        """Abort a transaction whose client has undone its writes. A long transaction becomes invalid.

        An invalid one becomes visible, and with it all messages that its client has not undone. So this is logged.
        """
        was_hidden = False

        def decide(state: ServiceState, _: int) -> Decision[None]:
            nonlocal was_hidden
            aborting = manager.abort(state, transaction_id)
            was_hidden = bool(aborting.edits) and transaction_id in state.ended
            return aborting

        await self._execute("aborted", decide, deadline)
        if was_hidden:
            of = {"transaction": str(transaction_id), "caller": caller}
            log.info("hidden messages become visible", operation="abort", **of)

    async def invalidate(self, transaction_id: int, deadline: float | None = None) -> bool:
        """Make a transaction invalid. Return whether it was in progress."""

        def decide(state: ServiceState, _: int) -> Decision[bool]:
            return manager.invalidate(state, transaction_id)

        return await self._execute("invalidated", decide, deadline)

    async def checkpoint(self, transaction_id: int, deadline: float | None = None) -> Snapshot:
        """Give a transaction another write pointer. Raises TransactionNotInProgress."""

        def decide(state: ServiceState, now_ms: int) -> Decision[Snapshot]:
            of_caller = self.callers.count(state, self.callers.of(transaction_id))
            return manager.checkpoint(state, now_ms, transaction_id, self.settings, of_caller)

        return await self._execute("", decide, deadline)

    async def check_in_progress(self, pointer: int, deadline: float | None) -> None:
        """Return if messages may be written under a pointer, as far as this node knows.

        A node that leads the service knows. A node alone can always lead it; but if no transaction was ever begun here,
        another service gives the pointers.

        Raises:
            TransactionNotInProgress: the pointer's transaction has ended, or never began.
        """
        state = self.state
        if state is None and not (self._around.is_alone and await self._was_used(deadline)):
            return
        if state is not None and state.is_in_progress(pointer):
            return
        try:
            # Another node may lead meanwhile: so refuse only after storage has proven that this node does.
            known = await self._read(lambda state: state.is_in_progress(pointer), deadline)
        except UnavailableError:
            return
        if not known:
            raise TransactionNotInProgress(
                f"No transaction in progress has the write pointer {pointer}: it has ended, or never began. "
                "(A number in JavaScript has only 53 bits. Keep write pointers as strings.)"
            )

    async def _was_used(self, deadline: float | None) -> bool:
        """Return whether the service has a journal, which may begin during the look."""
        if self._is_unused is None:
            async with in_time(self._around.clock, deadline):
                is_missing = await self._journal.is_missing()
            if self._is_unused is None:
                self._is_unused = is_missing
        return not self._is_unused

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now, without beginning a transaction. It has all changes answered before the call."""
        return await self._read(lambda state: state.snapshot(), deadline)

    async def tephra_snapshot(self, deadline: float | None = None) -> bytes:
        """Return the whole state in Tephra's snapshot format."""
        state = await self._read(frozen, deadline)
        written = state_of(state, self._around.clock.now_ms())
        return await aside(partial(encode_state, written))

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Remove pointers from the invalid list. Return how many were in it.

        No topic may have messages of them any more. Many pointers are removed in several steps, so repeat the call
        after any error.
        """
        pointers, removed = list(ids), 0
        for at in range(0, max(len(pointers), 1), manager.TRUNCATED_AT_ONCE):
            some = pointers[at : at + manager.TRUNCATED_AT_ONCE]

            def decide(state: ServiceState, _: int, some: Collection[int] = some) -> Decision[int]:
                return manager.truncate(state, some)

            removed += await self._execute("", decide, deadline)
        return removed

    async def truncate_invalid_before(self, before_ms: int, deadline: float | None = None) -> int:
        """Remove all pointers given before a moment from the invalid list. Return how many. Raises OlderInProgress."""

        def decide(state: ServiceState, _: int) -> Decision[int]:
            return manager.truncate_before(state, before_ms)

        return await _repeated(
            lambda: self._execute("", decide, deadline), manager.TRUNCATED_AT_ONCE
        )

    async def invalid_count(self) -> int:
        """Return the number of invalid pointers."""
        return await self._read(lambda state: len(state.invalids), None)

    async def reset(self, deadline: float | None = None) -> tuple[int, int]:
        """Forget all transactions. The service is then as new, but pointers go on rising.

        Return how many transactions were in progress, and how many pointers were invalid. Their messages are visible now.
        If the journal lacks a part, these numbers are not known, and it begins anew.
        """

        def decide(state: ServiceState, now_ms: int) -> Decision[tuple[int, int]]:
            forgotten = len(state.in_progress), len(state.invalids)
            return Decision(manager.begin(state, now_ms).edits, forgotten)

        try:
            return await self._execute("", decide, deadline)
        except StorageCorrupt:
            self._journal.begins_anew = True
            try:
                return await self._execute("", decide, deadline)
            finally:
                self._journal.begins_anew = False

    async def listing(
        self, limit: int | None = None, deadline: float | None = None
    ) -> dict[str, Any]:
        """Return the transactions in progress, the oldest first, and the counts of each state."""
        return await self._read(lambda state: self._listed(state, limit), deadline)

    async def show(self, transaction_id: int, deadline: float | None = None) -> dict[str, Any]:
        """Return a transaction's state and details. Raises NotFound."""
        return await self._read(lambda state: shown(state, transaction_id), deadline)

    async def _read(self, read: Callable[[ServiceState], Result], deadline: float | None) -> Result:
        deadline = self._or_default(deadline)
        deciding = self._journal.carry_out(lambda state, _: Decision((), read(state)), deadline)
        async with in_time(self._around.clock, deadline):
            return await deciding

    def _or_default(self, deadline: float | None) -> float:
        after = self._around.clock.monotonic() + self.settings.request_deadline_s
        return after if deadline is None else deadline

    async def _execute(
        self, counter: str, decide: Decide[Result], deadline: float | None
    ) -> Result:
        """Execute a decision, and add it to this counter, if there are edits. Its edits are stored even if the caller is cancelled."""
        deadline = self._or_default(deadline)
        counted: Decision[Result] | None = None

        def decide_and_note(state: ServiceState, now_ms: int) -> Decision[Result]:
            nonlocal counted
            counted = decide(state, now_ms)
            return counted

        try:
            async with answered_in_time(self._around.clock, deadline):
                result = await self._journal.carry_out(decide_and_note, deadline)
        except TransactionConflict:
            self.counts["conflicts"] += 1
            raise
        if counter and counted is not None and counted.edits:
            # A long transaction does not abort: it becomes invalid.
            is_long = counter == "aborted" and isinstance(counted.edits[0], Invalidated)
            self.counts["invalidated" if is_long else counter] += 1
        if (led := self._journal.led) is not None:
            led.snapshot_soon()
        return result

    def _listed(self, state: ServiceState, limit: int | None) -> dict[str, Any]:
        found = list(state.in_progress.values())[:limit]
        led = self._journal.led
        return {
            "in_progress": [details_of(each) for each in found],
            "in_progress_count": len(state.in_progress),
            "committing": sum(each.changes is not None for each in state.in_progress.values()),
            "committed": len(state.committed),
            "invalid": len(state.invalids),
            "read_pointer": str(state.read_pointer),
            "write_pointer": str(state.last),
            "leader": self._around.instance,
            "epoch": None if led is None else led.leader.epoch,
        }

    def watch(self, metrics: Metrics) -> None:
        """Register the metrics. They show 0 while another node leads the service."""

        def level(count: Callable[[ServiceState], int]) -> Callable[[], float]:
            return lambda: 0 if self.state is None else count(self.state)

        where = "on the node that leads the service."
        for name, doc, count in (
            ("in_progress", "Transactions in progress", lambda state: len(state.in_progress)),
            ("invalid", "Invalid write pointers", lambda state: len(state.invalids)),
            ("change_bytes", "Memory of the change sets", lambda state: state.change_bytes),
        ):
            metrics.watch(f"transactions_{name}", f"{doc}, {where}", level(count))
        outcomes = "Transactions by their outcome on this node."
        metrics.watch("transactions_total", outcomes, lambda: self.counts, "kind")

    # The time-outs.

    @property
    def state(self) -> ServiceState | None:
        """The state, if this node leads. Use it only for metrics: it may be ahead of the disk."""
        return None if (led := self._journal.led) is None or led.is_over else led.state

    def _claimed(self, led: LedState) -> None:
        self._is_unused = False
        self._seen_at = {}
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._sweeping = asyncio.ensure_future(self._sweep_while(led))

    async def _sweep_while(self, led: LedState) -> None:
        """Check for timed-out transactions, at once and then at each interval, until this state ends."""
        while not led.is_over:
            self._journal.touch()
            with suppress(BrokerError, Doubt):
                await self.expire(led)
            await self._around.clock.sleep(self.settings.sweep_interval_s)
        self._journal.forget(led)

    async def expire(self, led: LedState) -> int:
        """Make transactions invalid whose time-outs have passed. Return how many."""
        clock, before = self._around.clock, self._seen_at
        now = clock.monotonic()
        self._seen_at = {each: before.get(each, now) for each in led.state.in_progress}
        seen_ms = {each: (now - at) * 1000 for each, at in self._seen_at.items()}
        expire = partial(manager.expire, patient_ms=clock.patient_ms, seen_ms=seen_ms)
        count = await _repeated(
            lambda: led.carry_out(expire, clock.now_ms()), manager.TIMED_OUT_AT_ONCE
        )
        self.counts["timed_out"] += count
        if count:
            log.info("transactions timed out", count=count)
        return count

    async def close(self) -> None:
        """Stop checking for time-outs, and write a last snapshot."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._journal.close()


async def _repeated(some: Callable[[], Awaitable[int]], at_once: int) -> int:
    """Call ``some`` until it handles fewer than ``at_once``; return how many it has handled."""
    total = found = await some()
    while found == at_once:
        found = await some()
        total += found
    return total

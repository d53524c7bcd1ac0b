"""The transaction service of one node: what the interface calls.

One node leads it, as one node leads a topic. Where another node should, every call is refused by NotLeader. The first
call after a takeover claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, TypeVar

from broker import logs
from broker.errors import BrokerError, NotFound, TransactionConflict
from broker.metrics import Metrics
from broker.model import Snapshot
from broker.slices import in_slices
from broker.topics.leaders import Leaders
from broker.transactions import manager
from broker.transactions.journal import Decide, Doubt, Journal, LedState
from broker.transactions.manager import Decision
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import OpenTransaction, ServiceState
from broker.transactions.snapshots import frozen
from broker.transactions.tephra_snapshot import snapshot_steps, state_of

Result = TypeVar("Result")
CLOSE_S: Final = 2.0
"""How long the last snapshot may take."""
TRUNCATED_AT_ONCE: Final = 4_000
"""So many take less than the event loop may be held."""

log = logs.get_logger()


class Transactions:
    """The transactions, as one node serves them. A deadline is in monotonic seconds."""

    def __init__(self, leaders: Leaders, settings: TransactionSettings | None = None) -> None:
        """Lead nothing before the first call."""
        self.settings = settings or TransactionSettings()
        self._around = leaders.around
        self._journal = Journal(leaders, self.settings, claimed=self._claimed)
        self._sweeping: asyncio.Task[None] | None = None
        self.counts = dict.fromkeys(
            ("started", "committed", "aborted", "invalidated", "timed_out", "conflicts"), 0
        )

    async def start(
        self,
        *,
        long: bool = False,
        timeout_s: float | None = None,
        client: str = "",
        deadline: float | None = None,
    ) -> Snapshot:
        """Begin a transaction; return what it may see.

        Raises:
            BadRequest: see manager.start.
            NotLeader, NoLeader, Overloaded, Unavailable: nothing was done.
            OutcomeUnknown: one may have begun, which ends by its time-out.
        """

        def decide(state: ServiceState, now_ms: int) -> Decision[Snapshot]:
            return manager.start(
                state, now_ms, self.settings, long=long, timeout_s=timeout_s, client=client
            )

        return await self._done("started", decide, deadline)

    async def can_commit(
        self, transaction_id: int, changes: Collection[bytes], deadline: float | None = None
    ) -> None:
        """Tell what a transaction changed.

        Raises:
            TransactionNotInProgress, TransactionConflict, ChangesTooLarge: it can't commit.
        """

        def decide(state: ServiceState, _: int) -> Decision[None]:
            return manager.can_commit(state, transaction_id, changes, self.settings)

        await self._done("", decide, deadline)

    async def commit(
        self,
        transaction_id: int,
        write_pointer: int | None = None,
        deadline: float | None = None,
    ) -> None:
        """End a transaction; what it wrote is visible.

        Raises:
            TransactionNotInProgress, TransactionConflict: it can't commit.
            OutcomeUnknown: it may have committed; a fresh snapshot tells.
        """

        def decide(state: ServiceState, _: int) -> Decision[None]:
            return manager.commit(state, transaction_id, write_pointer)

        await self._done("committed", decide, deadline)

    async def abort(self, transaction_id: int, deadline: float | None = None) -> None:
        """End a transaction that undid what it wrote; a long one is invalidated."""

        def decide(state: ServiceState, _: int) -> Decision[None]:
            return manager.abort(state, transaction_id)

        await self._done("aborted", decide, deadline)

    async def invalidate(self, transaction_id: int, deadline: float | None = None) -> bool:
        """Make a transaction invalid; whether it was in progress."""

        def decide(state: ServiceState, _: int) -> Decision[bool]:
            return manager.invalidate(state, transaction_id)

        return await self._done("invalidated", decide, deadline)

    async def checkpoint(self, transaction_id: int, deadline: float | None = None) -> Snapshot:
        """Give a transaction a further write pointer. Raises TransactionNotInProgress."""

        def decide(state: ServiceState, now_ms: int) -> Decision[Snapshot]:
            return manager.checkpoint(state, now_ms, transaction_id, self.settings)

        return await self._done("", decide, deadline)

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return what is visible now; no transaction begins. All is in it that was answered before the call."""
        return await self._read(lambda state: state.snapshot(), deadline)

    async def tephra_snapshot(self, deadline: float | None = None) -> bytes:
        """Return the state as Tephra writes snapshots."""
        state = await self._read(frozen, deadline)
        return await in_slices(snapshot_steps(state_of(state, self._around.clock.now_ms())))

    async def truncate_invalid(self, ids: Collection[int], deadline: float | None = None) -> int:
        """Call pointers invalid no more, of which nothing is left; how many were. Repeat it after any error.

        Many are truncated some at a time.
        """
        pointers, removed = list(ids), 0
        for at in range(0, max(len(pointers), 1), TRUNCATED_AT_ONCE):
            some = pointers[at : at + TRUNCATED_AT_ONCE]

            def decide(state: ServiceState, _: int, some: Collection[int] = some) -> Decision[int]:
                return manager.truncate(state, some)

            removed += await self._done("", decide, deadline)
        return removed

    async def truncate_invalid_before(self, before_ms: int, deadline: float | None = None) -> int:
        """Call pointers invalid no more that were given before a moment; how many were. Raises OlderInProgress."""

        def decide(state: ServiceState, _: int) -> Decision[int]:
            return manager.truncate_before(state, before_ms)

        return await self._done("", decide, deadline)

    async def invalid_count(self) -> int:
        """Return how many pointers are invalid."""
        return await self._read(lambda state: len(state.invalids), None)

    async def reset(self, deadline: float | None = None) -> None:
        """Forget all transactions, as if the service were new; pointers go on rising."""
        await self._done("", manager.begin, deadline)

    async def listing(
        self, limit: int | None = None, deadline: float | None = None
    ) -> dict[str, Any]:
        """Return the transactions in progress, the oldest first, and how many there are of each state."""
        return await self._read(lambda state: self._listed(state, limit), deadline)

    async def show(self, transaction_id: int, deadline: float | None = None) -> dict[str, Any]:
        """Return what is known of a transaction. Raises NotFound."""
        return await self._read(lambda state: shown(state, transaction_id), deadline)

    async def _read(self, read: Callable[[ServiceState], Result], deadline: float | None) -> Result:
        return await self._journal.carry_out(lambda state, _: Decision((), read(state)), deadline)

    async def _done(self, what: str, decide: Decide[Result], deadline: float | None) -> Result:
        """Carry out a decision and count it. It goes on if the caller is cancelled."""
        counted: Decision[Result] | None = None

        def noted(state: ServiceState, now_ms: int) -> Decision[Result]:
            nonlocal counted
            counted = decide(state, now_ms)
            return counted

        try:
            result = await self._journal.carry_out(noted, deadline)
        except TransactionConflict:
            self.counts["conflicts"] += 1
            raise
        if what and counted is not None and counted.edits:
            self.counts[what] += 1
        led = self._journal.led
        if led is not None:
            led.snapshot_soon()
        return result

    def _listed(self, state: ServiceState, limit: int | None) -> dict[str, Any]:
        found = list(state.in_progress.values())[:limit]
        led = self._journal.led
        return {
            "in_progress": [told(each) for each in found],
            "in_progress_count": len(state.in_progress),
            "committing": sum(each.changes is not None for each in state.in_progress.values()),
            "committed": len(state.committed),
            "invalid": len(state.invalids),
            "read_pointer": state.read_pointer,
            "write_pointer": state.last,
            "leader": self._around.instance,
            "epoch": None if led is None else led.leader.epoch,
        }

    def watch(self, metrics: Metrics) -> None:
        """Show figures of what this node leads; 0 where another leads."""

        def level(count: Callable[[ServiceState], int]) -> Callable[[], float]:
            return lambda: 0 if self.state is None else count(self.state)

        metrics.watch(
            "transactions_in_progress",
            "Transactions in progress, where they are led.",
            level(lambda state: len(state.in_progress)),
        )
        metrics.watch(
            "transactions_invalid",
            "Invalid write pointers, where they are led.",
            level(lambda state: len(state.invalids)),
        )
        metrics.watch(
            "transactions_change_bytes",
            "Memory of the change sets, where they are led.",
            level(lambda state: state.change_bytes),
        )
        metrics.watch_each(
            "transactions_total",
            "Transactions by what became of them here.",
            "kind",
            lambda: self.counts,
        )

    # The time-outs.

    @property
    def state(self) -> ServiceState | None:
        """The state, if this node leads: for figures alone."""
        led = self._journal.led
        return None if led is None or led.is_over else led.state

    def _claimed(self, led: LedState) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._sweeping = asyncio.ensure_future(self._sweep_while(led))

    async def _sweep_while(self, led: LedState) -> None:
        """Look for transactions whose time is over, at once and then now and then, while this state lasts."""
        while not led.is_over:
            self._journal.touch()
            with suppress(BrokerError, Doubt):
                await self.expire(led)
            await self._around.clock.sleep(self.settings.sweep_interval_s)

    async def expire(self, led: LedState | None = None) -> int:
        """Make transactions invalid whose time is over; how many."""
        if led is None:
            count = await self._journal.carry_out(manager.expire, None)
        else:
            count = await led.carry_out(manager.expire, self._around.clock.now_ms())
        self.counts["timed_out"] += count
        if count:
            log.info("transactions timed out", count=count)
        return count

    async def close(self) -> None:
        """Sweep no more, and leave a snapshot."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._journal.close()


def told(each: OpenTransaction) -> dict[str, Any]:
    """Return a transaction in progress as a list shows it."""
    return {
        "id": each.id,
        "type": "long" if each.long else "short",
        "started_ms": each.started_ms,
        "expires_ms": each.expires_ms,
        "client": each.client,
        "checkpoints": list(each.checkpoints),
    }


def shown(state: ServiceState, transaction_id: int) -> dict[str, Any]:
    """Return what is known of a transaction. Raises NotFound."""
    found = state.in_progress.get(transaction_id)
    if found is not None:
        name = "in_progress" if found.changes is None else "committing"
        return {"state": name, **told(found), "changes": len(found.changes or ())}
    if state.is_invalid(transaction_id):
        ended = state.ended.get(transaction_id)
        more: dict[str, Any] = {}
        if ended is not None:
            more = {
                "type": "long" if ended.long else "short",
                "checkpoints": list(ended.checkpoints),
            }
        return {"state": "invalid", "id": transaction_id, **more}
    raise NotFound(
        f"Nothing is known of transaction {transaction_id}: it ended long ago, or never began."
    )

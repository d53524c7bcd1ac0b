"""Each guard of the rowlog taken away: a test finds that it is gone.

A mutant is one function swapped. ``found_by`` is what must fail with it: random runs of the model, or one test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from broker.rowlog import (
    attempt,
    election,
    entries,
    execution_state,
    index,
    meta,
    processor,
    puts,
    row_locks,
    wakeups,
)
from broker.rowlog import rows as rows_module
from broker.rowlog.execution_state import Choice, NextStep, Standing
from broker.rowlog.memory import MemoryRows
from tests.kit.contract.rowtable import MemoryRowsOfOneCell, Opened, RowLocksContract
from tests.unit.rowlog import (
    test_candidacy,
    test_failover,
    test_letters,
    test_puts,
    test_unknown_marks,
    test_wal,
)
from tests.unit.rowlog.test_model import wrong
from tests.unit.rowlog.world import Epoch

Test = Callable[[], None]


def runs() -> None:
    for seed in range(60):
        assert wrong(seed) == []


def a_stolen_lock_of_one_cell() -> None:
    opened = Opened(MemoryRowsOfOneCell({b"t": {}}), b"t")
    test = RowLocksContract().test_a_put_is_refused_if_its_lock_was_taken_over_before_it_was_sent
    asyncio.run(test(opened, b"r"))


def a_released_lock() -> None:
    opened = Opened(MemoryRows({b"t": {}}), b"t")
    asyncio.run(RowLocksContract().test_a_holder_releases_its_own_lock_alone(opened, b"r"))


class Mutant(NamedTuple):
    owner: Any
    name: str
    swap: Callable[[Any], Any]
    found_by: Test


def index_last(original: Any) -> Any:
    async def write(self: Any, put: Any, names: Any, permit: Any, setup: Any) -> Any:
        parts = self._parts
        add, later = parts.index.add, []

        async def note(entries: Any) -> None:
            later.extend(entries)

        parts.index.add = note
        try:
            message = await original(self, put, names, permit, setup)
        finally:
            parts.index.add = add
        await add(later)
        return message

    return write


def always_set(original: Any) -> Any:
    async def check_and_put(
        self: Any, table: bytes, row: bytes, column: bytes, expected: bytes, value: bytes
    ) -> bool:
        if column.startswith(b"rowlog:"):
            there = (await self._step("check_and_put", table)).get(row, {})
            if column not in there:
                return False
            expected = there[column]
        return bool(await original(self, table, row, column, expected, value))

    return check_and_put


def release_any_lock(_: Any) -> Any:
    async def release(self: Any, row: bytes, permit: Any) -> None:
        await self._table.put(self._rows.table, [(row, {permit.guard.column: b""})])

    return release


def any_open(_: Any) -> Any:
    def choose(messages: Any, subscription: Any, setup: Any, now: int) -> Choice:
        for message, each in messages:
            part = each.parts.get(subscription.id)
            if each.is_open(subscription.id) and part.not_before <= now:
                return Choice(NextStep.TAKE, message)
        return Choice(NextStep.NOTHING)

    return choose


def without_epoch(original: Any) -> Any:
    def claim(now_state: Any, name: str, by: Any, now: int, settings: Any) -> Any:
        part = now_state.parts.get(name)
        if part is not None:
            now_state = now_state.with_part(name, replace(part, epoch=0))
        return original(now_state, name, by, now, settings)

    return claim


def without_token(_: Any) -> Any:
    def claimed(now_state: Any, name: str, token: bytes) -> Any:
        part = now_state.parts.get(name)
        if part is None or part.standing is not Standing.OPEN:
            raise execution_state.Gone
        return part

    return claimed


def deaf_to_calls(original: Any) -> Any:
    def claim(now_state: Any, name: str, by: Any, now: int, settings: Any) -> Any:
        return original(now_state, name, by, now, replace(settings, claim_timeout_ms=-(1 << 50)))

    return claim


def no_orphan_delay(original: Any) -> Any:
    async def heal(self: Any, row: bytes, entries: Any, found: Any, setup: Any, now: int) -> int:
        return int(await original(self, row, entries, found, setup, now + 200_000))

    return heal


def old_setup(_: Any) -> Any:
    async def fresh(self: Any) -> Any:
        return self._setup if self._setup is not None else await _fresh(self)

    return fresh


_fresh = meta.Meta.fresh


def no_margin(original: Any) -> Any:
    def since(self: Any, setup: Any, monotonic: float) -> int:
        return 0 if original(self, setup, monotonic) == 0 else self._scanned_at

    return since


def no_trailing_edge(_: Any) -> Any:
    async def tell(self: Any, subscription: str, delay_s: float) -> None:
        await self._coordinator.hint(self.hint(f"wake-{subscription}"))
        await self._clock.sleep(delay_s)

    return tell


def blind_to_the_state(original: Any) -> Any:
    async def state_without_claim(self: Any, claimed: Any, **_: bool) -> Any:
        claimed = claimed._replace(leading=Epoch(1 << 60))
        return await original(self, claimed, is_done=False, may_be_open=True)

    return state_without_claim


def always(_: Any) -> Any:
    return lambda *_: True


def nothing(_: Any) -> Any:
    async def do_nothing(*_: Any, **__: Any) -> None:
        return None

    return do_nothing


def no_waiting(_: Any) -> Any:
    return lambda *_: []


def bury_alone(_: Any) -> Any:
    async def bury(self: Any, _: bytes, given: Any) -> None:
        await self.index.bury(given)

    return bury


def not_stuck(original: Any) -> Any:
    def removed(now_state: Any, setup: Any) -> set[str]:
        return set()

    return removed


MUTANTS = {
    "index-before-row": Mutant(puts.Putting, "_write", index_last, runs),
    "compare-state": Mutant(MemoryRows, "check_and_put", always_set, runs),
    "head-only": Mutant(processor, "choose", any_open, runs),
    "claim-compares-epoch": Mutant(
        execution_state,
        "claim",
        without_epoch,
        test_failover.test_an_earlier_epoch_can_not_claim_what_a_later_one_has_tried,
    ),
    "mark-compares-token": Mutant(
        execution_state,
        "_claimed",
        without_token,
        test_failover.test_a_mark_of_a_fenced_processor_changes_nothing,
    ),
    "claim-of-a-call": Mutant(
        execution_state,
        "claim",
        deaf_to_calls,
        test_wal.test_process_and_processor_never_have_one_message_at_once,
    ),
    "revived-meanwhile": Mutant(
        entries.Entries,
        "bury",
        bury_alone,
        test_letters.test_a_message_that_is_revived_while_it_is_buried_keeps_its_entry,
    ),
    "orphan-delay": Mutant(
        processor.Processor,
        "_heal",
        no_orphan_delay,
        test_failover.test_an_orphan_goes_once_it_is_old_and_not_before,
    ),
    "unknown-is-looked-up": Mutant(
        meta.Meta,
        "fresh",
        old_setup,
        test_candidacy.test_a_message_for_a_subscription_not_known_here_yet_is_kept,
    ),
    "margin": Mutant(
        processor.Processor,
        "_since",
        no_margin,
        test_failover.test_messages_of_writers_with_wrong_clocks_are_found_by_a_poll_or_a_full_scan,
    ),
    "trailing-edge": Mutant(
        wakeups.Wakeups,
        "_tell",
        no_trailing_edge,
        test_candidacy.test_a_wake_up_of_another_process_is_at_once_and_its_trailing_edge_too,
    ),
    "contact": Mutant(
        election.Leading,
        "may_begin",
        always,
        test_failover.test_without_contact_nothing_begins_and_what_was_begun_is_marked,
    ),
    "epoch-is-looked-at": Mutant(
        election.Leading,
        "check",
        nothing,
        test_failover.test_a_processor_that_finds_a_higher_epoch_becomes_a_candidate_again,
    ),
    "lost-claim-reads-the-state": Mutant(
        attempt.Attempts,
        "_state_without_claim",
        blind_to_the_state,
        test_unknown_marks.test_a_processor_stops_that_finds_the_claim_of_a_later_epoch,
    ),
    "lost-claim-reads-the-epoch": Mutant(
        election.Leading,
        "check",
        nothing,
        test_unknown_marks.test_a_fenced_processor_stops_also_if_its_successor_is_done_with_the_message,
    ),
    "respect-order": Mutant(
        execution_state,
        "waits_for",
        no_waiting,
        test_candidacy.test_if_order_is_respected_later_subscriptions_wait_for_the_earlier,
    ),
    "dead-holds-later": Mutant(
        execution_state,
        "_later",
        no_waiting,
        test_candidacy.test_a_message_that_is_dead_for_an_earlier_subscription_is_held_for_later_ones,
    ),
    "removed-counts-as-done": Mutant(
        execution_state,
        "unknown",
        not_stuck,
        test_candidacy.test_a_removed_subscription_leaves_nothing_behind,
    ),
    "lock-guards-the-put": Mutant(
        MemoryRows,
        "change",
        lambda original: lambda self, *given: original(self, *given[:4], None),
        test_puts.test_a_lock_whose_time_is_up_is_taken_over_and_its_holder_can_not_write,
    ),
    "lock-near-its-end": Mutant(
        row_locks.RowLocks,
        "check",
        lambda _: lambda *_: None,
        a_stolen_lock_of_one_cell,
    ),
    "own-lock-is-released": Mutant(
        row_locks.RowLocks, "_release", release_any_lock, a_released_lock
    ),
    "finished-is-deleted": Mutant(
        rows_module.Rows,
        "remove",
        nothing,
        test_candidacy.test_a_message_that_is_done_for_all_leaves_nothing,
    ),
    "entry-is-removed": Mutant(
        index.Index,
        "flush",
        nothing,
        test_candidacy.test_a_message_that_is_done_for_all_leaves_nothing,
    ),
}


def swap_in(patch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    original = getattr(mutant.owner, mutant.name)
    swapped = mutant.swap(original)
    patch.setattr(mutant.owner, mutant.name, swapped)
    # A function that others import by name is theirs, too.
    users: Sequence[Any] = (processor, attempt, execution_state)
    if mutant.owner is execution_state:
        for user in users:
            if getattr(user, mutant.name, None) is original:
                patch.setattr(user, mutant.name, swapped)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_without_its_guard_a_test_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    swap_in(monkeypatch, mutant)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        mutant.found_by()

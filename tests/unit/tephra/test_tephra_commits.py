"""Commits with an unknown outcome: a snapshot shows the outcome, and nothing is guessed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.errors import (
    NoLeader,
    OutcomeUnknown,
    StorageFull,
    TransactionConflict,
    TransactionNotInProgress,
)
from broker.model import Snapshot
from broker.testing.mutants import in_force
from broker.testing.virtual_time import VirtualClock, virtual_loop
from broker.transactions import tephra_commits
from broker.transactions.service_calls import ServiceCall
from broker.transactions.tephra_commits import Commits
from tests.kit.serving import eventually
from tests.unit.tephra.fakes import Scripted

UNKNOWN = OutcomeUnknown("cut")
NO_LEADER = NoLeader("none")
OVER = TransactionNotInProgress("over")
VISIBLE = Snapshot(transaction_id=0, read_pointer=9)
INVALID = Snapshot(transaction_id=0, read_pointer=9, invalids=[7])
OPEN = Snapshot(transaction_id=0, read_pointer=9, in_progress=[7])
LATER = Snapshot(transaction_id=0, read_pointer=5, in_progress=[7])

Test = Callable[[Commits], Awaitable[Any]]

COMMIT, SNAPSHOT = "commit_transaction", "transactions_snapshot"


def run(script: Scripted, test: Test, deadline_s: float = 5) -> Any:
    with virtual_loop() as loop:
        return loop.run_until_complete(test(Commits(script, VirtualClock(loop), deadline_s)))


async def commit(commits: Commits) -> None:
    await commits.commit(7, 8)


def test_a_commit_reaches_the_service() -> None:
    script = Scripted()
    run(script, commit)
    assert script.calls == [ServiceCall("commit_transaction", {"write_pointer": 8}, 7)]


@pytest.mark.parametrize("error", [OVER, TransactionConflict("k"), NO_LEADER])
def test_a_refusal_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(Scripted(error), commit)


def test_a_visible_transaction_was_committed() -> None:
    script = Scripted(UNKNOWN, NO_LEADER, UNKNOWN, VISIBLE)
    run(script, commit)
    assert script.names == [COMMIT, SNAPSHOT, SNAPSHOT, SNAPSHOT]


def test_an_invalid_transaction_was_not_committed() -> None:
    with pytest.raises(TransactionNotInProgress):
        run(Scripted(UNKNOWN, INVALID), commit)


@pytest.mark.parametrize("snapshot", [OPEN, LATER])
def test_a_transaction_in_progress_is_committed_again(snapshot: Snapshot) -> None:
    script = Scripted(UNKNOWN, snapshot, None)
    run(script, commit)
    assert script.names == [COMMIT, SNAPSHOT, COMMIT]


def test_a_refusal_after_an_unknown_outcome_proves_nothing() -> None:
    script = Scripted(UNKNOWN, OPEN, NO_LEADER, OPEN, OVER, VISIBLE)
    run(script, commit)
    assert not script.answers


def test_a_full_disk_may_have_taken_the_commit() -> None:
    full = StorageFull("full", outcome="unknown")
    script = Scripted(full, OPEN, full, VISIBLE)
    run(script, commit)
    assert script.names == [COMMIT, SNAPSHOT, COMMIT, SNAPSHOT]
    with pytest.raises(StorageFull):
        run(Scripted(StorageFull("full")), commit)


def test_without_a_snapshot_the_outcome_stays_unknown() -> None:
    with pytest.raises(OutcomeUnknown):
        run(Scripted(UNKNOWN, *[NO_LEADER] * 100), commit)
    with pytest.raises(OutcomeUnknown):
        run(Scripted(*[UNKNOWN, OPEN] * 100), commit)


def test_a_repeated_commit_learns_the_outcome_that_was_unknown() -> None:
    async def test(commits: Commits) -> None:
        with pytest.raises(OutcomeUnknown):
            await commits.commit(7, 8)
        script.answers = [OVER, VISIBLE]
        await commits.commit(7, 8)
        script.answers = [OVER]
        with pytest.raises(TransactionNotInProgress):
            await commits.commit(7, 8)

    script = Scripted(UNKNOWN, *[NO_LEADER] * 100)
    run(script, test)


def test_a_repeated_commit_gets_the_answer_that_was_lost() -> None:
    async def test(commits: Commits) -> None:
        commits.put_in_doubt(7)
        await commits.commit(7, 8)

    run(Scripted(OVER, VISIBLE), test)
    with pytest.raises(TransactionNotInProgress):
        run(Scripted(OVER, INVALID), test)


def test_without_the_record_of_doubt_a_done_commit_is_called_not_in_progress() -> None:
    async def test(commits: Commits) -> None:
        commits.put_in_doubt(7)
        await commits.commit(7, 8)

    with in_force("not-heard"), pytest.raises(TransactionNotInProgress):
        run(Scripted(OVER, VISIBLE), test)


def test_without_a_second_commit_a_transaction_in_progress_is_called_not_in_progress() -> None:
    with in_force("in-doubt-again"), pytest.raises(TransactionNotInProgress):
        run(Scripted(UNKNOWN, OPEN, None), commit)


def test_a_repeated_commit_whose_answer_arrived_is_refused() -> None:
    with pytest.raises(TransactionNotInProgress):
        run(Scripted(OVER, VISIBLE), commit)


async def two_commit(commits: Commits, script: Scripted) -> int:
    """Commit the same transaction twice at once, and cancel the first call. Return the number of commits at the service."""
    gate = asyncio.get_running_loop().create_future()
    script.answers = [lambda: gate, None]
    first = asyncio.ensure_future(commits.commit(7, 8))
    await eventually(lambda: script.calls, lambda: "not called")
    second = asyncio.ensure_future(commits.commit(7, 8))
    first.cancel()
    await asyncio.wait((first,))
    if not gate.done():
        gate.set_result(None)
    await second
    return len(script.calls)


def test_a_second_commit_joins_the_first() -> None:
    script = Scripted()
    assert run(script, lambda commits: two_commit(commits, script)) == 1


def test_without_joining_the_transaction_is_committed_twice() -> None:
    script = Scripted()
    with in_force("one-commit"):
        assert run(script, lambda commits: two_commit(commits, script)) == 2


def test_the_oldest_commits_in_doubt_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tephra_commits, "REMEMBERED_MAX", 1)

    async def test(commits: Commits) -> None:
        commits.put_in_doubt(7)
        commits.put_in_doubt(8)
        with pytest.raises(TransactionNotInProgress):
            await commits.commit(7, 7)
        await commits.commit(8, 8)

    run(Scripted(OVER, OVER, VISIBLE), test)

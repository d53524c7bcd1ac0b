"""The transactions workload over the product's own service, in a simulated cluster with kills and pauses of nodes."""

from typing import Any

import pytest

from broker.client.transaction_publisher import TransactionPublisher
from broker.client.transactions import TransactionService
from broker.model import Snapshot
from tests.kit.seeds.plan import Fault, Plan
from tests.kit.seeds.run import Outcome, simulate

pytestmark = pytest.mark.simulation

FAULTS = (Fault("kill", 5.0, 5.0, 1), Fault("pause", 15.0, 6.0, 2))


def run() -> Outcome:
    return simulate(Plan(seed=7, minutes=0.5, workload="own-transactions", faults=FAULTS))


def test_transactions_keep_their_promises_while_nodes_are_killed_and_paused() -> None:
    outcome = run()
    assert outcome.verdict.is_valid, outcome.verdict
    assert outcome.faults == {"kill": 1, "pause": 1}
    assert {"commit.ok", "abort.ok", "rollback.ok"} <= set(outcome.verdict.counts)


def test_an_abort_without_rollback_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mutant(self: TransactionPublisher) -> bool:
        del self
        return True

    monkeypatch.setattr(TransactionPublisher, "rollback", mutant)
    assert "rolled_back" in run().verdict.names


def test_an_acknowledged_commit_that_was_not_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mutant(self: TransactionService, *_: object) -> None:
        del self

    monkeypatch.setattr(TransactionService, "commit", mutant)
    assert "lost_visible" in run().verdict.names


def test_a_write_pointer_that_is_given_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Snapshot] = []
    start = TransactionService.start

    async def mutant(self: TransactionService, **options: Any) -> Snapshot:
        if len(started) < 9:
            started.append(await start(self, **options))
        return started[-1]

    monkeypatch.setattr(TransactionService, "start", mutant)
    assert "pointer_reused" in run().verdict.names

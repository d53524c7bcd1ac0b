"""When the leader writes the state into the journal. After each snapshot it raises the floor of the journal's log."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from broker.errors import Unavailable
from broker.topics.leader import TopicLeader
from broker.transactions.service import Transactions
from broker.transactions.service_settings import TransactionSettings
from tests.kit.bench import Bench, settle

SETTINGS = TransactionSettings(snapshot_bytes=20_000)


class Floors:
    """Counts the floors that were raised, or refuses them."""

    def __init__(self) -> None:
        self.raised = 0
        self.refused = 0
        self.refuse = False

    async def more(self) -> int:
        """Return how many floors were raised since the last call, after a snapshot in progress has ended."""
        await settle()
        raised, self.raised = self.raised, 0
        return raised


@pytest.fixture
def floors(monkeypatch: pytest.MonkeyPatch) -> Floors:
    floors, real = Floors(), TopicLeader.raise_floor

    async def raise_floor(leader: TopicLeader, bound: Any) -> None:
        if floors.refuse:
            floors.refused += 1
            raise Unavailable("Not now.")
        await real(leader, bound)
        floors.raised += 1

    monkeypatch.setattr(TopicLeader, "raise_floor", raise_floor)
    return floors


async def commit(service: Transactions, number: int) -> None:
    """Commit a change set of 4 KB."""
    begun = await service.start()
    await service.can_commit(begun.transaction_id, [b"%4000d" % number])
    await service.commit(begun.transaction_id)


async def commit_nothing(service: Transactions, times: int) -> None:
    for _ in range(times):
        await service.abort((await service.start()).transaction_id)
        await settle()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_large_state_is_not_written_after_each_small_edit(
    bench: Bench, floors: Floors, restarted: bool
) -> None:
    """An old transaction keeps 80 KB of change sets, four times the bytes after which a snapshot is due."""
    service = Transactions(bench.topics.leaders, SETTINGS)
    await service.start(timeout_s=600)
    for number in range(20):
        await commit(service, number)
    assert await floors.more()
    if restarted:
        await service.close()
        await floors.more()
        bench.restart()
        service = Transactions(bench.topics.leaders, SETTINGS)
    await commit_nothing(service, 20)
    assert await floors.more() == 0
    for number in range(100, 125):
        await commit(service, number)
    assert await floors.more() == 1, "the edits are larger than the last snapshot"
    await service.close()


async def test_the_bytes_of_edits_count_through_restarts(bench: Bench, floors: Floors) -> None:
    """Each incarnation writes 12 KB, and ends without a last snapshot."""
    for incarnation in range(4):
        service = Transactions(bench.topics.leaders, SETTINGS)
        for each in range(3):
            await commit(service, 10 * incarnation + each)
        await settle()
        bench.restart()
    assert await floors.more() == 2


async def test_after_a_failed_snapshot_the_next_one_comes_sooner_but_not_at_once(
    bench: Bench, floors: Floors
) -> None:
    service = Transactions(bench.topics.leaders, SETTINGS)
    floors.refuse = True
    with structlog.testing.capture_logs() as lines:
        for number in range(5):
            await commit(service, number)
        await commit_nothing(service, 5)
    assert [line["error"] for line in lines if "error" in line] == ["Not now."]
    assert floors.refused == 1
    floors.refuse = False
    for number in range(10, 13):
        await commit(service, number)
    assert await floors.more() == 1
    await service.close()

"""When the leader writes the state into the journal. After each snapshot it raises the floor of the journal's log."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from broker.errors import Unavailable
from broker.topics.leader import TopicLeader
from broker.transactions import manager, snapshots
from broker.transactions.edits import Aborted, Invalidated, Reset, Started
from broker.transactions.service import Transactions
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState
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


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_snapshot_has_the_invalid_transactions_that_are_removed_meanwhile(is_reset: bool) -> None:
    state = ServiceState()
    for edit in (Reset(10), Started(11, False, 0, 1, ""), Invalidated((11,), True)):
        state.apply(state.number + 1, edit)
    state.gone = {}
    parts = snapshots.encode_parts(snapshots.frozen(state))
    restored = ServiceState()
    snapshots.take_part(restored, next(parts))
    state.apply(state.number + 1, Reset(20) if is_reset else Aborted(11))
    for part in parts:
        snapshots.take_part(restored, part)
    assert list(restored.invalids) == list(restored.ended) == [11]


async def test_what_ends_at_once_ends_in_bounded_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TIMED_OUT_AT_ONCE", 2)
    monkeypatch.setattr(manager, "TRUNCATED_AT_ONCE", 2)
    service = Transactions(bench.topics.leaders)
    for _ in range(5):
        await service.start(timeout_s=1)
    bench.clock.step(5_000)
    await bench.clock.sleep(5)
    led = service._journal.led
    assert led is not None
    assert await service.expire(led) == 5
    assert await service.truncate_invalid_before(bench.clock.now_ms()) == 5
    await service.close()


async def test_a_reset_frees_the_state_before_in_steps(bench: Bench) -> None:
    service = Transactions(bench.topics.leaders)
    await service.invalidate((await service.start()).transaction_id)
    state = service.state
    assert state is not None
    ended = state.ended
    assert await service.reset() == (0, 1)
    assert not ended
    await service.close()

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from broker.errors import (
    BadRequest,
    Fenced,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotInProgress,
    Unavailable,
)
from broker.topics.reserved import TRANSACTIONS
from broker.transactions.service import Transactions
from broker.transactions.service_settings import TransactionSettings
from tests.kit.bench import Bench, Gate, done_but, failing, settle


class Service(Transactions):
    def __init__(self, bench: Bench, **settings: float) -> None:
        super().__init__(bench.topics.leaders, TransactionSettings(**settings))  # type: ignore[arg-type]
        self.bench = bench


@pytest.fixture
async def service(bench: Bench) -> AsyncIterator[Service]:
    made = Service(bench)
    yield made
    await made.close()


async def again(service: Service) -> Service:
    """Return the service of the next incarnation of the node."""
    service.bench.restart()
    return Service(service.bench)


async def test_committed_transactions_are_visible_and_those_in_progress_are_not(
    service: Service,
) -> None:
    first, second = await service.start(), await service.start()
    assert list(second.in_progress) == [first.transaction_id]
    await service.can_commit(first.transaction_id, [b"a"])
    await service.commit(first.transaction_id)
    seen = await service.snapshot()
    assert seen.is_visible(first.transaction_id)
    assert not seen.is_visible(second.transaction_id)
    assert not second.is_visible(first.transaction_id)
    with pytest.raises(TransactionNotInProgress):
        await service.commit(first.transaction_id)
    await service.can_commit(second.transaction_id, [b"b"])
    with pytest.raises(TransactionConflict):
        await service.can_commit(second.transaction_id, [b"a"])


async def test_a_look_for_the_journal_that_ends_after_its_first_transaction_changes_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, looked = service.bench.topics.leaders.registry, Gate()
    monkeypatch.setattr(registry, "read", partial(looked.after, registry.read))
    looking = asyncio.ensure_future(service.check_in_progress(7, None))
    await looked.reached.wait()
    monkeypatch.undo()
    await service.start()
    looked.open()
    with pytest.raises(TransactionNotInProgress):
        await looking
    service.bench.leader(TRANSACTIONS).end(Fenced("over"))
    assert service.state is None
    with pytest.raises(TransactionNotInProgress):
        await service.check_in_progress(7, None)


async def test_looks_for_the_journal_at_one_time_agree(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, looked = service.bench.topics.leaders.registry, Gate()
    monkeypatch.setattr(registry, "read", partial(looked.after, registry.read))
    looking = [asyncio.ensure_future(service.check_in_progress(7, None)) for _ in range(3)]
    await looked.reached.wait()
    looked.open()
    await asyncio.gather(*looking)
    await service.check_in_progress(7, None)


async def test_each_transaction_is_counted_by_its_outcome(service: Service) -> None:
    started = [await service.start(long=number == 1) for number in range(5)]
    first, long, third, fourth, _ = [each.transaction_id for each in started]
    await service.abort(first)
    await service.abort(first)
    await service.abort(long)
    await service.can_commit(third, [b"a"])
    await service.commit(third)
    with pytest.raises(TransactionConflict):
        await service.can_commit(fourth, [b"a"])
    assert service.counts == {
        "started": 5,
        "committed": 1,
        "aborted": 1,
        "invalidated": 1,
        "timed_out": 0,
        "conflicts": 1,
    }


async def test_the_next_incarnation_knows_all_answered_requests(service: Service) -> None:
    one, two, three = [await service.start(client=name) for name in ("one", "two", "three")]
    await service.can_commit(one.transaction_id, [b"a"])
    await service.commit(one.transaction_id)
    await service.invalidate(two.transaction_id)
    checked = await service.checkpoint(three.transaction_id)
    before = await service.listing()
    seen = await service.snapshot()
    later = await again(service)
    after = await later.listing()
    assert {**after, "epoch": 0} == {**before, "epoch": 0}
    assert await later.snapshot() == seen
    assert (await later.start()).transaction_id > checked.write_pointer
    with pytest.raises(TransactionConflict):
        await later.can_commit(three.transaction_id, [b"a"])
    assert (await later.show(two.transaction_id))["state"] == "invalid"
    with pytest.raises(NotFound):
        await later.show(1)


async def test_an_answer_waits_for_the_disk(service: Service) -> None:
    await service.snapshot()
    gate = Gate()
    service.bench.table.on("append", gate.before)
    starting = asyncio.ensure_future(service.start())
    await gate.reached.wait()
    looking = asyncio.ensure_future(service.listing())
    await settle()
    assert not starting.done()
    assert not looking.done()
    gate.open()
    assert (await looking)["in_progress"][0]["id"] == str((await starting).transaction_id)


async def test_an_append_that_certainly_failed_leaves_nothing_behind(service: Service) -> None:
    begun = await service.start()
    service.bench.table.on("append", failing(Unavailable("down")))
    with pytest.raises(Unavailable):
        await service.commit(begun.transaction_id)
    await service.commit(begun.transaction_id)
    assert (await service.snapshot()).is_visible(begun.transaction_id)


async def test_a_commit_whose_outcome_is_unknown_is_found_by_the_next_snapshot(
    service: Service,
) -> None:
    begun = await service.start()
    service.bench.table.on("append", done_but(RuntimeError("cut")))
    with pytest.raises(OutcomeUnknown):
        await service.commit(begun.transaction_id)
    assert (await service.snapshot()).is_visible(begun.transaction_id)


async def test_time_outs_make_invalid_and_an_abort_makes_visible(service: Service) -> None:
    begun = await service.start(timeout_s=5)
    await service.bench.pass_ms(16_000)
    with pytest.raises(TransactionNotInProgress, match="invalid"):
        await service.commit(begun.transaction_id)
    assert (await service.snapshot()).is_invalid(begun.transaction_id)
    await service.abort(begun.transaction_id)
    assert (await service.snapshot()).is_visible(begun.transaction_id)


async def test_snapshots_bound_the_replay(bench: Bench) -> None:
    service = Service(bench, snapshot_edits=20)
    kept = await service.start(client="kept", timeout_s=600)
    for number in range(60):
        begun = await service.start()
        await service.can_commit(begun.transaction_id, [b"key %d" % number])
        await service.commit(begun.transaction_id)
    await service.close()
    seen = await service.snapshot()
    later = await again(service)
    assert await later.snapshot() == seen
    with pytest.raises(TransactionConflict):
        await later.can_commit(kept.transaction_id, [b"key 59"])
    with pytest.raises(TransactionConflict):
        await later.can_commit(kept.transaction_id, [b"key 0"])


@pytest.mark.parametrize("step_ms", [-3_600_000, -10 * 365 * 24 * 3_600_000])
@pytest.mark.parametrize("anew", [False, True])
async def test_a_time_out_passes_although_the_clock_steps_back(
    service: Service, step_ms: int, anew: bool
) -> None:
    """Else the readers of a topic would stand still for as long as the clock was ahead."""
    begun = (await service.start(timeout_s=50)).transaction_id
    await service.bench.pass_ms(40_000)
    service.bench.clock.step(step_ms)
    if anew:
        service = await again(service)
        assert (await service.show(begun))["state"] == "in_progress"
        await service.bench.pass_ms(40_000)
    assert (await service.show(begun))["state"] == "in_progress"
    await service.bench.pass_ms(45_000)
    assert (await service.show(begun))["state"] == "invalid"


@pytest.mark.parametrize("timeout_s", [0, -1, 601, float("nan"), float("inf")])
async def test_time_outs_are_bounded(service: Service, timeout_s: float) -> None:
    with pytest.raises(BadRequest, match="timeout_s"):
        await service.start(timeout_s=timeout_s)


async def test_many_pointers_are_truncated_in_several_steps(service: Service) -> None:
    await service.snapshot()
    begun = [(await service.start()).transaction_id for _ in range(10)]
    for transaction in begun:
        await service.invalidate(transaction)
    ids = [*range(1, 5000), *begun[:5], *range(5000, 9000), *begun[5:]]
    assert await service.truncate_invalid(ids) == 10
    assert await service.truncate_invalid(ids) == 0
    assert await service.truncate_invalid([]) == 0
    assert await service.invalid_count() == 0

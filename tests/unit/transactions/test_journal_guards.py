"""Guards of the journal that need two leaders, or a failure at one moment. Each is tried with and without its guard."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from broker.errors import (
    BadName,
    OutcomeUnknown,
    StorageCorrupt,
    TransactionNotInProgress,
    Unavailable,
)
from broker.model import Snapshot, check_topic
from broker.storage.keys import LogId, topic_prefix
from broker.storage.log import Logs
from broker.storage.ownpage import PageBounds
from broker.storage.table import Space
from broker.testing.mutants import in_force
from broker.testing.virtual_time import pass_time
from broker.topics.reserved import TRANSACTIONS
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from broker.transactions.service_settings import TransactionSettings
from tests.kit.bench import Bench, Gate, Hook, done_but, settle


@pytest.fixture
async def service(bench: Bench) -> AsyncIterator[Transactions]:
    made = Transactions(bench.topics.leaders)
    yield made
    await made.close()


def rival(bench: Bench) -> Transactions:
    """Return the service of another node over the same storage, which claims as soon as it is asked."""
    around = Surroundings(
        Logs(bench.memory, bench.clock), bench.clock, bench.around.settings, owner="rival"
    )
    return Transactions(Topics(around, bench.records).leaders)


async def seen_by_a_leader_that_was_fenced(bench: Bench, service: Transactions) -> Snapshot:
    """Ask one leader for the visible pointers after another leader has committed."""
    bench.memory.is_alone = False
    begun = await service.start()
    other = rival(bench)
    await other.commit(begun.transaction_id)
    await other.close()
    seen = await service.snapshot()
    assert seen.is_visible(begun.transaction_id), "the answer is old"
    return seen


async def test_a_read_shows_the_edits_that_another_leader_answered(
    bench: Bench, service: Transactions
) -> None:
    await seen_by_a_leader_that_was_fenced(bench, service)


async def test_a_node_that_lost_the_service_frees_the_state(bench: Bench) -> None:
    bench.memory.is_alone = False
    service = Transactions(bench.topics.leaders)
    await service.start()
    assert service.state is not None
    state = weakref.ref(service.state)
    other = rival(bench)
    await other.start()
    await pass_time(3 * service.settings.sweep_interval_s)
    gc.collect()
    assert state() is None
    await other.close()
    await service.close()


async def test_without_a_proof_a_read_is_old(bench: Bench, service: Transactions) -> None:
    with in_force("read-proof"), pytest.raises(AssertionError, match="the answer is old"):
        await seen_by_a_leader_that_was_fenced(bench, service)


async def test_a_refusal_is_proven_too(bench: Bench, service: Transactions) -> None:
    bench.memory.is_alone = False
    await service.snapshot()
    begun = await rival(bench).start()
    await service.commit(begun.transaction_id)


def refused_behind(gate: Gate) -> Hook:
    """Return a call that waits, and then is refused without having done anything."""

    async def hook(*_: object, **__: object) -> None:
        gate.reached.set()
        await gate.opened.wait()
        raise Unavailable("down")

    return hook


async def two_large_edits_of_which_the_first_fails(bench: Bench, service: Transactions) -> None:
    """Put two appends on their way at once, and refuse the first."""
    one, two = await service.start(), await service.start()
    gate = Gate()
    bench.table.on("append", refused_behind(gate))
    changes = [bytes([number]) * 1000 for number in range(60)]
    first = asyncio.ensure_future(service.can_commit(one.transaction_id, changes))
    await gate.reached.wait()
    second = asyncio.ensure_future(service.can_commit(two.transaction_id, changes))
    await settle()
    gate.open()
    with pytest.raises(Unavailable):
        await first
    await second
    assert (await service.show(one.transaction_id))["changes"] == 0
    assert (await service.show(two.transaction_id))["changes"] == 60


async def test_no_edit_is_stored_behind_one_that_failed(
    bench: Bench, service: Transactions
) -> None:
    await two_large_edits_of_which_the_first_fails(bench, service)


async def test_without_the_guard_an_edit_behind_a_failed_one_is_stored(
    bench: Bench, service: Transactions
) -> None:
    with (
        in_force("nothing-behind-a-failed-edit"),
        pytest.raises((StorageCorrupt, AssertionError)),
    ):
        await two_large_edits_of_which_the_first_fails(bench, service)


async def leave_one(bench: Bench) -> None:
    """Begin a transaction and let its time pass, over a takeover."""
    before = Transactions(bench.topics.leaders)
    begun = await before.start(timeout_s=1)
    bench.restart()
    await bench.pass_ms(2000)
    after = Transactions(bench.topics.leaders)
    await after.snapshot()
    await settle()  # Long before the next sweep would be due.
    assert (await after.snapshot()).is_invalid(begun.transaction_id), "it is in progress"
    await after.close()


async def test_time_outs_are_checked_at_once_after_a_takeover(bench: Bench) -> None:
    await leave_one(bench)


async def test_without_time_outs_it_stays_in_progress(bench: Bench) -> None:
    with in_force("time-outs"), pytest.raises(AssertionError, match="it is in progress"):
        await leave_one(bench)


async def test_a_start_whose_answer_was_lost_ends_by_its_time_out(
    bench: Bench, service: Transactions
) -> None:
    await service.snapshot()
    bench.table.on("append", done_but(RuntimeError("cut")))
    with pytest.raises(OutcomeUnknown):
        await service.start(timeout_s=5)
    seen = await service.snapshot()
    assert len(seen.in_progress) == 1
    await bench.pass_ms(16_000)
    assert list((await service.snapshot()).invalids) == list(seen.in_progress)


async def test_a_waiting_refusal_is_decided_again_if_its_reason_failed(
    bench: Bench, service: Transactions
) -> None:
    begun = await service.start()
    gate = Gate()
    bench.table.on("append", refused_behind(gate))
    first = asyncio.ensure_future(service.commit(begun.transaction_id))
    await gate.reached.wait()
    second = asyncio.ensure_future(service.commit(begun.transaction_id))
    await settle()
    assert not second.done(), "it was refused by a commit that is not on disk"
    gate.open()
    with pytest.raises(Unavailable):
        await first
    await second
    with pytest.raises(TransactionNotInProgress):
        await service.commit(begun.transaction_id)


async def test_pointers_rise_though_the_clock_steps_back(bench: Bench) -> None:
    given = []
    for step_ms in (0, -5000, 3000, -60_000):
        bench.clock.step(step_ms)
        service = Transactions(bench.topics.leaders)
        given += [(await service.start()).transaction_id for _ in range(3)]
        given.append((await service.checkpoint(given[-1])).write_pointer)
        await service.close()
        bench.restart()
    assert given == sorted(set(given))


async def test_a_cancelled_caller_does_not_cancel_its_edit(
    bench: Bench, service: Transactions
) -> None:
    begun = await service.start()
    gate = Gate()
    bench.table.on("append", gate.before)
    committing = asyncio.ensure_future(service.commit(begun.transaction_id))
    await gate.reached.wait()
    committing.cancel()
    await settle()
    gate.open()
    assert (await service.snapshot()).is_visible(begun.transaction_id)


@pytest.mark.slow
async def test_the_next_replay_is_short(bench: Bench) -> None:
    service = Transactions(bench.topics.leaders, TransactionSettings(snapshot_edits=50))
    for _ in range(2000):
        await service.abort((await service.start()).transaction_id)
    await service.close()
    bench.restart()
    after = Transactions(bench.topics.leaders)
    await after.snapshot()
    assert bench.table.calls.count("cells") <= 6
    await after.close()


def test_no_request_can_name_the_journal() -> None:
    with pytest.raises(BadName):
        check_topic(*TRANSACTIONS)


async def test_topics_go_on_while_the_journal_hangs(bench: Bench, service: Transactions) -> None:
    await bench.create()
    hanging = Gate()
    journal = topic_prefix(TRANSACTIONS)
    real = bench.memory.change

    async def change(space: Space, row: bytes, *arguments: Any, **named: Any) -> bool:
        if row.startswith(journal):
            await hanging.opened.wait()
        return await real(space, row, *arguments, **named)

    bench.memory.change = change  # type: ignore[method-assign]
    starting = asyncio.ensure_future(service.start())
    await settle()
    for number in range(5):
        await bench.publish(b"%d" % number)
        await bench.publish(b"of a transaction", pointer=1000 + number)
        assert len(await bench.poll()) == 2 * (number + 1)
    assert not starting.done()
    hanging.open()
    assert (await starting).transaction_id


async def test_a_sweep_removes_the_edits_that_a_snapshot_replaced(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=64)
    bench.restart(sweep_margin_ms=0)
    service = Transactions(bench.topics.leaders, TransactionSettings(snapshot_edits=200))
    kept = await service.start(timeout_s=600)
    for _ in range(400):
        await service.abort((await service.start()).transaction_id)
    await service.close()
    root = await bench.logs.root(LogId(TRANSACTIONS, 1))
    assert root is not None
    assert root.floor > root.gone
    report = await bench.sweeper.sweep()
    assert report.rows > 500, "messages below the floor stay"
    assert report.skipped == 0
    bench.restart()
    later = Transactions(bench.topics.leaders)
    assert list((await later.snapshot()).in_progress) == [kept.transaction_id]
    await later.close()


async def test_a_snapshot_stops_at_a_handoff(bench: Bench) -> None:
    """The snapshot has more parts than the leader queues at once."""
    service = Transactions(bench.topics.leaders, TransactionSettings(snapshot_edits=29))
    begun = [await service.start() for _ in range(20)]
    for number, each in enumerate(begun[:8]):
        await service.can_commit(each.transaction_id, [bytes([number]) * 60_000])
    gate = Gate()
    bench.table.on("append", passed, gate.before)
    await service.can_commit(begun[9].transaction_id, [bytes(60_000)])
    await gate.reached.wait()
    bench.topics.leaders.state(TRANSACTIONS).leader = None  # As a handoff begins.
    with structlog.testing.capture_logs() as lines:
        gate.open()
        await settle()
    assert [line["error"] for line in lines] == ["The journal is being handed over."]


async def passed(real: Hook, *arguments: Any, **named: Any) -> Any:
    """Make the real call."""
    return await real(*arguments, **named)

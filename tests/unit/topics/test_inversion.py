"""The clean-up of messages of invalid transactions, and pruning: no message of a pruned pointer is seen.

test_inversion_runs.py has the same promise in random runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from broker.errors import (
    Fenced,
    OutcomeUnknown,
    StorageCorrupt,
    TransactionTooOld,
)
from broker.model import POINTERS_PER_MS, Poll, PublishRequest, Snapshot
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.storage.table import NotWritten, WriteUnknown
from broker.testing.mutants import in_force
from broker.topics import settlement
from broker.topics.inversion import Inverting
from broker.topics.settlement import read_pass
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from tests.kit.bench import TOPIC, Bench, Gate, failing, settle
from tests.unit.topics.cleanup_world import (
    LIFE_S,
    MARGIN_MS,
    OTHER,
    SETTLED_MS,
    TIMEOUT_MS,
    World,
)


@pytest.fixture
def world(bench: Bench) -> World:
    return World(bench)


async def invalid_one(world: World, ttl_s: int = 10 * LIFE_S) -> int:
    """Publish under a pointer that times out, with others around it; return it when it is settled."""
    await world.bench.create(ttl_s=ttl_s)
    for _ in range(5):
        await world.publish(None)
    pointer = world.begin()
    committed = world.begin()
    for each in (pointer, None, committed, pointer):
        await world.publish(each)
    world.model.commit(world.now_ms, committed)
    await world.settle()
    world.model.expire(world.now_ms)
    return pointer


async def test_a_pass_hides_exactly_the_messages_of_invalid_transactions(
    world: World,
) -> None:
    pointer = await invalid_one(world)
    report = await world.sweeper.sweep()
    assert (report.inverted, report.skipped) == (1, 0)
    plan, removed = await world.pruning.prune()
    assert (list(plan.prunable), removed) == ([pointer], 1)
    shown = await world.shown()
    assert str(pointer) not in shown
    assert len(shown) == 7
    # A poll without a transaction still shows all messages.
    assert len(await world.bench.payloads()) == 9


async def test_stored_messages_of_invalid_transactions_are_hidden_too(world: World) -> None:
    await world.bench.create(ttl_s=10 * LIFE_S)
    pointer = world.begin()
    await world.bench.stored(pointer, b"stored")
    await world.publish(pointer)
    await world.bench.publish(pointer=pointer)
    only_stored = world.begin()
    await world.bench.stored(only_stored, b"never published")
    await world.settle()
    await world.sweeper.sweep()
    plan, _ = await world.pruning.prune()
    assert list(plan.prunable) == [pointer, only_stored]
    assert await world.shown() == []


async def test_a_pass_without_new_invalid_transactions_reads_and_writes_nothing(
    world: World,
) -> None:
    await invalid_one(world)
    await world.sweeper.sweep()
    world.bench.table.calls.clear()
    await world.sweeper.sweep()
    assert "columns" not in world.bench.table.calls
    assert "record" not in world.bench.table.calls


async def test_a_later_pass_reads_only_pages_that_can_have_its_pointers(world: World) -> None:
    await invalid_one(world)
    await world.sweeper.sweep()
    await world.bench.pass_ms(settlement.PASS_EVERY_MS)
    pointer = world.begin()
    await world.publish(pointer)
    await world.settle()
    for _ in range(9):
        await world.publish(None)
    world.bench.table.calls.clear()
    assert (await world.sweeper.sweep()).inverted == 1
    # The page with the pointer, the open page, and the pages that were open at the pass before.
    assert world.bench.table.calls.count("columns") <= 5
    world.restart()
    await world.bench.pass_ms(settlement.PASS_EVERY_MS)
    later = world.begin()
    await world.publish(later)
    await world.settle()
    assert (await world.sweeper.sweep()).inverted == 1
    await world.pruning.prune()
    assert not {str(pointer), str(later)} & set(await world.shown())


async def test_a_released_topic_is_not_claimed_for_later_transactions(
    world: World,
) -> None:
    await invalid_one(world)
    await world.sweeper.sweep()
    await world.bench.topics.close()
    world.restart()
    await world.bench.pass_ms(settlement.PASS_EVERY_MS)
    elsewhere = world.begin()
    await world.settle()
    world.bench.table.calls.clear()
    await world.sweeper.sweep()
    assert not {"head", "root", "append"} & set(world.bench.table.calls)
    plan, removed = await world.pruning.prune()
    assert plan.prunable[-1] == elsewhere
    assert removed == 2
    # The next leader reads the announcement, so its clock does not matter.
    world.bench.clock.step(-2 * SETTLED_MS)
    with pytest.raises(TransactionTooOld):
        await world.publish(elsewhere)


async def test_without_the_transaction_service_only_the_clean_up_waits(world: World) -> None:
    await invalid_one(world)
    world.is_down = True
    report = await world.sweeper.sweep()
    assert (report.inverted, report.skipped, report.topics) == (0, 0, 1)
    assert await read_pass(world.bench.records, TOPIC) == (None, None)
    world.is_down = False
    assert (await world.sweeper.sweep()).inverted == 1


async def test_a_pass_that_fails_does_not_count(world: World) -> None:
    pointer = await invalid_one(world)
    world.bench.table.on("rolled", *[failing(NotWritten("gone"))] * 10_000)
    report = await world.sweeper.sweep()
    assert report.skipped == 1
    plan = await world.pruning.plan()
    assert list(plan.prunable) == []
    assert plan.unpassed is not None
    assert plan.unpassed.topic == TOPIC
    world.bench.table.forget_hooks()
    await world.sweeper.sweep()
    await world.pruning.prune()
    assert str(pointer) not in await world.shown()


# The reasons why a plan prunes no more.


async def test_a_plan_names_the_topic_that_was_not_passed(world: World) -> None:
    pointer = await invalid_one(world)
    await world.sweeper.sweep()
    await world.bench.create(OTHER)
    plan = await world.pruning.plan()
    assert (plan.invalid, list(plan.prunable), plan.oldest_left) == (1, [], pointer)
    assert plan.unpassed is not None
    assert (plan.unpassed.topic, plan.unpassed.generation) == (OTHER, 1)
    await world.sweeper.sweep()
    assert list((await world.pruning.plan()).prunable) == [pointer]


async def test_a_topic_that_was_created_anew_is_passed_anew(world: World) -> None:
    await invalid_one(world)
    await world.sweeper.sweep()
    await world.bench.topics.delete(TOPIC)
    assert (await world.pruning.plan()).unpassed is None
    await world.bench.create()
    plan = await world.pruning.plan()
    assert plan.unpassed is not None
    assert plan.unpassed.generation == 2


async def test_a_plan_names_the_transaction_in_progress_or_the_settling_time(world: World) -> None:
    await world.bench.create()
    older = world.begin(10 * SETTLED_MS)
    pointer = world.begin()
    await world.publish(pointer)
    await world.bench.pass_ms(TIMEOUT_MS + 1)
    await world.sweeper.sweep()
    plan = await world.pruning.plan()
    assert plan.settled_ms == pointer // POINTERS_PER_MS + LIFE_S * 1000 + MARGIN_MS
    await world.settle()
    await world.sweeper.sweep()
    plan = await world.pruning.plan()
    assert (list(plan.prunable), plan.in_progress) == ([], older)
    world.model.commit(world.now_ms, older)
    await world.sweeper.sweep()
    assert list((await world.pruning.plan()).prunable) == [pointer]


async def test_a_restored_service_needs_a_new_pass(world: World) -> None:
    pointer = await invalid_one(world)
    await world.sweeper.sweep()
    world.model.invalid.add(pointer + 1)  # As a service that was restored from an older copy.
    plan = await world.pruning.plan()
    assert list(plan.prunable) == []
    await world.publish(None)
    await world.sweeper.sweep()
    assert list((await world.pruning.plan()).prunable) == [pointer, pointer + 1]


# Guards: for each one an order of events that needs it, with the guard and without it.


async def pruned_before_a_sweep(world: World) -> list[str]:
    pointer = await invalid_one(world)
    await world.pruning.prune()
    return [payload for payload in await world.shown() if payload == str(pointer)]


async def held_and_held_again(world: World) -> list[str]:
    """Return the messages that a running transaction is shown only after a sweep."""
    await world.bench.create(ttl_s=10 * LIFE_S)
    runs = world.begin(10 * SETTLED_MS)
    pointer = world.begin()
    await world.publish(pointer)
    await world.publish(None)
    mine = world.model.look(world.now_ms)
    mine = Snapshot(
        transaction_id=runs,
        read_pointer=runs - 1,
        in_progress=[*mine.in_progress],
        write_pointer=runs,
    )
    before = await world.shown(mine)
    await world.settle()
    world.model.expire(world.now_ms)
    await world.sweeper.sweep()
    return (await world.shown(mine))[len(before) :]


async def published_within_its_life(world: World) -> None:
    """Publish late, but within the longest life, after a sweep."""
    await world.bench.create(ttl_s=10 * LIFE_S)
    await world.publish(None)
    # The pointer belongs to a service that this broker does not know.
    foreign = world.now_ms * POINTERS_PER_MS
    await world.bench.pass_ms(1)
    world.begin()
    await world.bench.pass_ms(TIMEOUT_MS + 1)
    await world.sweeper.sweep()
    await world.publish(foreign)


async def published_by_a_clock_that_went_back(world: World, *, again: bool = True) -> list[str]:
    pointer = await invalid_one(world)
    await world.sweeper.sweep()
    await world.pruning.prune()
    if again:
        await world.bench.topics.close()
        world.restart()
    world.bench.clock.step(-2 * SETTLED_MS)
    with contextlib.suppress(TransactionTooOld):
        await world.publish(pointer)
    world.bench.clock.step(2 * SETTLED_MS)
    return [payload for payload in await world.shown() if payload == str(pointer)]


async def pruned_by_another_service(world: World) -> list[str]:
    pointer = await invalid_one(world)
    hidden = world.model.invalid
    world.model.invalid = {pointer + 5}
    await world.sweeper.sweep()
    world.model.invalid = {*hidden}
    await world.pruning.prune()
    return [payload for payload in await world.shown() if payload == str(pointer)]


async def test_no_pointer_is_pruned_before_a_pass(world: World) -> None:
    assert await pruned_before_a_sweep(world) == []


async def test_without_the_check_of_topics_a_pruned_message_is_seen(world: World) -> None:
    with in_force("prune-before-sweep"):
        assert await pruned_before_a_sweep(world) != []


async def test_a_pass_shows_no_new_message_to_a_running_transaction(world: World) -> None:
    assert await held_and_held_again(world) == []


async def test_without_the_check_of_running_transactions_a_pass_shows_one_a_new_message(
    world: World,
) -> None:
    with in_force("in-progress-below-the-bound"):
        assert await held_and_held_again(world) != []


async def test_a_transaction_may_publish_through_its_longest_life(world: World) -> None:
    await published_within_its_life(world)


async def test_without_the_margin_a_publish_within_the_longest_life_is_refused(
    world: World,
) -> None:
    with in_force("settled-by-age"), pytest.raises(TransactionTooOld):
        await published_within_its_life(world)


@pytest.mark.parametrize("again", [False, True])
async def test_no_clock_lets_a_pruned_pointer_publish(world: World, again: bool) -> None:
    assert await published_by_a_clock_that_went_back(world, again=again) == []


async def test_without_the_announcement_a_clock_lets_a_pruned_pointer_publish(world: World) -> None:
    with in_force("announce"):
        assert await published_by_a_clock_that_went_back(world) != []


async def test_a_pass_counts_only_for_its_transaction_service(world: World) -> None:
    assert await pruned_by_another_service(world) == []


async def test_without_the_fingerprint_a_pass_counts_for_another_service(world: World) -> None:
    with in_force("fingerprint"):
        assert await pruned_by_another_service(world) != []


async def passed_by_a_leader_of_before(world: World) -> list[str]:
    """Let a former leader pass a topic that another node has claimed and published to."""
    bench = world.bench
    bench.memory.is_alone = False
    await bench.create(ttl_s=10 * LIFE_S)
    await world.publish(None)
    around = Surroundings(
        Logs(bench.memory, bench.clock, bounds=bench.bounds),
        bench.clock,
        bench.around.settings,
        owner="another",
    )
    other = Topics(around, Records(around.logs.resolver))
    for _ in range(5):
        await other.publish(TOPIC, PublishRequest(None, [b"None"]))
    pointer = world.begin()
    await other.publish(TOPIC, PublishRequest(pointer, [str(pointer).encode()]))
    await world.settle()
    world.model.expire(world.now_ms)
    # A whole sweep would compare clocks first, and would notice the claim by that.
    inverting = Inverting(bench.topics.leaders, world.snapshot)
    await inverting.begin()
    with contextlib.suppress(Fenced):
        await inverting.clean(await bench.topics.registry.get(TOPIC))
    await world.pruning.prune()
    poll = Poll(snapshot=world.model.look(world.now_ms))
    stream = await other.poll(TOPIC, poll)
    shown = [message.payload.decode() async for some in stream.messages() for message in some]
    await other.close()
    return [payload for payload in shown if payload == str(pointer)]


async def test_a_pass_of_a_former_leader_does_not_count(world: World) -> None:
    assert await passed_by_a_leader_of_before(world) == []


async def test_without_the_last_change_a_pass_of_a_former_leader_counts(world: World) -> None:
    with in_force("end-inverting"):
        assert await passed_by_a_leader_of_before(world) != []


async def stored_after_the_pass(world: World) -> list[str]:
    """Let a publish wait in the queue, behind a slow one, until its transaction is settled and passed."""
    bench = world.bench
    await bench.create(ttl_s=10 * LIFE_S)
    await world.publish(world.begin())
    gate = Gate()
    bench.table.on("append", gate.before)
    slow = asyncio.ensure_future(world.publish(None))
    await gate.reached.wait()
    pointer = world.begin()
    late = asyncio.ensure_future(world.publish(pointer))
    await world.settle()
    world.model.expire(world.now_ms)
    sweeping = asyncio.ensure_future(world.sweeper.sweep())
    await settle()
    gate.open()
    await asyncio.wait({slow, late, sweeping})
    late.exception()
    await world.pruning.prune()
    return [payload for payload in await world.shown() if payload == str(pointer)]


async def test_a_publish_in_the_queue_is_not_stored_after_a_pass(world: World) -> None:
    assert await stored_after_the_pass(world) == []


async def test_without_the_leaders_refusal_a_queued_publish_is_stored_after_a_pass(
    world: World,
) -> None:
    with in_force("refuse"):
        assert await stored_after_the_pass(world) != []


async def created_anew_after_the_pass(world: World) -> list[str]:
    """Let a clean-up pass a topic, and its next generation take a publish of that transaction before a clean-up."""
    pointer = await invalid_one(world)
    world.bench.clock.step(-SETTLED_MS)  # The transaction is young for the brokers, by their clock.
    await world.bench.topics.delete(TOPIC)
    await world.bench.create(ttl_s=10 * LIFE_S)
    await world.publish(pointer)
    record, version = await read_pass(world.bench.records, TOPIC)
    assert record is None
    told = settlement.fingerprint([pointer])
    await settlement.put_pass(
        world.bench.records, TOPIC, version, settlement.SettlingRecord(1, 0, pointer + 1, told)
    )
    world.bench.clock.step(SETTLED_MS)
    await world.pruning.prune()
    return [payload for payload in await world.shown() if payload == str(pointer)]


async def test_a_pass_counts_for_its_own_generation(world: World) -> None:
    assert await created_anew_after_the_pass(world) == []


async def test_without_the_generation_a_pass_counts_for_the_next_generation(world: World) -> None:
    with in_force("own-generation"):
        assert await created_anew_after_the_pass(world) != []


async def stored_a_day_after_it_was_sent(world: World) -> list[str]:
    """Let an append get no answer, and be applied long after its leader has given up."""
    bench = world.bench
    bench.memory.is_alone = False
    await invalid_one(world)
    await world.sweeper.sweep()
    await bench.pass_ms(settlement.PASS_EVERY_MS)
    sent: list[Any] = []

    async def unanswered(real: Any, *arguments: Any, **named: Any) -> bool:
        sent[:] = [real, arguments, named]
        raise WriteUnknown("the answer was lost")

    pointer = world.begin()
    bench.table.on("append", *[unanswered] * 10_000)
    with pytest.raises(OutcomeUnknown):
        await world.publish(pointer)
    bench.table.forget_hooks()
    await world.settle()
    world.model.expire(world.now_ms)
    # Without the other work of a sweep, for which it would claim the topic.
    inverting = Inverting(bench.topics.leaders, world.snapshot)
    await inverting.begin()
    await inverting.clean(await bench.topics.registry.get(TOPIC))
    plan, _ = await world.pruning.prune()
    assert pointer in plan.prunable
    real, arguments, named = sent
    await real(*arguments, **named)
    return [payload for payload in await world.shown() if payload == str(pointer)]


async def test_a_pass_fences_an_append_that_lands_late(world: World) -> None:
    assert await stored_a_day_after_it_was_sent(world) == []


async def test_without_the_check_of_the_owner_a_late_append_is_seen(world: World) -> None:
    with in_force("let-go"):
        assert await stored_a_day_after_it_was_sent(world) != []


# Decisions.


@pytest.mark.parametrize(
    ("invalids", "in_progress", "read_pointer", "bound"),
    [
        ([], [], 5_000_000, 5_000_001),
        ([7_000_000], [], 5_000_000, 7_000_001),
        ([7_000_000], [6_000_000], 5_000_000, 6_000_000),
        ([7_000_000], [8_000_000], 9_000_000, 8_000_000),
        ([50_000_000], [], 60_000_000, 10_000_000),
        ([50_000_000], [60_000_000], 40_000_000, 10_000_000),
    ],
)
def test_the_bound_lies_below_all_unsettled_pointers(
    invalids: list[int], in_progress: list[int], read_pointer: int, bound: int
) -> None:
    snapshot = Snapshot(
        transaction_id=0, read_pointer=read_pointer, invalids=invalids, in_progress=in_progress
    )
    assert settlement.bound_of(snapshot, now_ms=100, life_ms=80, margin_ms=10) == bound


def test_a_record_is_read_as_it_was_written() -> None:
    record = settlement.SettlingRecord(3, 9, 8, "1-ff", b"\1" * 10, 7, b"\2" * 10, 123)
    assert settlement.decode(settlement.encode(record)) == record
    for value in (b"", b"{}", b"[]", b'{"generation": 1, "start": "x", "through": ""}'):
        with pytest.raises(StorageCorrupt):
            settlement.decode(value)

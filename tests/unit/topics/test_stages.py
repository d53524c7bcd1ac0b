"""Stages: each is stored apart; one publish shows them together, in order and once; a sweep removes the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import AlreadyPublished, BadRequest, BrokerError, OutcomeUnknown, PayloadsSealed
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot
from broker.storage.keys import LogId, payload_root_range, topic_prefix
from broker.storage.ownpage import PageBounds
from broker.storage.root import RootState
from broker.storage.table import Space
from broker.topics import stages as module
from broker.topics.settings import Producer, PublishedIds, PublishOptions
from tests.kit.bench import TOPIC, Bench, Gate, done_but, failing, settle

LIFE_S = 3600
MARGIN_MS = 60_000


async def begin(bench: Bench) -> int:
    return await bench.topics.begin_stage(TOPIC)


async def store(bench: Bench, stage: int, *payloads: bytes, **options: Any) -> PublishedIds:
    request = PublishRequest(None, payloads, (stage,))
    return await bench.topics.store(TOPIC, request, PublishOptions(**options))


async def publish(
    bench: Bench, *stages: int, pointer: int | None = None, **options: Any
) -> PublishedIds:
    request = PublishRequest(pointer, (), stages)
    return await bench.topics.publish(TOPIC, request, PublishOptions(**options))


async def staged(bench: Bench, *payloads: bytes) -> int:
    stage = await begin(bench)
    await store(bench, stage, *payloads)
    return stage


async def state_of(bench: Bench, stage: int) -> RootState | None:
    root = await bench.around.payload_logs.root(LogId(TOPIC, 1, stage))
    return None if root is None else root.state


async def rows_of_payloads(bench: Bench) -> int:
    prefix = topic_prefix(TOPIC)
    found = await bench.memory.scan(Space.PAYLOADS, prefix, prefix + b"\xff" * 40, limit=1000)
    return len(found)


async def test_numbers_of_stages_are_negative_and_fall_and_show_their_time(bench: Bench) -> None:
    await bench.create()
    stages = [await begin(bench) for _ in range(50)]
    assert stages == sorted(set(stages), reverse=True)
    assert all(stage < 0 for stage in stages)
    assert {module.began_ms(stage) for stage in stages} == {bench.clock.now_ms()}


async def test_a_used_number_is_not_given_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.secrets, "randbelow", lambda _: 5)
    await bench.create()
    first = await begin(bench)
    bench.restart()
    assert await begin(bench) == first - 1


async def test_the_order_of_the_list_is_the_order_of_the_messages(bench: Bench) -> None:
    await bench.create()
    one, two, three = [await staged(bench, *part) for part in ([b"a"], [b"b", b"c"], [b"d"])]
    await store(bench, one, b"e")
    await bench.publish(b"before")
    assert await bench.payloads() == [b"before"]
    await publish(bench, three, one, two)
    expected = [b"before", b"d", b"a", b"e", b"b", b"c"]
    assert await bench.payloads() == expected
    bench.restart()
    assert await bench.payloads() == expected


async def test_all_stages_of_a_publish_are_seen_at_once(bench: Bench) -> None:
    await bench.create()
    stages = [await staged(bench, b"%d" % number) for number in range(100)]
    gate = Gate()
    bench.table.on("append", gate.before)
    task = asyncio.ensure_future(publish(bench, *stages))
    await gate.reached.wait()
    assert await bench.payloads() == []
    gate.open()
    await task
    assert await bench.payloads() == [b"%d" % number for number in range(100)]


async def test_a_publish_may_have_more_stages_than_a_page_has_entries(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=20)
    bench.restart()
    await bench.create()
    stages = [await staged(bench, b"%d" % number) for number in range(50)]
    await publish(bench, *stages)
    await publish(bench, await staged(bench, b"end"))
    bench.restart()
    assert await bench.payloads() == [*(b"%d" % number for number in range(50)), b"end"]


async def test_a_stage_without_messages_adds_no_message(bench: Bench) -> None:
    await bench.create()
    await publish(bench, await begin(bench), await staged(bench, b"a"), await begin(bench))
    assert await bench.payloads() == [b"a"]


async def test_within_a_transaction_a_snapshot_decides(bench: Bench) -> None:
    await bench.create()
    pointer = bench.clock.now_ms() * 1_000_000
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    published = await publish(bench, *stages, pointer=pointer)
    before = Snapshot(transaction_id=1, read_pointer=pointer - 1, in_progress=[pointer])
    after = Snapshot(transaction_id=1, read_pointer=pointer)
    assert await bench.payloads(Poll(snapshot=before)) == []
    assert await bench.payloads(Poll(snapshot=after)) == [b"a", b"b"]
    rows = RollbackRange(pointer, published.first, published.last)
    await bench.topics.rollback(TOPIC, rows)
    assert await bench.payloads(Poll(snapshot=after)) == []


async def test_a_repeated_publish_of_stages_is_replayed(bench: Bench) -> None:
    await bench.create()
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    first = await publish(bench, *stages)
    for restarts in (False, True):
        if restarts:
            await settle()
            bench.restart()
        again = await publish(bench, *stages)
        assert (again.first, again.last, again.replayed) == (first.first, first.last, True)
    assert await bench.payloads() == [b"a", b"b"]


async def test_two_concurrent_publishes_of_the_same_stages_are_one(bench: Bench) -> None:
    await bench.create()
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    other = await staged(bench, b"c")
    answers = await asyncio.gather(
        publish(bench, *stages),
        publish(bench, *stages),
        publish(bench, stages[1], other),
        return_exceptions=True,
    )
    assert answers[0] == answers[1]
    assert isinstance(answers[2], PayloadsSealed)
    assert await bench.payloads() == [b"a", b"b"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_another_list_with_a_published_stage_is_refused(bench: Bench, restarts: bool) -> None:
    await bench.create()
    one, two, other = [await staged(bench, payload) for payload in (b"a", b"b", b"c")]
    await publish(bench, one, two)
    if restarts:
        await settle()
        bench.restart()
    for stages in ((one, other), (two, one), (other, two)):
        with pytest.raises(PayloadsSealed):
            await publish(bench, *stages)
    await publish(bench, other)
    assert await bench.payloads() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_list_of_stages_that_were_published_one_by_one_is_refused(
    bench: Bench, restarts: bool
) -> None:
    await bench.create()
    one, two = await staged(bench, b"a"), await staged(bench, b"b")
    await publish(bench, one)
    await bench.publish(b"between")
    await publish(bench, two)
    if restarts:
        await settle()
        bench.restart()
    with pytest.raises(PayloadsSealed):
        await publish(bench, one, two)
    assert (await publish(bench, one)).replayed


async def test_stages_of_two_transactions_are_no_list(bench: Bench) -> None:
    await bench.create()
    pointer = bench.clock.now_ms() * 1_000_000
    one, two = await staged(bench, b"a"), await staged(bench, b"b")
    await publish(bench, one, pointer=pointer)
    await publish(bench, two, pointer=pointer + 1)
    for each in (pointer, pointer + 1):
        with pytest.raises(AlreadyPublished, match="was published before, with write pointer"):
            await publish(bench, one, two, pointer=each)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("rolled_back", [False, True])
async def test_another_transaction_cannot_take_over_published_stages(
    bench: Bench, restarts: bool, rolled_back: bool
) -> None:
    await bench.create()
    pointer = bench.clock.now_ms() * 1_000_000
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    await bench.publish(b"m")
    first = await publish(bench, *stages, pointer=pointer)
    if rolled_back:
        await bench.topics.rollback(TOPIC, RollbackRange(pointer, first.first, first.last))
    if restarts:
        await settle()
        bench.restart()
    for other in (None, pointer + 1):
        with pytest.raises(AlreadyPublished, match=str(pointer)):
            await publish(bench, *stages, pointer=other)
    if rolled_back:
        with pytest.raises(AlreadyPublished, match="rolled back"):
            await publish(bench, *stages, pointer=pointer)
    else:
        assert (await publish(bench, *stages, pointer=pointer)).replayed
    shown = [b"m"] if rolled_back else [b"m", b"a", b"b"]
    assert (
        await bench.payloads(Poll(snapshot=Snapshot(transaction_id=1, read_pointer=pointer)))
        == shown
    )


async def test_concurrent_publishes_of_stages_in_two_transactions_are_not_one(bench: Bench) -> None:
    await bench.create()
    pointer = bench.clock.now_ms() * 1_000_000
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    first, second = await asyncio.gather(
        publish(bench, *stages, pointer=pointer),
        publish(bench, *stages, pointer=pointer + 1),
        return_exceptions=True,
    )
    assert isinstance(first, PublishedIds)
    assert isinstance(second, AlreadyPublished)


async def test_after_a_crash_between_seal_and_append_stages_are_published_once(
    bench: Bench,
) -> None:
    await bench.create()
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    await bench.publish(b"m")
    bench.table.on("append", failing(OutcomeUnknown("crashed")))
    with pytest.raises(OutcomeUnknown):
        await publish(bench, *stages)
    bench.restart()
    with pytest.raises(PayloadsSealed):
        await store(bench, stages[0], b"late")
    await publish(bench, *stages)
    assert await bench.payloads() == [b"m", b"a", b"b"]


async def test_a_crash_before_the_notes_publishes_nothing_again(bench: Bench) -> None:
    await bench.create()
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    bench.table.on("append", done_but(OutcomeUnknown("crashed")))
    with pytest.raises(OutcomeUnknown):
        await publish(bench, *stages)
    bench.restart()
    await bench.publish(b"m")
    assert (await publish(bench, *stages)).replayed
    assert await bench.payloads() == [b"a", b"b", b"m"]


async def test_a_producers_number_publishes_stages_once(bench: Bench) -> None:
    await bench.create()
    producer = Producer("query", 0)
    await publish(bench, await staged(bench, b"a"), await staged(bench, b"b"), producer=producer)
    # The driver died, and its tasks were run again.
    bench.restart()
    again = [await staged(bench, b"a"), await staged(bench, b"b")]
    assert (await publish(bench, *again, producer=producer)).replayed
    assert [await state_of(bench, stage) for stage in again] == [RootState.OPEN] * 2
    await publish(bench, await staged(bench, b"c"), producer=Producer("query", 1))
    assert await bench.payloads() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_after_its_publish_a_stage_refuses_stores(bench: Bench, restarts: bool) -> None:
    await bench.create()
    stage = await staged(bench, b"a")
    await publish(bench, stage)
    if restarts:
        await settle()
        bench.restart()
    with pytest.raises(PayloadsSealed):
        await store(bench, stage, b"late")
    assert await bench.payloads() == [b"a"]


async def test_a_store_under_a_key_is_done_once(bench: Bench) -> None:
    await bench.create()
    stage = await begin(bench)
    for _ in range(2):
        await store(bench, stage, b"a", key="1")
        bench.restart()
    await store(bench, stage, b"b", key="2")
    await publish(bench, stage)
    assert await bench.payloads() == [b"a", b"b"]


async def test_a_stage_that_was_never_begun_is_refused(bench: Bench) -> None:
    await bench.create()
    never = (await begin(bench)) - 1
    with pytest.raises(PayloadsSealed):
        await store(bench, never, b"a")
    with pytest.raises(PayloadsSealed):
        await publish(bench, never)
    assert await state_of(bench, never) is None


async def test_a_topic_for_transactions_only_refuses_stages_without_a_pointer(bench: Bench) -> None:
    await bench.create(transactions="required")
    stage = await staged(bench, b"a")
    with pytest.raises(BadRequest):
        await publish(bench, stage)
    await publish(bench, stage, pointer=bench.clock.now_ms() * 1_000_000)
    assert await bench.payloads() == [b"a"]


# The lives of stages.


async def test_a_stage_that_is_not_published_ends_with_its_life(bench: Bench) -> None:
    await bench.create(ttl_s=7 * 24 * 3600)
    stage = await staged(bench, b"a")
    began_ms = module.began_ms(stage)
    await bench.pass_ms(LIFE_S * 1000 - 1 - (bench.clock.now_ms() - began_ms))
    await store(bench, stage, b"b")
    await bench.pass_ms(1)
    with pytest.raises(PayloadsSealed):
        await store(bench, stage, b"c")
    with pytest.raises(PayloadsSealed):
        await publish(bench, stage)
    assert (await bench.sweeper.sweep()).payload_logs == 0, "a margin is left"
    await bench.pass_ms(MARGIN_MS + 1)
    assert (await bench.sweeper.sweep()).payload_logs == 1
    assert await state_of(bench, stage) is RootState.DROPPED
    with pytest.raises(PayloadsSealed):
        await publish(bench, stage)
    await bench.pass_ms(MARGIN_MS + 1)
    await bench.sweeper.sweep()
    assert await state_of(bench, stage) is None
    assert await rows_of_payloads(bench) == 0
    for refused in (publish(bench, stage), store(bench, stage, b"d")):
        with pytest.raises(PayloadsSealed):
            await refused
    assert await rows_of_payloads(bench) == 0


async def test_a_sweep_at_the_end_of_a_stage_does_not_keep_it(bench: Bench) -> None:
    bench.restart(stage_life_s=5, sweep_margin_ms=0)
    await bench.create()
    stage = await staged(bench, b"x")
    await bench.pass_ms(module.began_ms(stage) + 5000 - bench.clock.now_ms())
    await bench.sweeper.sweep()
    assert await state_of(bench, stage) is RootState.OPEN
    await bench.pass_ms(1)
    await bench.sweeper.sweep()
    assert await state_of(bench, stage) is not RootState.OPEN


async def test_a_stage_that_a_crash_left_sealed_is_not_published_after_its_life(
    bench: Bench,
) -> None:
    await bench.create(ttl_s=24 * 3600)
    stage = await staged(bench, b"a")
    bench.table.on("append", failing(OutcomeUnknown("crashed")))
    with pytest.raises(OutcomeUnknown):
        await publish(bench, stage)
    assert await state_of(bench, stage) is RootState.SEALED
    await bench.pass_ms(LIFE_S * 1000)
    with pytest.raises(PayloadsSealed):
        await publish(bench, stage)
    assert await bench.payloads() == []


async def test_a_published_stage_lives_as_long_as_its_messages(bench: Bench) -> None:
    ttl_s = 24 * 3600
    await bench.create(ttl_s=ttl_s)
    stage = await staged(bench, b"a")
    await publish(bench, stage)
    await settle()
    await bench.pass_ms(LIFE_S * 1000 + 2 * MARGIN_MS)
    await bench.sweeper.sweep()
    assert await bench.payloads() == [b"a"]
    assert (await publish(bench, stage)).replayed, "however old it is"
    await bench.pass_ms(ttl_s * 1000)
    await bench.sweeper.sweep()
    assert await state_of(bench, stage) is RootState.DROPPED


async def test_a_publish_that_begins_before_the_end_is_not_swept(bench: Bench) -> None:
    await bench.create(ttl_s=24 * 3600)
    stage = await staged(bench, b"a")
    await bench.pass_ms(LIFE_S * 1000 - 10)
    gate = Gate()
    bench.table.on("append", gate.before)
    task = asyncio.ensure_future(publish(bench, stage))
    await gate.reached.wait()
    await bench.pass_ms(2 * MARGIN_MS)
    sweep = asyncio.ensure_future(bench.sweeper.sweep())
    await settle()
    gate.open()
    await asyncio.gather(task, sweep)
    assert await bench.payloads() == [b"a"]
    await bench.pass_ms(MARGIN_MS)
    await bench.sweeper.sweep()
    assert await bench.payloads() == [b"a"]


async def test_stages_that_live_are_not_read_again_at_each_sweep(bench: Bench) -> None:
    await bench.create(ttl_s=24 * 3600)
    stages = [await staged(bench, b"%d" % number) for number in range(20)]
    for stage in stages[:10]:
        await publish(bench, stage)
    await settle()
    await bench.pass_ms(LIFE_S * 1000 + MARGIN_MS + 1)
    assert (await bench.sweeper.sweep()).payload_logs == 10
    await bench.pass_ms(MARGIN_MS + 1)
    await bench.sweeper.sweep()
    low, high = payload_root_range(TOPIC, 1, module.STAGE_MIN, -1)
    left = await bench.memory.scan(Space.PAYLOADS, low, high, limit=100)
    assert len(left) == 10
    bench.table.calls.clear()
    await bench.sweeper.sweep()
    heads = [call for call in bench.table.calls if call == "head"]
    assert not heads


@pytest.mark.parametrize("call", ["head", "root", "append"])
@pytest.mark.parametrize("outcome", ["done", "failed"])
async def test_a_repeat_after_an_error_at_any_step_publishes_once(
    bench: Bench, call: str, outcome: str
) -> None:
    await bench.create()
    stages = [await staged(bench, b"a"), await staged(bench, b"b")]
    error = OutcomeUnknown("lost")
    bench.table.on(call, done_but(error) if outcome == "done" else failing(error))
    for _ in range(5):
        try:
            await publish(bench, *stages)
        except BrokerError:
            continue
        break
    await settle()
    bench.restart()
    assert await bench.payloads() == [b"a", b"b"]
    assert (await publish(bench, *stages)).replayed

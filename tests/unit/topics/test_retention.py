from __future__ import annotations

import asyncio

import pytest

from broker import guards
from broker.errors import OutcomeUnknown, PayloadsSealed, TransactionTooOld
from broker.model import Poll, timestamp_of
from broker.storage.control import State
from broker.storage.keys import LogId
from broker.testing.bench import TOPIC, Bench, Gate, done_but, settle
from broker.topics.settings import PublishOptions

LOG = LogId(TOPIC, 1)
MARGIN_MS = 60_000
TTL_S = 100
LIFE_S = 90_000


@pytest.fixture
def swept(bench: Bench) -> Bench:
    bench.restart(transaction_life_max_s=LIFE_S, sweep_rows_max=3)
    return bench


def pointer_now(bench: Bench) -> int:
    return bench.clock.now_ms() * 1_000_000


async def rows_of(bench: Bench, log: LogId = LOG) -> int:
    return (await bench.around.store.estimate(log)).rows


async def test_what_has_expired_goes_after_a_margin_and_not_before(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    published = await swept.publish(*[b"x"] * 10)
    await swept.pass_ms(50_000)
    await swept.publish(b"later")
    last_ms = timestamp_of(published.first) + TTL_S * 1000 + MARGIN_MS
    await swept.pass_ms(last_ms - swept.clock.now_ms())
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 11
    await swept.pass_ms(1)
    report = await swept.sweeper.sweep()
    assert report.rows == 10
    assert await rows_of(swept) == 1
    await swept.pass_ms(10**6)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 1, "the row at the pointer stays"
    assert await swept.payloads() == []


async def test_the_floor_is_on_disk_before_anything_goes(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"x"] * 10)
    await swept.publish(b"last")
    await swept.pass_ms(10**6)
    await swept.sweeper.sweep()
    calls = [c for c in swept.store.calls if c in {"raise_floor", "sweep_log"}]
    assert calls[0] == "raise_floor"
    control = await swept.around.store.head(LOG)
    assert control is not None
    assert control.floor == control.pointer


async def test_a_raised_ttl_brings_nothing_back(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"x"] * 10)
    await swept.publish(b"last")
    await swept.pass_ms(TTL_S * 1000 + MARGIN_MS + 10)
    await swept.sweeper.sweep()
    await swept.topics.update(TOPIC, {"ttl": "1000000"})
    assert set(await swept.payloads()) <= {b"last"}


async def test_a_ttl_that_is_raised_during_a_sweep_keeps_what_lives_by_it(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"x"] * 10)
    await swept.publish(b"last")
    await swept.pass_ms(TTL_S * 1000 - 1)
    gate = Gate()
    swept.store.on("head", gate.before)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    await gate.reached.wait()
    await swept.topics.update(TOPIC, {"ttl": "1000000"})
    await swept.pass_ms(MARGIN_MS + 10)
    gate.open()
    await sweeping
    assert len(await swept.payloads()) == 11


async def test_rows_with_a_shorter_life_go_before_the_others(swept: Bench) -> None:
    await swept.create(ttl_s=10_000)
    await swept.publish(b"a")
    for number in range(7):
        await swept.publish(b"%d" % number, options=PublishOptions(ttl_s=10))
    await swept.publish(b"b")
    await swept.pass_ms(10_000 + MARGIN_MS)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 9
    await swept.pass_ms(2)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 2
    assert await swept.payloads() == [b"a", b"b"]


async def test_rows_with_a_shorter_life_go_also_where_nobody_leads(swept: Bench) -> None:
    await swept.create(ttl_s=10_000)
    await swept.publish(b"a", options=PublishOptions(ttl_s=10))
    await swept.publish(b"b")
    swept.restart()
    await swept.pass_ms(10_000 + MARGIN_MS + 2)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 1


async def test_the_rows_of_an_idle_topic_are_read_once(swept: Bench) -> None:
    await swept.create(ttl_s=10_000)
    for ttl_s in (20, 10):
        await swept.publish(b"x", options=PublishOptions(ttl_s=ttl_s))
    await swept.publish(b"last")
    swept.restart()

    async def reads_of_a_sweep() -> int:
        before = swept.store.calls.count("scan")
        await swept.sweeper.sweep()
        return swept.store.calls.count("scan") - before

    assert [await reads_of_a_sweep() for _ in range(3)] == [1, 0, 0]
    await swept.pass_ms(10_000 + MARGIN_MS + 2)
    await swept.sweeper.sweep()  # The first of the lives has ended.
    assert (await rows_of(swept), swept.store.calls.count("claim")) == (2, 1)
    for _ in range(2):
        await swept.pass_ms(1)
        await swept.topics.forget_idle()
    assert [await reads_of_a_sweep() for _ in range(3)] == [1, 0, 0]
    await swept.publish(b"more")
    for _ in range(2):
        await swept.pass_ms(1)
        await swept.topics.forget_idle()
    assert [await reads_of_a_sweep() for _ in range(3)] == [1, 0, 0]
    await swept.pass_ms(10_000)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 2


async def test_an_idle_topic_is_not_claimed_again_and_again(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(b"a")
    await swept.publish(b"b")
    swept.restart()
    await swept.sweeper.sweep()
    await swept.pass_ms(10**6)
    await swept.sweeper.sweep()
    for _ in range(3):
        for _ in range(2):
            await swept.topics.forget_idle()
        await swept.sweeper.sweep()
    assert swept.store.calls.count("claim") == 1
    assert await rows_of(swept) == 1


async def test_rows_that_a_crash_left_behind_the_floor_are_found(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"x"] * 10)
    await swept.publish(b"last")
    await swept.pass_ms(10**6)
    await swept.leader().raise_floor(swept.leader().hold.control.pointer)
    swept.restart()
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 1


async def test_old_generations_all_go_and_the_present_one_stays(swept: Bench) -> None:
    for generation in (1, 2, 3):
        await swept.create(ttl_s=TTL_S)
        await swept.publish(*[b"%d" % generation] * 5, options=PublishOptions(key="k"))
        await swept.stored(pointer_now(swept), b"stored")
        if generation < 3:
            await swept.topics.delete(TOPIC)
    await swept.sweeper.sweep()
    for generation in (1, 2):
        assert await rows_of(swept, LogId(TOPIC, generation)) == 0
        assert await swept.around.store.payload_logs(TOPIC, generation) == []
    assert await swept.payloads() == [b"3"] * 5
    await swept.topics.delete(TOPIC)
    await swept.sweeper.sweep()
    assert await rows_of(swept, LogId(TOPIC, 3)) == 0
    assert (await swept.create()).generation == 4
    assert await swept.payloads() == []


async def test_a_topic_created_anew_while_its_old_rows_go_loses_nothing(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"old"] * 10)
    await swept.topics.delete(TOPIC)
    gate = Gate()
    swept.store.on("sweep_generations", gate.after)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    await gate.reached.wait()
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"new"] * 10)
    gate.open()
    await sweeping
    assert await swept.payloads() == [b"new"] * 10


async def test_the_clock_of_a_long_transaction_never_takes_its_early_payloads(
    swept: Bench,
) -> None:
    # The original counts their life from the store, not from the publish.
    await swept.create(ttl_s=TTL_S)
    number = pointer_now(swept)
    await swept.stored(number, b"early")
    for _ in range(8):
        await swept.pass_ms(LIFE_S * 1000 / 8 - 1000)
        await swept.sweeper.sweep()
        await swept.stored(number, b"more")
    await swept.publish(pointer=number)
    await swept.pass_ms(TTL_S * 1000)
    await swept.sweeper.sweep()
    assert await swept.payloads() == [b"early", *[b"more"] * 8]
    await swept.pass_ms(1)
    assert await swept.payloads() == []


async def test_payload_logs_go_when_nothing_can_show_them(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    number, abandoned = pointer_now(swept), pointer_now(swept) + 1
    await swept.stored(number, *[b"p"] * 10)
    await swept.stored(abandoned, *[b"p"] * 10)
    await swept.publish(pointer=number)
    await swept.pass_ms(1000)
    await swept.publish(b"m")
    over_ms = (LIFE_S + TTL_S) * 1000 + MARGIN_MS
    await swept.pass_ms(over_ms - 2000)
    await swept.sweeper.sweep()
    assert await rows_of(swept, LOG._replace(number=number)) == 10
    await swept.pass_ms(3000)
    report = await swept.sweeper.sweep()
    assert report.payload_logs == 2
    for log in (number, abandoned):
        assert await rows_of(swept, LOG._replace(number=log)) == 0
        assert await swept.around.store.head(LOG._replace(number=log)) is None
        with pytest.raises(TransactionTooOld):
            await swept.stored(log, b"late")


async def test_the_last_reference_keeps_its_logs_control_row(swept: Bench) -> None:
    # The row at the pointer is never removed: a raised ttl shows it again, without its payloads.
    await swept.create(ttl_s=TTL_S)
    number = pointer_now(swept)
    await swept.stored(number, b"p")
    await swept.publish(pointer=number)
    await swept.pass_ms((LIFE_S + TTL_S) * 1000 + MARGIN_MS + 10)
    await swept.sweeper.sweep()
    control = await swept.around.store.head(LOG._replace(number=number))
    assert control is not None
    assert control.state is State.DROPPED
    await swept.topics.update(TOPIC, {"ttl": "2147483647"})
    swept.forget_cache()
    assert await swept.payloads() == []
    await swept.publish(b"m")
    await swept.topics.update(TOPIC, {"ttl": "1"})
    await swept.pass_ms(1001 + MARGIN_MS)
    await swept.publish(b"m")
    await swept.pass_ms(10)
    await swept.sweeper.sweep()
    assert await swept.around.store.head(LOG._replace(number=number)) is None


async def test_a_reference_whose_mark_was_lost_is_marked_before_its_row_goes(swept: Bench) -> None:
    await swept.create(ttl_s=10)
    number = pointer_now(swept)
    await swept.stored(number, b"p")
    swept.store.on("append", done_but(OutcomeUnknown("crashed")))
    with pytest.raises(OutcomeUnknown):
        await swept.publish(pointer=number)
    swept.restart()
    await swept.publish(b"m")
    await swept.pass_ms(10_000 + MARGIN_MS + 10)
    await swept.publish(b"n")
    await swept.sweeper.sweep()
    again = await swept.publish(pointer=number)
    assert again.replayed
    assert await swept.payloads() == [b"n"], "not delivered once more"
    with pytest.raises(PayloadsSealed):
        await swept.stored(number, b"late")


async def test_a_log_that_is_written_to_meanwhile_is_not_dropped(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    number = pointer_now(swept)
    await swept.stored(number, b"p")
    assert not await swept.leader().drop_payloads(number, lambda control: False)
    gate = Gate()
    swept.store.on("append", gate.before)
    storing = asyncio.ensure_future(swept.stored(number, b"q"))
    await gate.reached.wait()
    assert not await swept.leader().drop_payloads(number, lambda control: True)
    gate.open()
    await storing


async def test_a_sweep_stops_when_the_clock_jumps(swept: Bench) -> None:
    for number in range(3):
        topic = TOPIC._replace(topic=f"t{number}")
        await swept.create(topic, ttl_s=TTL_S)
        await swept.publish(b"a", topic=topic)
        await swept.publish(b"b", topic=topic)
    await swept.pass_ms(10**6)
    gate = Gate()
    swept.store.on("sweep_generations", gate.after)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    await gate.reached.wait()
    await swept.pass_ms(1000)
    swept.clock.step(10**9)
    gate.open()
    report = await sweeping
    assert report.rested
    assert report.topics == 1


async def test_side_rows_live_for_their_window_though_their_messages_do_not(swept: Bench) -> None:
    await swept.create(ttl_s=10)
    options = PublishOptions(key="k")
    await swept.publish(b"a", options=options)
    await swept.publish(b"b")
    await swept.pass_ms(540_000)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 1
    swept.restart()
    assert (await swept.publish(b"a", options=options)).replayed
    await swept.pass_ms(10**6)
    await swept.sweeper.sweep()
    assert await swept.around.store.side(LOG, b"k", b"") == []


async def test_one_topic_that_cannot_be_swept_is_skipped(swept: Bench) -> None:
    for name in ("a", "b"):
        topic = TOPIC._replace(topic=name)
        await swept.create(topic, ttl_s=10)
        await swept.publish(b"x", topic=topic)
        await swept.publish(b"y", topic=topic)
    await swept.pass_ms(10**6)
    swept.store.on("sweep_log", done_but(OutcomeUnknown("lost")))
    report = await swept.sweeper.sweep()
    assert (report.topics, report.skipped) == (2, 1)
    assert report.problem == f"{TOPIC._replace(topic='a')}: lost"
    report = await swept.sweeper.sweep()
    assert (report.skipped, report.problem) == (0, None)
    await settle()


async def test_publishing_and_polling_go_on_between_slices(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"x"] * 30)
    await swept.pass_ms(10**6)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    published = 0
    while not sweeping.done():
        await swept.publish(b"m")
        published += 1
        assert await swept.payloads(Poll()) == [b"m"] * published
    assert published > 3


async def test_without_its_guard_the_sweeper_takes_what_a_reader_is_reading(
    swept: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")

    async def read_while_sweeping() -> int:
        """A reader judges by its clock when its page begins; the sweep comes a moment later."""
        topic = TOPIC._replace(topic=f"t{len(swept.topics.leaders.states)}")
        await swept.create(topic, ttl_s=10)
        await swept.publish(*[b"x"] * 5, topic=topic)
        await swept.publish(b"last", topic=topic)
        await swept.pass_ms(10_000)
        swept.forget_cache()
        gate = Gate()
        swept.store.on("scan", gate.before)
        reading = asyncio.ensure_future(swept.poll(topic=topic))
        await gate.reached.wait()
        now_ms = swept.clock.now_ms()
        await swept.pass_ms(2)
        await swept.sweeper.sweep()
        monkeypatch.setattr(swept.clock, "now_ms", lambda: now_ms)
        gate.open()
        got = await reading
        monkeypatch.undo()
        monkeypatch.setenv("BROKER_TESTING", "1")
        return len(got)

    assert await read_while_sweeping() == 6
    with guards.without("sweep-margin"):
        assert await read_while_sweeping() < 6

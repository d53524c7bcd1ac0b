"""Producers: their numbers make publishes happen once, through restarts, sweeps and silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import Fenced, OutcomeUnknown
from broker.model import TopicId
from broker.storage import marks as module
from broker.storage.check import verify
from broker.storage.log import Logs
from broker.testing.virtual_time import VirtualLoop, simulate
from broker.topics import producers
from broker.topics.dedupe import KEY_BYTES
from broker.topics.settings import Producer, PublishedIds, PublishOptions
from tests.kit.bench import Bench, Gate, done_but, settle

DAY_MS = 24 * 3600 * 1000


async def publish(
    bench: Bench, number: int, *payloads: bytes, who: str = "p", **more: Any
) -> PublishedIds:
    options = PublishOptions(producer=Producer(who, number))
    return await bench.publish(*(payloads or (b"%d" % number,)), options=options, **more)


async def test_a_number_at_or_below_the_last_stores_nothing(bench: Bench) -> None:
    await bench.create()
    first = await publish(bench, 0)
    await publish(bench, 7)
    again = await publish(bench, 7, b"other")
    below = await publish(bench, 3)
    assert (first.replayed, again.replayed, below.replayed) == (False, True, True)
    assert await bench.payloads() == [b"0", b"7"]


async def test_the_last_number_is_answered_with_its_rows(bench: Bench) -> None:
    await bench.create()
    first = await publish(bench, 1, b"a", b"b", pointer=5)
    assert first.messages == 2
    assert await publish(bench, 1, b"other", pointer=5) == first._replace(replayed=True)
    bench.restart()
    again = await publish(bench, 1, b"a", b"b", pointer=5)
    assert again == first._replace(replayed=True, messages=None), "marks do not count"
    assert (await publish(bench, 0, pointer=5)).pointer is None, "its rows are not known"


async def test_each_producer_has_its_own_numbers(bench: Bench) -> None:
    await bench.create()
    for who in ("a", "b"):
        assert not (await publish(bench, 4, who=who)).replayed
    await bench.publish(b"plain")
    assert await bench.payloads() == [b"4", b"4", b"plain"]


async def test_the_producers_of_all_topics_share_the_memory_of_keys(bench: Bench) -> None:
    bench.restart(idempotency_keys_bytes_max=3 * KEY_BYTES)
    topics = [TopicId("ns", name) for name in "ab"]
    for topic in topics:
        await bench.create(topic)
        for number in range(5):
            await publish(bench, 1, who=f"p{number}", topic=topic)
        assert bench.around.keys.bytes <= 3 * KEY_BYTES
    for topic in topics:
        assert (await publish(bench, 1, who="p0", topic=topic)).replayed
        bench.leader(topic).end(Fenced("over"))
    assert bench.around.keys.bytes == 0


@pytest.mark.parametrize("flushed", [False, True])
async def test_numbers_survive_a_crash(bench: Bench, flushed: bool) -> None:
    await bench.create()
    await publish(bench, 1)
    await publish(bench, 2)
    if flushed:
        await bench.leader().hold.marks.flush()
    bench.restart()
    assert (await publish(bench, 2)).replayed
    assert not (await publish(bench, 3)).replayed
    assert await bench.payloads() == [b"1", b"2", b"3"]


async def test_a_number_survives_a_publish_of_unknown_outcome(bench: Bench) -> None:
    await bench.create()
    await publish(bench, 1)
    bench.table.on("append", done_but(OutcomeUnknown("lost")))
    with pytest.raises(OutcomeUnknown) as raised:
        await publish(bench, 2)
    assert raised.value.retriable, "the number makes it repeatable"
    assert (await publish(bench, 2)).replayed
    assert await bench.payloads() == [b"1", b"2"]


async def test_the_next_leader_knows_the_numbers_of_the_first_one(bench: Bench) -> None:
    await bench.create()
    await publish(bench, 1)
    leader = bench.leader()
    other = await Logs(bench.memory, bench.clock).claim(leader.hold.log, "another")
    other.end()
    assert (await publish(bench, 1)).replayed
    assert not (await publish(bench, 2)).replayed
    assert await bench.payloads() == [b"1", b"2"]


async def test_the_publishes_of_a_producer_run_one_at_a_time_in_order(bench: Bench) -> None:
    await bench.create()
    await publish(bench, 0)
    gate = Gate()
    bench.table.on("append", gate.before)
    tasks = [asyncio.ensure_future(publish(bench, number)) for number in (1, 2, 2, 1)]
    await gate.reached.wait()
    await settle()
    assert bench.leader().producers.busy
    gate.open()
    assert [each.replayed for each in await asyncio.gather(*tasks)] == [False, False, True, True]
    assert await bench.payloads() == [b"0", b"1", b"2"]
    assert not bench.leader().producers.busy


async def test_a_numbered_publish_completes_without_its_caller(bench: Bench) -> None:
    await bench.create()
    await publish(bench, 0)
    gate = Gate()
    bench.table.on("append", gate.before)
    task = asyncio.ensure_future(publish(bench, 1))
    await gate.reached.wait()
    task.cancel()
    late = asyncio.ensure_future(publish(bench, 1))
    await settle()
    gate.open()
    assert (await late).replayed
    assert await bench.payloads() == [b"0", b"1"]


async def test_an_unsent_publish_of_a_former_leader_is_checked_again(bench: Bench) -> None:
    await bench.create()
    await publish(bench, 1)
    gate = Gate()
    bench.table.on("append", gate.before)
    under_way = asyncio.ensure_future(bench.publish(b"plain"))
    await gate.reached.wait()
    waiting = asyncio.ensure_future(publish(bench, 2))
    await settle()
    bench.leader().end(Fenced("let go"))
    gate.open()
    await asyncio.gather(under_way, waiting)
    assert sorted(await bench.payloads()) == [b"1", b"2", b"plain"]


async def test_a_publish_that_waits_and_is_sent_again_is_stored_once(
    bench: Bench,
) -> None:
    await bench.create()
    await publish(bench, 1)
    before, after = Gate(), Gate()
    bench.table.on("append", before.before, after.before)
    under_way = asyncio.ensure_future(bench.publish(b"plain"))
    await before.reached.wait()
    waiting = asyncio.ensure_future(publish(bench, 2))
    await settle()
    bench.leader().end(Fenced("let go"))
    before.open()
    await after.reached.wait()
    again = asyncio.ensure_future(publish(bench, 2))
    await settle()
    after.open()
    await under_way
    answers = [(await task).replayed for task in (waiting, again)]
    assert answers == [False, True]
    assert sorted(await bench.payloads()) == [b"1", b"2", b"plain"]


async def test_a_key_and_a_number_both_count(bench: Bench) -> None:
    await bench.create()
    options = PublishOptions(key="k", producer=Producer("p", 1))
    await bench.publish(b"a", options=options)
    assert (await bench.publish(b"a", options=options)).replayed
    other_key = PublishOptions(key="l", producer=Producer("p", 1))
    assert (await bench.publish(b"a", options=other_key)).replayed
    other_number = PublishOptions(key="k", producer=Producer("p", 2))
    assert (await bench.publish(b"a", options=other_number)).replayed
    assert await bench.payloads() == [b"a"]


async def test_producers_beyond_the_memory_limit_are_found_in_storage(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "KNOWN_MAX", 2)
    await bench.create()
    for who in "abcd":
        await publish(bench, 1, who=who)
    assert all([(await publish(bench, 1, who=who)).replayed for who in "abcd"])


# The sweeper.


async def rows_of_marks(bench: Bench) -> int:
    leader = bench.leader()
    await leader.hold.marks.flush()
    prefix = module.mark_prefix(leader.hold.log)
    found = await bench.memory.scan(
        module.space_of(leader.hold.log), prefix, module.prefix_end(prefix), limit=1000
    )
    return len(found)


async def test_a_sweep_keeps_only_the_newest_number(bench: Bench) -> None:
    bench.restart(sweep_rows_max=3)
    await bench.create(ttl_s=7 * 24 * 3600)
    for number in range(1, 8):
        for who in "abc":
            await publish(bench, number, who=who)
            await bench.leader().hold.marks.flush()
    assert await rows_of_marks(bench) == 21
    await bench.sweeper.sweep()
    assert await rows_of_marks(bench) == 3
    bench.restart()
    assert all([(await publish(bench, 7, who=who)).replayed for who in "abc"])
    assert not (await publish(bench, 8, who="b")).replayed


async def test_only_the_newest_pending_mark_is_put(bench: Bench) -> None:
    await bench.create()
    for number in range(1, 8):
        await publish(bench, number)
    assert await rows_of_marks(bench) == 1


async def test_a_silent_producer_is_forgotten_after_the_ttl_and_a_week(bench: Bench) -> None:
    ttl_ms = 1000 * 1000
    margin_ms = bench.around.settings.sweep_margin_ms
    await bench.create(ttl_s=1000)
    await publish(bench, 5)
    published_ms = bench.clock.now_ms()
    await bench.publish(b"end")
    await bench.leader().hold.marks.flush()
    await bench.pass_ms(ttl_ms + 7 * DAY_MS)
    await bench.sweeper.sweep()
    bench.restart()
    assert await bench.payloads() == []
    assert (await publish(bench, 5)).replayed
    left_ms = published_ms + ttl_ms + 7 * DAY_MS + margin_ms + 1 - bench.clock.now_ms()
    await bench.pass_ms(left_ms + bench.around.settings.idempotency_window_ms)
    await bench.sweeper.sweep()
    bench.restart()
    assert not (await publish(bench, 5)).replayed


async def test_a_check_reports_only_a_missing_newest_mark(bench: Bench) -> None:
    await bench.create(ttl_s=600)
    for number in (1, 2):
        await publish(bench, number)
        await bench.leader().hold.marks.flush()
    await bench.publish(b"end")
    log = bench.leader().hold.log
    prefix = module.mark_prefix(log)
    space = module.space_of(log)
    older, newest = [
        row for row, _ in await bench.memory.scan(space, prefix, module.prefix_end(prefix), limit=9)
    ]
    await bench.memory.delete(space, [older])
    assert (await verify(bench.logs, window_ms=0)).is_sound
    await bench.memory.delete(space, [newest])
    await bench.pass_ms(DAY_MS)
    assert not (await verify(bench.logs, window_ms=0)).is_sound


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from("ab"), st.integers(0, 6)),
        st.just(("flush",)),
        st.just(("sweep",)),
        st.just(("crash",)),
    ),
    max_size=25,
)


@given(STEPS)
def test_in_random_runs_a_number_is_taken_once(steps: list[Any]) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(sweep_rows_max=2)
        await bench.create()
        last = {"a": -1, "b": -1}
        for name, *arguments in steps:
            if name == "publish":
                who, number = arguments
                published = await publish(bench, number, f"{who}{number}".encode(), who=who)
                assert published.replayed == (number <= last[who])
                if not published.replayed:
                    last[who] = number
            elif name == "flush" and bench.topics.leaders.epochs():
                await bench.leader().hold.marks.flush()
            elif name == "sweep":
                await bench.pass_ms(bench.around.settings.idempotency_window_ms)
                await bench.sweeper.sweep()
            elif name == "crash":
                bench.restart()
        for who, number in last.items():
            assert number < 0 or (await publish(bench, number, who=who)).replayed

    simulate(main)

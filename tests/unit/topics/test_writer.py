from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import (
    BodyTooLarge,
    Fenced,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StorageFull,
    Unavailable,
)
from broker.model import LOG_KEY_MIN, PublishRequest
from broker.storage.entry import decode
from broker.storage.table import HEAD
from broker.topics.settings import PublishOptions
from broker.topics.write import Write
from tests.kit.bench import TOPIC, Bench, Gate, done_but, failing, settle


def publishing(bench: Bench, *payloads: bytes, **options: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(bench.publish(*payloads, options=PublishOptions(**options)))


def batches(bench: Bench) -> list[int]:
    """Return a list that collects the number of messages of each later append."""
    into: list[int] = []

    def note(real: Any, space: Any, row: bytes, expected: bytes, puts: dict[bytes, bytes]) -> Any:
        added = [decode(value) for column, value in puts.items() if column != HEAD]
        into.append(sum(entry.count for entry in added))
        bench.table.on("append", note)
        return real(space, row, expected, puts)

    bench.table.on("append", note)
    return into


async def test_requests_that_arrive_while_a_batch_is_in_flight_are_the_next_batch(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"first")
    gate = Gate()
    bench.table.on("append", gate.before)
    tasks = [publishing(bench, b"a")]
    await gate.reached.wait()
    seen = batches(bench)
    tasks += [publishing(bench, b"%d" % number) for number in range(10)]
    await settle()
    assert bench.table.calls.count("append") == 2, "one append is in flight at a time"
    gate.open()
    await asyncio.gather(*tasks)
    assert seen == [10]
    wanted = [b"first", b"a", *(b"%d" % number for number in range(10))]
    assert await bench.payloads() == wanted


async def test_a_request_is_consecutive_and_its_answer_names_its_rows(bench: Bench) -> None:
    await bench.create()
    requests = [
        ([b"a1", b"a2"], None, PublishOptions()),
        ([b"b1"], 7, PublishOptions()),
        ([b"c1", b"c2", b"c3"], None, PublishOptions()),
        ([b"d1", b"d2"], None, PublishOptions(ttl_s=5)),
        ([b"e1"], None, PublishOptions(key="k")),
        ([b"f1", b"f2"], None, PublishOptions()),
    ]
    await bench.publish(b"first")
    done = await asyncio.gather(
        *(bench.publish(*p, pointer=t, options=options) for p, t, options in requests)
    )
    by_id = {message.id[:10]: message.payload for message in await bench.poll()}
    order = sorted(by_id)
    for (payloads, pointer, _), published in zip(requests, done, strict=True):
        first, last = order.index(published.first), order.index(published.last)
        assert [by_id[row] for row in order[first : last + 1]] == payloads
        assert published.pointer == pointer


async def test_batches_are_bounded_in_rows_and_bytes(bench: Bench) -> None:
    bench.restart(batch_messages_max=4, batch_bytes_max=10_000)
    await bench.create()
    await bench.publish(b"first")
    seen = batches(bench)
    sizes = [1, 1, 1, 1, 1, 9, 2]
    tasks = [publishing(bench, *[b"x"] * size) for size in sizes]
    tasks += [publishing(bench, bytes(6000)), publishing(bench, bytes(6000))]
    await asyncio.gather(*tasks)
    assert seen == [4, 1, 9, 3, 1]


async def test_a_request_over_the_bounds_goes_alone(bench: Bench) -> None:
    bench.restart(batch_messages_max=4)
    await bench.create()
    published = await bench.publish(*[b"x"] * 20_000)
    assert len(await bench.poll()) == 20_000
    assert published.last > published.first


async def test_a_full_queue_refuses_the_next_request_only(
    bench: Bench,
) -> None:
    bench.restart(queued_requests_max=3)
    await bench.create()
    await bench.publish(b"first")
    gate = Gate()
    bench.table.on("append", gate.before)
    under_way = publishing(bench, b"a")
    await gate.reached.wait()
    waiting = [publishing(bench, b"%d" % number) for number in range(3)]
    await settle()
    with pytest.raises(Overloaded) as caught:
        await bench.publish(b"too many")
    assert caught.value.retriable
    assert caught.value.outcome == "refused"
    gate.open()
    await asyncio.gather(under_way, *waiting)
    await bench.publish(b"again")
    assert b"too many" not in await bench.payloads()


async def test_the_limit_of_queued_bytes_applies_to_the_node(bench: Bench) -> None:
    bench.restart(queued_bytes_max=1000)
    other = TOPIC._replace(topic="other")
    await bench.create()
    await bench.create(other)
    await bench.publish(b"first")
    await bench.publish(b"first", topic=other)
    gate = Gate()
    bench.table.on("append", gate.before)
    large = publishing(bench, bytes(2000))
    await gate.reached.wait()
    for topic in (TOPIC, other):
        with pytest.raises(Overloaded):
            await bench.publish(b"x", topic=topic)
    gate.open()
    await large
    assert bench.around.queue.bytes == 0
    await bench.publish(b"x", topic=other)


async def test_a_deadline_that_passed_in_the_queue_is_a_refusal(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    await late_in_the_queue(bench)
    assert await bench.payloads() == [b"first", b"a"]


async def late_in_the_queue(bench: Bench) -> None:
    gate = Gate()
    bench.table.on("append", gate.before)
    under_way = publishing(bench, b"a")
    await gate.reached.wait()
    late = publishing(bench, b"late", deadline=bench.clock.monotonic() + 1)
    await bench.pass_ms(1001)
    gate.open()
    with pytest.raises(Overloaded):
        await late
    await under_way


async def test_a_request_cancelled_in_the_queue_is_not_stored(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    gone = bench.topics.publish(TOPIC, PublishRequest(None, [b"gone"]))
    stays = bench.topics.publish(TOPIC, PublishRequest(None, [b"stays"]))
    assert isinstance(gone, asyncio.Future)
    gone.cancel()
    await stays
    assert await bench.payloads() == [b"first", b"stays"]
    assert bench.around.queue.bytes == 0


async def test_ids_too_far_ahead_make_requests_wait_not_fail(bench: Bench) -> None:
    bench.restart(id_lead_ms_max=2)
    bench.around.is_alone = False
    bench.around.instance = 0  # 256 ids a millisecond.
    await bench.create()
    began = bench.clock.now_ms()
    await asyncio.gather(*(bench.publish(*[b"x"] * 256) for _ in range(20)))
    assert bench.clock.now_ms() - began >= 16
    assert len(await bench.poll()) == 20 * 256


async def test_a_too_large_batch_is_refused_and_the_leader_goes_on(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    leader = bench.leader()
    bench.table.on("append", failing(BodyTooLarge("too large")))
    with pytest.raises(BodyTooLarge):
        await bench.publish(b"large")
    await bench.publish(b"next")
    assert bench.leader() is leader


async def test_fenced_requests_go_to_the_next_leader_in_their_order(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    old = bench.leader()
    gate = Gate()
    bench.table.on("append", gate.before)
    tasks = [publishing(bench, b"a")]
    await gate.reached.wait()
    tasks += [publishing(bench, b"%d" % number) for number in range(5)]
    await settle()
    await bench.logs.claim(old.hold.log, "another")
    gate.open()
    await settle()
    tasks.append(publishing(bench, b"newer"))
    await asyncio.gather(*tasks)
    assert bench.leader() is not old
    wanted = [b"first", b"a", b"0", b"1", b"2", b"3", b"4", b"newer"]
    assert await bench.payloads() == wanted


async def test_only_requests_in_flight_get_an_unknown_outcome(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    gate = Gate()

    async def lost(real: Any, *arguments: Any) -> None:
        await gate.before(real, *arguments)
        raise OutcomeUnknown("the answer was lost")

    bench.table.on("append", lost)
    sent = publishing(bench, b"sent")
    await gate.reached.wait()
    bench.table.on("append", failing(Fenced("over")))
    queued = [publishing(bench, b"%d" % number) for number in range(3)]
    await settle()
    gate.open()
    with pytest.raises(OutcomeUnknown) as caught:
        await sent
    assert not caught.value.retriable
    assert caught.value.http_status == 500
    await asyncio.gather(*queued)
    assert await bench.payloads() == [b"first", b"sent", b"0", b"1", b"2"]


async def test_under_a_key_an_unknown_outcome_may_be_repeated(bench: Bench) -> None:
    await bench.create()
    for error in (OutcomeUnknown("lost"), StorageFull("full", outcome="unknown")):
        key = type(error).__name__
        bench.table.on("append", done_but(error))
        with pytest.raises(OutcomeUnknown) as caught:
            await bench.publish(b"m", options=PublishOptions(key=key))
        assert caught.value.retriable
        assert caught.value.http_status == 503
        assert caught.value.outcome == "unknown"
        assert (await bench.publish(b"m", options=PublishOptions(key=key))).replayed
    assert await bench.payloads() == [b"m", b"m"]


async def test_a_full_disk_is_unknown_for_sent_requests_and_refuses_queued_ones(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"first")
    gate = Gate()

    async def full(real: Any, *arguments: Any) -> None:
        await gate.before(real, *arguments)
        raise StorageFull("no space", outcome="unknown")

    bench.table.on("append", full)
    sent = publishing(bench, b"sent")
    await gate.reached.wait()
    bench.table.on("append", failing(Fenced("the hold is done")))
    queued = publishing(bench, b"queued")
    await settle()
    # The next claim has an unknown outcome; nothing of the queued request was sent.
    bench.table.on("head", failing(StorageFull("no space", outcome="unknown")))
    gate.open()
    with pytest.raises(StorageFull) as caught:
        await sent
    assert (caught.value.outcome, caught.value.retriable) == ("unknown", False)
    with pytest.raises(StorageFull) as caught:
        await queued
    assert (caught.value.outcome, caught.value.retriable) == ("refused", True)
    assert await bench.payloads() == [b"first", b"sent"]
    await bench.publish(b"space again")
    assert await bench.payloads() == [b"first", b"sent", b"space again"]


async def test_a_publish_for_another_epoch_is_not_written(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    epoch = bench.leader().epoch
    await bench.publish(b"now", options=PublishOptions(epoch=epoch))
    with pytest.raises(NotLeader):
        await bench.publish(b"then", options=PublishOptions(epoch=epoch - 1))
    assert await bench.payloads() == [b"first", b"now"]


async def test_a_closed_writer_refuses_requests(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    leader = bench.leader()
    leader.end(NoLeader("over"))
    with pytest.raises(Fenced):
        leader.writer.submit(Write(asyncio.get_running_loop().create_future(), [b"m"]))
    assert leader.hold.pointer > LOG_KEY_MIN


async def test_a_bug_in_an_append_is_an_unknown_outcome_and_ends_the_hold(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    old = bench.leader()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    bench.table.on("append", failing(ZeroDivisionError()))
    with pytest.raises(OutcomeUnknown):
        await bench.publish(b"m")
    await bench.publish(b"next")
    assert [type(each["exception"]) for each in told] == [ZeroDivisionError], "it is reported"
    assert bench.leader() is not old
    assert await bench.payloads() == [b"first", b"next"]


async def test_a_message_that_storage_cannot_hold_is_refused_before_it_takes_an_id(
    bench: Bench,
) -> None:
    bench.memory.cell_bytes_max = 1024 + 40_000
    bench.restart()
    await bench.create()
    await bench.publish(bytes(40_000), bytes(40_000))
    before = len(bench.table.calls)
    for options in (PublishOptions(), PublishOptions(key="k")):
        with pytest.raises(BodyTooLarge):
            await bench.publish(b"small", bytes(40_001), options=options)
    with pytest.raises(BodyTooLarge):
        await bench.stored(7, bytes(40_001))
    assert "append" not in bench.table.calls[before:]
    assert await bench.payloads() == [bytes(40_000), bytes(40_000)]


async def test_a_batch_that_was_never_sent_is_refused_and_the_leader_goes_on(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"first")
    leader = bench.leader()
    bench.table.on("append", failing(Unavailable("no server answers")))
    with pytest.raises(Unavailable):
        await bench.publish(b"refused")
    await bench.publish(b"last")
    assert bench.leader() is leader
    assert await bench.payloads() == [b"first", b"last"]

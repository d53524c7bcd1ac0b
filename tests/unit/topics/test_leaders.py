"""Leading: claims, back-off, closing, and the release of idle topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.coordination.claims import BACK_OFF_S
from broker.errors import (
    BrokerError,
    Fenced,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from broker.model import PublishRequest, TopicId
from broker.storage.keys import LogId
from broker.storage.ownpage import PageBounds
from broker.storage.table import Space
from broker.testing.virtual_time import within
from broker.topics import leaders
from broker.topics.settings import PublishOptions
from broker.topics.settlement import PASS_PREFIX
from broker.topics.topics import Topics
from tests.kit.bench import TOPIC, Bench, Gate, Hook, done_but, failing, settle


async def test_a_claim_of_unknown_outcome_is_followed_by_another(bench: Bench) -> None:
    await bench.create()
    bench.table.on("make", failing(OutcomeUnknown("lost")), done_but(OutcomeUnknown("lost")))
    bench.table.on("head", failing(Fenced("x")))
    await bench.publish(b"m")
    assert bench.leader().epoch == 2
    assert await bench.payloads() == [b"m"]


async def test_a_claim_that_never_succeeds_ends_at_the_deadline(bench: Bench) -> None:
    await bench.create()
    bench.table.on("make", *[failing(Unavailable("down"))] * 1000)
    deadline = bench.clock.monotonic() + 5
    with pytest.raises(NoLeader) as caught:
        await bench.publish(b"m", options=PublishOptions(deadline=deadline))
    assert (caught.value.outcome, caught.value.retriable) == ("refused", True)
    assert bench.clock.monotonic() <= deadline


async def test_a_request_without_a_deadline_has_that_of_the_settings(bench: Bench) -> None:
    bench.restart(request_deadline_s=3.0)
    await bench.create()
    bench.table.on("make", *[failing(Unavailable("down"))] * 1000)
    began = bench.clock.monotonic()
    with pytest.raises(NoLeader):
        await bench.publish(b"m")
    assert 2 < bench.clock.monotonic() - began <= 3


async def test_a_log_of_a_newer_generation_than_its_record_is_no_endless_loop(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.logs.claim(LogId(TOPIC, 7), "from the future")
    with pytest.raises(NoLeader):
        await bench.publish(b"m", options=PublishOptions(deadline=bench.clock.monotonic() + 2))


async def test_two_nodes_that_both_want_to_lead_back_off_and_lose_nothing(bench: Bench) -> None:
    await bench.create()
    one = bench.topics
    bench.restart()
    two = bench.topics

    async def publish(topics: Topics, name: str) -> list[bytes]:
        payloads = [f"{name}{number}".encode() for number in range(15)]
        for payload in payloads:
            await topics.publish(TOPIC, PublishRequest(None, [payload]))
            await bench.pass_ms(1)
        return payloads

    before = bench.clock.monotonic()
    asked = await asyncio.gather(
        *(publish(topics, f"{name}{n}.") for topics, name in ((one, "a"), (two, "b")) for n in "12")
    )
    assert bench.clock.monotonic() - before < 60
    await one.close()
    await two.close()
    bench.restart()
    got = await bench.payloads()
    assert sorted(got) == sorted(payload for payloads in asked for payload in payloads)
    for payloads in asked:
        assert [payload for payload in got if payload in payloads] == payloads


async def test_closing_hands_off_every_log_and_the_node_leads_no_topic_after(bench: Bench) -> None:
    others = [TopicId("ns", f"t{number}") for number in range(5)]
    for topic in others:
        await bench.create(topic)
        await bench.publish(b"m", topic=topic)
    await bench.topics.close()
    for topic in others:
        held = (await bench.logs.look(topic)).writer
        assert held is not None
        assert (held.owner, held.total) == ("", 1)
    with pytest.raises(NoLeader):
        await bench.publish(b"late", topic=others[0])
    assert await bench.payloads(topic=others[0]) == [b"m"]


async def test_closing_completes_requests_in_flight_although_one_handoff_fails(
    bench: Bench,
) -> None:
    other = TopicId("ns", "other")
    await bench.create()
    await bench.create(other)
    await bench.publish(b"m")
    await bench.publish(b"m", topic=other)
    gate = Gate()
    bench.table.on("append", gate.before)
    last = asyncio.ensure_future(bench.publish(b"last"))
    await gate.reached.wait()
    bench.table.on("head", failing(OutcomeUnknown("lost")))
    closing = asyncio.ensure_future(bench.topics.close())
    await settle()
    assert not closing.done()
    gate.open()
    await asyncio.gather(last, closing)
    bench.restart()
    assert await bench.payloads() == [b"m", b"last"]


async def test_idle_topics_are_handed_off_and_forgotten_and_come_back(bench: Bench) -> None:
    bench.restart(topics_in_use_max=10)
    topics = [TopicId("ns", f"t{number}") for number in range(100)]
    for topic in topics:
        await bench.create(topic)
        await bench.publish(b"m", topic=topic)
        await settle()
    assert len(bench.topics.leaders.states) < 40
    held = (await bench.logs.look(topics[0])).writer
    assert held is not None
    assert held.owner == ""
    for topic in topics:
        await bench.publish(b"n", topic=topic)
    for topic in topics:
        assert await bench.payloads(topic=topic) == [b"m", b"n"]


async def test_a_publish_during_the_release_of_its_topic_is_stored(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a")
    await bench.topics.forget_idle()
    gate = Gate()
    bench.table.on("head", gate.before)
    forgetting = asyncio.ensure_future(bench.topics.forget_idle())
    await gate.reached.wait()
    publishing = asyncio.ensure_future(bench.publish(b"b"))
    await settle()
    gate.open()
    await asyncio.gather(forgetting, publishing)
    assert await bench.payloads() == [b"a", b"b"]


async def test_a_topic_that_is_used_again_before_its_release_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "RELEASES_AT_ONCE", 1)
    other = TopicId("ns", "other")
    for topic in (TOPIC, other):
        await bench.create(topic)
        await bench.publish(b"m", topic=topic)
    await bench.topics.forget_idle()
    gate, stuck = Gate(), Gate()
    bench.table.on("head", gate.before)
    forgetting = asyncio.ensure_future(bench.topics.forget_idle())
    await gate.reached.wait()
    bench.table.on("append", stuck.before)
    publishing = asyncio.ensure_future(bench.publish(b"n", topic=other))
    await stuck.reached.wait()
    leader = bench.leader(other)
    gate.open()
    await within(1, forgetting, lambda: "waiting for a topic that is in use")
    stuck.open()
    await publishing
    assert bench.leader(other) is leader


@pytest.mark.parametrize("moment", range(5))
async def test_a_topic_can_be_changed_while_its_release_waits_for_a_slow_publish(
    bench: Bench, moment: int
) -> None:
    """The release begins while the topic is idle, and the publish comes at some moment after that."""
    await bench.create()
    await bench.publish(b"m")
    await bench.topics.forget_idle()
    releasing = asyncio.ensure_future(bench.topics.forget_idle())
    await settle(moment)
    gate = Gate()
    bench.table.on("append", gate.before)
    publishing = asyncio.ensure_future(bench.publish(b"n"))
    await gate.reached.wait()
    # The change needs a lock that the release holds.
    updating = bench.topics.update(TOPIC, {"ttl": "9"})
    await within(10, updating, lambda: f"released: {releasing.done()}")
    assert not publishing.done()
    gate.open()
    await asyncio.gather(publishing, releasing)
    assert await bench.payloads() == [b"m", b"n"]


async def test_closing_ends_although_requests_wait_for_keys(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()

    async def fill_up(*_: Any, **__: Any) -> None:
        await gate.opened.wait()
        raise StorageFull("no space", outcome="unknown")

    bench.table.on("append", fill_up, fill_up)
    publishing = []
    for number in range(4):
        options = PublishOptions(key=f"key {number}")
        publishing.append(asyncio.ensure_future(bench.publish(b"n", options=options)))
        await settle()
    closing = asyncio.ensure_future(bench.topics.close())
    await settle()
    gate.open()
    await within(1, closing, lambda: f"{[request.done() for request in publishing]}")
    sent, queued = publishing[:1], publishing[1:]
    answers = await asyncio.gather(*publishing, return_exceptions=True)
    assert [type(answer) for answer in answers] == [
        *(OutcomeUnknown for _ in sent),
        *(NoLeader for _ in queued),
    ]


async def test_an_ended_leader_is_idle_after_its_appends_in_flight_have_outcomes(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("append", gate.before)
    publishing = asyncio.ensure_future(bench.publish(b"n"))
    await gate.reached.wait()
    leader = bench.leader()
    leader.end(NoLeader("over"))
    resting = asyncio.ensure_future(leader.idle())
    await settle()
    assert not resting.done()
    gate.open()
    await asyncio.gather(publishing, resting)


@pytest.mark.parametrize("deletes", [False, True])
async def test_the_next_leader_knows_a_change_that_came_during_its_take_over(
    bench: Bench, *, deletes: bool
) -> None:
    bench.bounds = PageBounds(cells_max=2)
    bench.restart(sweep_margin_ms=0)
    await bench.create(ttl_s=10)
    await bench.publish(b"first")
    append, look = Gate(), Gate()
    bench.table.on("append", append.before)
    publishing = [asyncio.ensure_future(bench.publish(b"in flight"))]
    await append.reached.wait()
    pointer = bench.clock.now_ms() * 10**6
    publishing.append(asyncio.ensure_future(bench.publish(b"carried over", pointer=pointer)))
    await settle()
    bench.leader().end(OutcomeUnknown("a write failed"))

    async def wait(real: Hook, space: Space, row: bytes, *arguments: Any) -> Any:
        if row.startswith(PASS_PREFIX):
            return await look.before(real, space, row, *arguments)
        return await real(space, row, *arguments)

    bench.table.on("get", *[wait] * 20)
    append.open()
    await look.reached.wait()
    changing: asyncio.Future[Any] = asyncio.ensure_future(
        bench.topics.delete(TOPIC) if deletes else bench.topics.update(TOPIC, {"ttl": "600"})
    )
    await settle()
    look.open()
    await asyncio.gather(changing, *publishing, return_exceptions=deletes)
    if deletes:
        await bench.create()
        await bench.publish(b"of the next generation")
        assert await bench.payloads() == [b"of the next generation"]
        return
    for _ in range(4):
        await bench.publish(b"m")
    await bench.pass_ms(11_000)
    await bench.sweeper.sweep()
    assert await bench.payloads() == [b"first", b"in flight", b"carried over", *[b"m"] * 4]


async def test_a_claim_is_delayed_only_after_claims_that_were_lost_before_any_commit(
    bench: Bench,
) -> None:
    """The delay doubles with each lost claim. A clean handover counts as none, and a commit ends the count."""
    await bench.create()
    clock = bench.clock
    delays_s: list[float] = []

    async def lead_until(why: BrokerError) -> None:
        began_s = clock.monotonic()
        await bench.topics.leaders.lead(TOPIC, began_s + 10)
        delays_s.append(clock.monotonic() - began_s)
        bench.leader().end(why)

    for why in (Fenced("x"), NoLeader("x"), NotLeader("x"), OutcomeUnknown("x"), NoLeader("x")):
        await lead_until(why)
    first, *after_one, after_two = delays_s
    assert first == 0
    assert all(BACK_OFF_S <= each <= 2 * BACK_OFF_S for each in after_one)
    assert 2 * BACK_OFF_S <= after_two <= 4 * BACK_OFF_S
    await bench.publish(b"m")
    bench.leader().end(Fenced("x"))
    await lead_until(NoLeader("x"))
    assert delays_s[-1] == 0


async def test_ids_rise_over_generations_restarts_and_clocks_that_step_back(bench: Bench) -> None:
    seen: list[bytes] = []
    for number in range(12):
        await bench.create(ttl_s=10**8)
        for _ in range(3):
            published = await bench.publish(b"a", b"b")
            seen += [published.first, published.last]
            bench.clock.step(-10_000 if number % 3 else 3_600_000)
        if number % 2:
            bench.restart()
        await bench.topics.delete(TOPIC)
    assert seen == sorted(set(seen))


async def test_publishing_goes_on_after_the_clock_stepped_back_an_hour(bench: Bench) -> None:
    await bench.create(ttl_s=10**8)
    await bench.publish(b"a")
    bench.clock.step(-3_600_000)
    before = bench.clock.monotonic()
    for _ in range(50):
        await bench.publish(b"b")
    assert bench.clock.monotonic() - before < 1
    assert (await bench.topics.stats(TOPIC)).ids_ahead_ms > 3_000_000


async def test_topics_with_large_records_are_forgotten_by_their_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "RECORD_BYTES_MAX", 500_000)
    bench.restart()
    for number in range(60):
        topic = TopicId("n", f"t{number}")
        await bench.create(topic, note="x" * 60_000)
        await bench.publish(b"x", topic=topic)
        await settle()
        assert bench.around.record_bytes <= 30 * 60_500
    held = sum(state.topic is not None for state in bench.topics.leaders.states.values())
    assert bench.around.record_bytes // 60_000 == held

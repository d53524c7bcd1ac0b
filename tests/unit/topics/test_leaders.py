from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from broker.errors import (
    BadRequest,
    Fenced,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StorageFull,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from broker.http.budget import Account, Bounds, BudgetKind, Budgets, Hold
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot, TopicId
from broker.storage.keys import LogId
from broker.testing.virtual_time import within
from broker.topics import leaders
from broker.topics.browse import BrowseQuery
from broker.topics.settings import PublishOptions
from broker.topics.streams import PollStream
from broker.topics.topic_state import WOKEN_AT_ONCE
from broker.topics.topics import Topics
from tests.kit.bench import TOPIC, Bench, Gate, done_but, failing, settle

SNAPSHOT = Snapshot(transaction_id=100, read_pointer=100, in_progress=[50])


def waiting(bench: Bench, poll: Poll | None = None, wait_s: float = 60) -> asyncio.Task[Any]:
    return asyncio.ensure_future(bench.topics.poll(TOPIC, poll or Poll(), wait_s=wait_s))


async def payloads_of(stream: Any) -> list[bytes]:
    return [message.payload async for messages in stream.messages() for message in messages]


# Topics.


async def test_a_topic_is_created_shown_changed_listed_and_deleted(bench: Bench) -> None:
    await bench.create(ttl_s=5, colour="red")
    assert (await bench.topics.get(TOPIC)).properties == {"ttl": "5", "colour": "red"}
    await bench.topics.update(TOPIC, {"ttl": "9"})
    found = await bench.topics.get(TOPIC)
    assert (found.properties, found.ttl_s, found.generation) == ({"ttl": "9"}, 9, 1)
    assert await bench.names("ns") == ["t"]
    with pytest.raises(TopicExists):
        await bench.create()
    await bench.topics.delete(TOPIC)
    for asked in (
        bench.topics.get(TOPIC),
        bench.topics.delete(TOPIC),
        bench.topics.update(TOPIC, {"ttl": "9"}),
        bench.publish(b"m"),
        bench.poll(),
        bench.stored(5, b"x"),
        bench.topics.rollback(TOPIC, RollbackRange(5, bytes(10), bytes(10))),
        bench.topics.stats(TOPIC),
    ):
        with pytest.raises(TopicNotFound):
            await asked
    assert await bench.names("ns") == []
    again = await bench.create(ttl_s=7)
    assert (again.generation, again.properties) == (2, {"ttl": "7"})


async def test_topics_are_listed_in_the_order_of_their_row_keys(bench: Bench) -> None:
    for name in ("aa", "a", "a1", "a-b", "A"):
        await bench.create(TopicId("ns", name))
    assert await bench.names("ns") == ["A", "a-b", "a1", "a", "aa"]
    assert await bench.names("n") == []


async def test_requests_for_unknown_topics_leave_no_state(bench: Bench) -> None:
    for number in range(100):
        with pytest.raises(TopicNotFound):
            await bench.poll(topic=TopicId("ns", f"no{number}"))
        with pytest.raises(TopicNotFound):
            await bench.publish(b"m", topic=TopicId("ns", f"no{number}"))
    assert not bench.topics.leaders.states


@pytest.mark.parametrize("restart", [True, False])
async def test_a_loop_of_create_and_delete_under_publishing_never_shows_old_rows(
    bench: Bench, restart: bool
) -> None:
    stop = False

    async def publish(pointer: int | None) -> None:
        while not stop:
            with contextlib.suppress(TopicNotFound, Fenced, NoLeader):
                await bench.publish(b"m", pointer=pointer)
            await bench.pass_ms(0.3)

    publishers = [asyncio.ensure_future(publish(pointer)) for pointer in (None, None, 5)]
    last = b""
    for _ in range(20):
        await bench.create()
        newest = last
        for _ in range(5):
            await bench.pass_ms(1)
            messages = await bench.poll()
            # A publish in flight during the deletion may land in the next generation.
            assert all(message.id > last for message in messages)
            newest = max((message.id for message in messages), default=newest)
        last = newest
        await bench.topics.delete(TOPIC)
        if restart:
            bench.restart()
    assert last
    stop = True
    await asyncio.gather(*publishers)


async def test_re_creation_begins_empty_also_after_a_restart(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"old")
    await bench.stored(5, b"old")
    await bench.publish(pointer=5)
    await bench.topics.delete(TOPIC)
    await bench.create()
    assert await bench.payloads() == []
    bench.restart()
    assert await bench.payloads() == []
    await bench.publish(pointer=5)
    await bench.publish(b"new")
    assert await bench.payloads() == [b"new"]


@pytest.mark.parametrize("asked", ["get", "publish", "poll", "create", "store", "update", "delete"])
async def test_a_request_that_meets_a_half_deleted_topic_completes_the_deletion(
    bench: Bench, asked: str
) -> None:
    await bench.create()
    await bench.publish(b"old")
    await bench.logs.delete(LogId(TOPIC, 1), "crashed here")
    bench.restart()
    calls = {
        "get": lambda: bench.topics.get(TOPIC),
        "publish": lambda: bench.publish(b"m"),
        "poll": bench.poll,
        "store": lambda: bench.stored(5, b"m"),
        "update": lambda: bench.topics.update(TOPIC, {"ttl": "1"}),
        "delete": lambda: bench.topics.delete(TOPIC),
    }
    if asked != "create":
        with pytest.raises(TopicNotFound):
            await calls[asked]()
        assert await bench.names("ns") == []
    assert (await bench.create()).generation == 2
    assert await bench.payloads() == []


async def test_a_delete_whose_record_was_not_written_is_finished_by_the_next_use(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.publish(b"old")
    put_if = bench.records.put_if
    broken = True

    async def put(*arguments: Any) -> Any:
        if broken:
            raise StorageFull("no space")
        return await put_if(*arguments)

    bench.records.put_if = put  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await bench.topics.delete(TOPIC)
    broken = False
    with pytest.raises(TopicNotFound):
        await bench.publish(b"m")
    assert (await bench.create()).generation == 2


async def test_a_read_in_flight_does_not_bring_a_deleted_topic_back(bench: Bench) -> None:
    await bench.create()
    bench.restart()
    gate = Gate()
    bench.table.on("get", gate.after)
    reading = asyncio.ensure_future(bench.topics.get(TOPIC))
    await gate.reached.wait()
    deleting = asyncio.ensure_future(bench.topics.delete(TOPIC))
    await settle()
    gate.open()
    await asyncio.gather(reading, deleting)
    with pytest.raises(TopicNotFound):
        await bench.topics.get(TOPIC)


async def test_a_delete_goes_on_without_its_caller(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("head", gate.after)
    deleting = asyncio.ensure_future(bench.topics.delete(TOPIC))
    await gate.reached.wait()
    deleting.cancel()
    gate.open()
    await settle()
    assert await bench.names("ns") == []


async def test_a_queued_publish_is_refused_when_its_topic_is_deleted(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("append", gate.before)
    sent = asyncio.ensure_future(bench.publish(b"a"))
    await gate.reached.wait()
    queued = asyncio.ensure_future(bench.publish(b"c"))
    await settle()
    await bench.topics.delete(TOPIC)
    gate.open()
    for publishing in (sent, queued):
        with pytest.raises(TopicNotFound):
            await publishing


async def test_a_queued_publish_is_not_stored_in_the_next_generation(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("append", gate.before)
    sent = asyncio.ensure_future(bench.publish(b"a"))
    await gate.reached.wait()
    deleting = asyncio.ensure_future(bench.topics.delete(TOPIC))
    await deleting
    await bench.topics.create(TOPIC, {"ttl": "9", "transactions": "required"})
    gate.open()
    with pytest.raises((Fenced, TopicNotFound, BadRequest)):
        await sent
    assert await bench.payloads() == []


@pytest.mark.parametrize(
    ("use", "pointer", "is_allowed"),
    [
        ("optional", None, True),
        ("optional", 5, True),
        ("required", None, False),
        ("required", 5, True),
        ("refused", None, True),
        ("refused", 5, False),
    ],
)
async def test_the_property_transactions_is_enforced(
    bench: Bench, use: str, pointer: int | None, is_allowed: bool
) -> None:
    await bench.create()
    await bench.publish(b"first")
    await bench.topics.update(TOPIC, {"ttl": "9", "transactions": use})
    if is_allowed:
        await bench.publish(b"m", pointer=pointer)
    else:
        with pytest.raises(BadRequest):
            await bench.publish(b"m", pointer=pointer)
        if pointer is not None:
            with pytest.raises(BadRequest):
                await bench.stored(pointer, b"m")


async def test_malformed_requests_are_refused(bench: Bench) -> None:
    await bench.create(ttl_s=10)
    for asked in (
        bench.publish(),
        bench.topics.store(TOPIC, PublishRequest(None, [b"m"])),
        bench.topics.store(TOPIC, PublishRequest(5, [])),
        bench.publish(b"m", options=PublishOptions(ttl_s=11)),
        bench.publish(b"m", options=PublishOptions(ttl_s=0)),
    ):
        with pytest.raises(BadRequest):
            await asked
    await bench.publish(b"m", options=PublishOptions(ttl_s=10))


# Expiry on every reader.


@pytest.mark.parametrize("cached", [True, False])
async def test_all_readers_lose_a_message_at_the_same_millisecond(
    bench: Bench, cached: bool
) -> None:
    await bench.create(ttl_s=10)
    await bench.stored(5, b"stored")
    await bench.stored(5, b"stored short", options=PublishOptions(ttl_s=3))
    await bench.pass_ms(4000)
    began_ms = bench.clock.now_ms()
    await bench.publish(b"plain", b"plain")
    await bench.publish(b"short", options=PublishOptions(ttl_s=2))
    await bench.publish(b"tx", pointer=7)
    await bench.publish(pointer=5, options=PublishOptions(ttl_s=6))
    published_ms = {m.payload: m.timestamp_ms for m in await bench.poll()}
    lives_ms = {b"plain": 10_000, b"short": 2000, b"tx": 10_000}
    lives_ms |= {b"stored": 6000, b"stored short": 3000}
    snapshot = Snapshot(transaction_id=100, read_pointer=100)
    moments = {published_ms[p] + lives_ms[p] + d for p in lives_ms for d in (0, 1)}
    for moment in sorted(moments):
        await bench.pass_ms(moment - bench.clock.now_ms())
        assert bench.clock.now_ms() == moment
        alive = {p for p in lives_ms if moment <= published_ms[p] + lives_ms[p]}
        if not cached:
            bench.forget_cache()
        for poll in (Poll(), Poll(snapshot=snapshot), Poll(0), Poll(bytes(20), limit=100)):
            assert set(await bench.payloads(poll)) == alive, (moment - began_ms, poll)
        for descending in (True, False):
            query = BrowseQuery(None, None, 100, descending)
            page = await bench.topics.browse(TOPIC, query)
            shown = {entry.payload for entry in page.entries if entry.payload is not None}
            assert shown == alive


async def test_a_changed_ttl_applies_to_existing_messages(bench: Bench) -> None:
    await bench.create(ttl_s=100)
    await bench.publish(b"m")
    await bench.pass_ms(50_000)
    await bench.topics.update(TOPIC, {"ttl": "49"})
    assert await bench.payloads() == []
    await bench.topics.update(TOPIC, {"ttl": "51"})
    assert await bench.payloads() == [b"m"]


async def test_the_longest_ttl_works(bench: Bench) -> None:
    await bench.create(ttl_s=2_147_483_647)
    await bench.publish(b"m")
    assert await bench.payloads() == [b"m"]


# Waiting.


async def test_a_waiting_poll_is_woken_by_the_commit(bench: Bench) -> None:
    await bench.create()
    polls = [waiting(bench) for _ in range(3)]
    await bench.pass_ms(5000)
    assert bench.topics.waiting_polls == 3
    before = bench.clock.monotonic()
    await bench.publish(b"m")
    for poll in polls:
        assert await payloads_of(await poll) == [b"m"]
    assert bench.clock.monotonic() - before < 0.001
    assert bench.topics.waiting_polls == 0


async def test_a_waiting_poll_ends_empty_in_time(bench: Bench) -> None:
    await bench.create()
    before = bench.clock.monotonic()
    stream = await waiting(bench, wait_s=7)
    assert (stream.empty, stream.ended, stream.blocked_by) == (True, True, None)
    assert bench.clock.monotonic() - before == pytest.approx(7)


async def test_no_wake_up_is_lost_between_the_reading_and_the_waiting(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"old")
    (old,) = await bench.poll()
    for call in ("before", "after"):
        bench.forget_cache()
        gate = Gate()
        bench.table.on("cells", getattr(gate, call))
        poll = waiting(bench, Poll(old.id, inclusive=False))
        await gate.reached.wait()
        await bench.publish(call.encode())
        gate.open()
        before = bench.clock.monotonic()
        stream = await poll
        assert bench.clock.monotonic() - before < 1
        messages = [m async for ms in stream.messages() for m in ms]
        assert [m.payload for m in messages] == [call.encode()]
        old = messages[-1]


async def test_a_wait_ends_when_an_open_transaction_holds_the_consumer(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first", pointer=40)
    (first,) = await bench.poll()
    poll = waiting(bench, Poll(first.id, False, None, SNAPSHOT), wait_s=10)
    await bench.pass_ms(1000)
    before = bench.clock.monotonic()
    rolled = await bench.publish(b"open", pointer=50)
    await bench.publish(b"behind", pointer=41)
    stream = await poll
    assert (stream.empty, stream.blocked_by) == (True, 50)
    assert bench.clock.monotonic() - before < 1
    # After the rollback the same snapshot shows the later messages.
    await bench.topics.rollback(TOPIC, RollbackRange(50, rolled.first, rolled.last))
    poll = waiting(bench, Poll(first.id, False, None, SNAPSHOT), wait_s=10)
    assert await payloads_of(await poll) == [b"behind"]


async def test_a_blocked_poll_names_the_blocking_pointer(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a")
    await bench.publish(pointer=50)
    stream = await bench.topics.poll(TOPIC, Poll(snapshot=SNAPSHOT))
    assert await payloads_of(stream) == [b"a"]
    assert stream.blocked_by == 50


async def test_a_waiting_poll_ends_with_its_topic(bench: Bench) -> None:
    await bench.create()
    poll = waiting(bench)
    await bench.pass_ms(1000)
    await bench.topics.delete(TOPIC)
    await bench.create()
    before = bench.clock.monotonic()
    assert (await poll).empty
    assert bench.clock.monotonic() - before < 1


async def test_a_drain_answers_waiting_polls_and_lets_no_poll_wait(bench: Bench) -> None:
    await bench.create()
    poll = waiting(bench)
    await bench.pass_ms(1000)
    before = bench.clock.monotonic()
    bench.topics.begin_drain()
    assert (await poll).empty
    assert (await waiting(bench)).empty
    assert bench.clock.monotonic() == before
    await bench.publish(b"still taken")


async def test_waiting_polls_are_counted_while_they_wait(bench: Bench) -> None:
    budgets = Budgets({BudgetKind.WAITING: Bounds(1, 2, 2)})
    accounts = [budgets.account("client", lambda _: None) for _ in range(3)]

    def wait_as(account: Account, wait_s: float) -> asyncio.Future[PollStream]:
        hold = Hold(account)
        return asyncio.ensure_future(bench.topics.poll(TOPIC, Poll(), wait_s=wait_s, hold=hold))

    await bench.create()
    polls = [wait_as(account, 5) for account in accounts[:2]]
    await bench.pass_ms(1)
    assert budgets.held[BudgetKind.WAITING] == bench.topics.waiting_polls == 2
    with pytest.raises(Overloaded):
        await wait_as(accounts[2], 5)
    assert await bench.payloads() == [], "a poll that does not wait is allowed"
    for poll in polls:
        await poll
    assert not budgets.held[BudgetKind.WAITING]
    assert (await wait_as(accounts[2], 1)).empty
    await bench.publish(b"a")
    assert await bench.payloads() == [b"a"]


async def test_a_commit_wakes_many_polls_a_few_in_each_round_of_the_loop(bench: Bench) -> None:
    await bench.create()
    count = 5 * WOKEN_AT_ONCE
    polls = [waiting(bench) for _ in range(count)]
    await bench.pass_ms(1)
    publishing = asyncio.ensure_future(bench.publish(b"a"))
    woken, most = count, 0
    while not all(poll.done() for poll in polls):
        await settle(1)
        left = bench.topics.waiting_polls
        woken, most = left, max(most, woken - left)
    await publishing
    assert most <= 2 * WOKEN_AT_ONCE, "two rounds of the loop, as this test looks at them"
    assert [await payloads_of(poll.result()) for poll in polls] == [[b"a"]] * count


async def test_a_waiting_poll_survives_a_change_of_leaders(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"a")
    (a,) = await bench.poll()
    poll = waiting(bench, Poll(a.id, inclusive=False))
    await bench.pass_ms(1000)
    bench.leader().end(NoLeader("over"))
    await bench.pass_ms(1000)
    await bench.publish(b"b")
    assert await payloads_of(await poll) == [b"b"]


async def test_a_stream_goes_on_while_its_topic_is_deleted_and_made_anew(bench: Bench) -> None:
    bench.restart(page_rows_max=2, cache_bytes_max=0)
    await bench.create()
    await bench.publish(*(b"%d" % number for number in range(10)))
    stream = await bench.topics.poll(TOPIC, Poll())
    got: list[bytes] = []
    async for messages in stream.messages():
        got += [message.payload for message in messages]
        if len(got) == 2:
            await bench.topics.delete(TOPIC)
        if len(got) == 4:
            await bench.create()
            await bench.publish(b"new")
    assert got == [b"%d" % number for number in range(len(got))], "a prefix, never another log"


# Leading.


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


async def test_a_waiting_poll_keeps_its_topic_in_use(bench: Bench) -> None:
    await bench.create()
    poll = waiting(bench)
    await bench.pass_ms(10)
    for _ in range(3):
        await bench.topics.forget_idle()
    await bench.publish(b"m")
    assert await payloads_of(await poll) == [b"m"]


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


async def test_a_topic_that_does_not_come_to_rest_is_let_be(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    gate = Gate()
    bench.table.on("append", gate.before)
    publishing = asyncio.ensure_future(bench.publish(b"n"))
    await gate.reached.wait()
    leader = bench.leader()
    releasing = asyncio.ensure_future(
        bench.topics.leaders._release(bench.topics.leaders.states[TOPIC])
    )
    await settle()
    # A change of the topic needs the lock that the release holds.
    updating = bench.topics.update(TOPIC, {"ttl": "9"})
    await within(10, updating, lambda: f"released: {releasing.done()}")
    assert releasing.done()
    assert not publishing.done()
    gate.open()
    await publishing
    assert bench.leader() is leader


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


async def test_only_lost_claims_are_counted(bench: Bench) -> None:
    await bench.create()
    state = bench.topics.leaders.state(TOPIC)
    seen = []
    for why in (Fenced("x"), NoLeader("x"), NotLeader("x"), OutcomeUnknown("x"), NoLeader("x")):
        await bench.topics.leaders.lead(TOPIC, bench.clock.monotonic() + 10)
        bench.leader().end(why)
        seen.append(state.claims_lost)
    await bench.publish(b"m")
    bench.leader().end(Fenced("x"))
    assert [*seen, state.claims_lost] == [1, 1, 1, 2, 2, 0]


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

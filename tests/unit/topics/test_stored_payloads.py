from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from broker import long_work
from broker.errors import (
    Fenced,
    OutcomeUnknown,
    Overloaded,
    PayloadsSealed,
    StorageFull,
    TransactionTooOld,
    Unavailable,
)
from broker.long_work import ASIDE_BYTES_MIN
from broker.model import Poll, PublishRequest, RollbackRange, Snapshot, TopicId
from broker.storage import head as heads
from broker.storage.head import PageState
from broker.storage.keys import LogId
from broker.storage.ownpage import PageBounds
from broker.storage.root import RootState
from broker.storage.table import NotWritten, Space
from broker.topics import keyed_log
from broker.topics.dedupe import KEY_BYTES
from broker.topics.settings import PublishOptions
from broker.topics.writer import LogWriter
from tests.kit.bench import TOPIC, Bench, Gate, Hook, done_but, failing, is_root, passing, settle

LOG = LogId(TOPIC, 1, 5)


async def state_of(bench: Bench, number: int = 5) -> RootState:
    root = await bench.around.payload_logs.root(LOG._replace(number=number))
    assert root is not None
    return root.state


def reopened(value: bytes) -> bytes:
    """Return a page's head as it was before the page was closed."""
    return heads.encode(heads.decode(value)._replace(state=PageState.OPEN))


async def seen(bench: Bench) -> list[bytes]:
    """Return the payloads that a transaction sees if it began after all others had ended."""
    return await bench.payloads(Poll(snapshot=Snapshot(transaction_id=100, read_pointer=100)))


async def test_stored_payloads_are_seen_when_their_reference_is(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a", b"b")
    await bench.publish(b"m")
    await bench.stored(5, b"c")
    assert await bench.payloads() == [b"m"]
    await bench.publish(pointer=5)
    assert await bench.payloads() == [b"m", b"a", b"b", b"c"]


async def test_the_reference_seals_first_and_is_marked_after(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    bench.table.calls.clear()
    await bench.publish(pointer=5)
    await settle()
    changes = [call for call in bench.table.calls if call in {"head", "root", "append"}]
    assert changes == ["head", "root", "append", "root"]
    assert await state_of(bench) is RootState.PUBLISHED


@pytest.mark.parametrize("stores", [[], [b"a"]])
async def test_a_published_payload_log_takes_no_more(bench: Bench, stores: list[bytes]) -> None:
    await bench.create()
    if stores:
        await bench.stored(5, *stores)
    await bench.publish(pointer=5)
    for _ in range(2):
        with pytest.raises(PayloadsSealed):
            await bench.stored(5, b"late")
        bench.restart()
    assert await bench.payloads() == stores


async def test_a_repeated_publish_of_a_reference_delivers_once_and_answers_as_before(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    first = await bench.publish(pointer=5)
    again = await bench.publish(pointer=5)
    await settle()
    marked = await bench.publish(pointer=5)
    bench.restart()
    restarted = await bench.publish(pointer=5)
    assert {p[:3] for p in (first, again, marked, restarted)} == {first[:3]}
    assert await bench.payloads() == [b"a"]


async def test_two_concurrent_publishes_of_a_reference_are_one(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    one, two = await asyncio.gather(bench.publish(pointer=5), bench.publish(pointer=5))
    assert one == two
    assert await bench.payloads() == [b"a"]


async def test_after_a_crash_between_seal_and_append_a_repeat_appends_the_reference(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    await bench.publish(b"m")
    bench.table.on("append", failing(OutcomeUnknown("crashed")))
    with pytest.raises(OutcomeUnknown):
        await bench.publish(pointer=5)
    assert await state_of(bench) is RootState.SEALED
    with pytest.raises(PayloadsSealed):
        await bench.stored(5, b"late")
    bench.restart()
    await bench.publish(b"n")
    await bench.publish(pointer=5)
    assert await bench.payloads() == [b"m", b"n", b"a"]


@pytest.mark.parametrize("restart", [True, False])
async def test_a_repeat_finds_a_reference_that_was_appended_before_a_crash(
    bench: Bench, restart: bool
) -> None:
    bench.bounds = PageBounds(cells_max=2)
    bench.restart()
    await bench.create()
    await bench.stored(5, b"a")
    for _ in range(5):
        await bench.publish(b"m")
    bench.table.on("append", done_but(OutcomeUnknown("the answer was lost")))
    with pytest.raises(OutcomeUnknown):
        await bench.publish(pointer=5)
    for _ in range(5):
        await bench.publish(b"n")
    if restart:
        bench.restart()
    again = await bench.publish(pointer=5)
    assert again.replayed
    assert await bench.payloads() == [*[b"m"] * 5, b"a", *[b"n"] * 5]
    assert (await bench.poll())[5].id[:10] == again.first


async def test_a_reference_refused_by_a_full_queue_is_published_by_a_repeat(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    bench.around.queue.bytes_max = -1
    with pytest.raises(Overloaded, match="full"):
        await bench.publish(pointer=5)
    bench.around.queue.bytes_max = 1 << 20
    await bench.publish(pointer=5)
    assert await bench.payloads() == [b"a"]


async def test_a_store_at_the_time_of_the_publish_is_in_it_or_refused(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    gate = Gate()
    bench.table.on("append", gate.before)
    early = asyncio.ensure_future(bench.stored(5, b"early"))
    await gate.reached.wait()
    publishing = asyncio.ensure_future(bench.publish(pointer=5))
    await settle()
    late = asyncio.ensure_future(bench.stored(5, b"late"))
    await settle()
    assert not late.done()
    gate.open()
    await early
    await publishing
    with pytest.raises(PayloadsSealed):
        await late
    assert await bench.payloads() == [b"a", b"early"]


async def test_a_store_waits_for_a_publish_that_fails_before_its_seal(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    gate = Gate()

    async def refused(real: object, *arguments: object, **named: object) -> None:
        gate.reached.set()
        await gate.opened.wait()
        raise Unavailable("not sent")

    bench.table.on("head", refused)
    publishing = asyncio.ensure_future(bench.publish(pointer=5))
    await gate.reached.wait()
    storing = asyncio.ensure_future(bench.stored(5, b"b"))
    await settle()
    gate.open()
    with pytest.raises(Unavailable):
        await publishing
    await storing
    await bench.publish(pointer=5)
    assert await bench.payloads() == [b"a", b"b"]


async def test_a_keyed_store_that_comes_behind_the_seal_is_refused_and_leading_goes_on(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    leader = bench.leader()
    gate = Gate()
    bench.table.on("scan", gate.before)
    late = asyncio.ensure_future(bench.stored(5, b"late", options=PublishOptions(key="k")))
    await gate.reached.wait()
    await bench.publish(pointer=5)
    gate.open()
    with pytest.raises(PayloadsSealed):
        await late
    assert bench.leader() is leader


async def test_a_publish_of_a_reference_completes_although_its_caller_leaves(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    gate = Gate()
    bench.table.on("head", gate.after)
    publishing = asyncio.ensure_future(bench.publish(pointer=5))
    await gate.reached.wait()
    publishing.cancel()
    gate.open()
    await settle()
    assert await bench.payloads() == [b"a"]


async def test_a_store_is_acknowledged_only_while_the_topic_is_led(bench: Bench) -> None:
    bench.memory.is_alone = False
    await bench.create()
    await bench.stored(5, b"a")
    gate = Gate()
    bench.table.on("append", gate.after)
    storing = asyncio.ensure_future(bench.stored(5, b"b"))
    await gate.reached.wait()
    await bench.logs.claim(LogId(TOPIC, 1), "another")
    gate.open()
    with pytest.raises(OutcomeUnknown):
        await storing
    await bench.publish(b"m")


async def test_a_store_whose_proof_gets_no_answer_is_unknown(bench: Bench) -> None:
    bench.memory.is_alone = False
    await bench.create()
    await bench.stored(5, b"a")
    bench.table.on("get", failing(Unavailable("no answer")))
    with pytest.raises(OutcomeUnknown):
        await bench.stored(5, b"b")


async def test_stores_share_a_proof_that_began_after_their_commits(bench: Bench) -> None:
    bench.memory.is_alone = False
    await bench.create()
    for number in (5, 6, 7):
        await bench.stored(number, b"a")
    before = bench.table.calls.count("get")
    await asyncio.gather(*(bench.stored(number, b"b") for number in (5, 6, 7)))
    assert bench.table.calls.count("get") - before == 1


async def test_a_fenced_store_is_done_by_the_next_leader(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    old = bench.leader()
    bench.table.on("append", failing(Fenced("over")))
    await bench.stored(5, b"b")
    assert bench.leader() is not old
    await bench.publish(pointer=5)
    assert await bench.payloads() == [b"a", b"b"]


async def test_a_failed_seal_gives_the_topic_up_and_may_be_repeated(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    old = bench.leader()
    bench.table.on("head", done_but(StorageFull("full", outcome="unknown")))
    with pytest.raises(StorageFull):
        await bench.publish(pointer=5)
    await bench.publish(pointer=5)
    assert bench.leader() is not old
    assert await bench.payloads() == [b"a"]


@pytest.mark.parametrize("is_caller_gone", [False, True])
async def test_few_payload_logs_stay_open_and_those_in_use_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, is_caller_gone: bool
) -> None:
    """A log is in use while a request for it is hashed, and while a store works on although its caller left."""
    bench.restart(payload_logs_open_max=2)
    await bench.create()

    async def is_claimed_for_a_store(number: int, payload: bytes = b"x") -> bool:
        bench.table.calls.clear()
        await bench.stored(number, payload)
        return "head" in bench.table.calls or "make" in bench.table.calls

    assert await is_claimed_for_a_store(5, b"a")
    gate = Gate()

    async def hashed(work: Callable[[], bytes]) -> bytes:
        gate.reached.set()
        await gate.opened.wait()
        return work()

    if is_caller_gone:
        bench.table.on("scan", gate.before)
        slow_payload = b"slow"
    else:
        monkeypatch.setattr(keyed_log, "aside", hashed)
        slow_payload = bytes(ASIDE_BYTES_MIN)
    slow = asyncio.ensure_future(bench.stored(5, slow_payload, options=PublishOptions(key="k")))
    await gate.reached.wait()
    if is_caller_gone:
        slow.cancel()
    for number in range(6, 16):
        assert await is_claimed_for_a_store(number)
    assert not await is_claimed_for_a_store(5, b"b"), "it is in use"
    gate.open()
    await asyncio.wait({slow})
    for number in range(16, 26):
        assert await is_claimed_for_a_store(number)
    claimed = [number for number in (25, 24, 23, 5) if await is_claimed_for_a_store(number)]
    assert claimed == [23, 5]
    for number in range(5, 26):
        await bench.publish(pointer=number)
    assert await bench.payloads() == [b"a", b"b", slow_payload, *[b"x"] * 24]


async def test_few_payload_logs_of_all_topics_stay_open(bench: Bench) -> None:
    bench.restart(payload_logs_open_max=3)
    for name in "ab":
        await bench.create(TopicId("ns", name))
        for number in range(5):
            await bench.topics.store(TopicId("ns", name), PublishRequest(number, [b"x"]))
    assert len(bench.around.open_logs) == 3
    bench.leader(TopicId("ns", "b")).end(Fenced("over"))
    assert len(bench.around.open_logs) == 0


async def test_a_closed_payload_log_is_freed_before_the_deadlines_of_its_stores(
    bench: Bench,
) -> None:
    bench.restart(payload_logs_open_max=1)
    await bench.create()
    writers = weakref.WeakSet[LogWriter]()
    for number in range(5):
        late = PublishOptions(deadline=bench.clock.monotonic() + 300)
        await bench.stored(number, b"x", options=late)
        writers.update(log.writer for log in bench.leader().payloads._logs.values())
    await settle()
    gc.collect()
    assert len(writers) == 1


async def test_many_payload_logs_with_keys_close_in_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "STEPS_NOW_MAX", 3)
    await bench.create()
    for number in range(10):
        await bench.stored(number, b"x", options=PublishOptions(key="k"))
    held = bench.around.keys.bytes
    bench.leader().end(Fenced("over"))
    assert bench.around.keys.bytes == held - 3 * KEY_BYTES
    await settle(50)
    assert bench.around.keys.bytes == 0


async def test_payload_ids_rise_though_their_log_was_forgotten_and_the_clock_steps_back(
    bench: Bench,
) -> None:
    bench.restart(payload_logs_open_max=1)
    await bench.create(ttl_s=10**6)
    for number in range(6):
        await bench.stored(5, b"%d" % number)
        await bench.stored(6, b"x")
        bench.clock.step(-3_600_000)
    await bench.publish(pointer=5)
    assert await bench.payloads() == [b"%d" % number for number in range(6)]


async def test_a_reference_that_shows_no_seal_is_read_again_and_then_refused(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    await bench.publish(pointer=5)
    stale = 3

    async def old_answer(real: Hook, space: Space, row: bytes, *arguments: object) -> Any:
        nonlocal stale
        found = await real(space, row, *arguments)
        if space is not Space.PAYLOADS or is_root(row) or not stale:
            return found
        stale -= 1
        return {column: cell._replace(value=reopened(cell.value)) for column, cell in found.items()}

    bench.forget_cache()
    bench.table.on("get", *[old_answer] * 40)
    assert await bench.payloads() == [b"a"]
    stale = 100
    bench.table.forget_hooks()
    bench.table.on("get", *[old_answer] * 40)
    with pytest.raises(Unavailable):
        await bench.poll()


# Rolling back.


async def test_a_rolled_back_reference_is_seen_without_a_snapshot_alone(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    done = await bench.publish(pointer=5)
    await bench.topics.rollback(TOPIC, RollbackRange(5, done.first, done.last))
    snapshot = Snapshot(transaction_id=100, read_pointer=100)
    for _ in range(2):
        assert await bench.payloads() == [b"a"]
        assert await bench.payloads(Poll(snapshot=snapshot)) == []
        bench.restart()
    with pytest.raises(PayloadsSealed):
        await bench.stored(5, b"late")


async def test_a_rollback_after_a_takeover_finds_the_rows(bench: Bench) -> None:
    await bench.create()
    done = await bench.publish(b"a", b"b", pointer=7)
    bench.restart()
    for _ in range(2):
        await bench.topics.rollback(TOPIC, RollbackRange(7, done.first, done.last))
        assert await seen(bench) == []


@pytest.mark.parametrize(
    "error", [Fenced("over"), Unavailable("down"), OutcomeUnknown("lost"), NotWritten("gone")]
)
@pytest.mark.parametrize("done", [False, True])
async def test_a_rollback_that_fails_midway_is_unknown_and_may_be_repeated(
    bench: Bench, error: Exception, *, done: bool
) -> None:
    """Some of its pages are changed, so no leader may answer that it is refused."""
    bench.bounds = PageBounds(cells_max=1)
    bench.restart()
    await bench.create()
    rows = [await bench.publish(b"%d" % number, pointer=7) for number in range(3)]
    rollback = RollbackRange(7, rows[0].first, rows[-1].last)
    bench.table.on("rolled", passing, done_but(error) if done else failing(error))
    if isinstance(error, NotWritten):
        # The first attempt may have been made, so this error of a repetition is no refusal.
        bench.table.on("get", passing, *[failing(NotWritten("gone"))] * 10_000)
    with pytest.raises(OutcomeUnknown) as caught:
        await bench.topics.rollback(TOPIC, rollback)
    assert (caught.value.outcome, caught.value.retriable) == ("unknown", False)
    bench.table.forget_hooks()
    await bench.topics.rollback(TOPIC, rollback)
    assert await seen(bench) == []
    bench.restart()
    assert await seen(bench) == []


async def test_a_rollback_goes_on_without_its_caller(bench: Bench) -> None:
    # Otherwise storage and the cache would differ.
    await bench.create()
    done = await bench.publish(b"a", pointer=7)
    gate = Gate()
    bench.table.on("rolled", gate.after)
    rolling = asyncio.ensure_future(
        bench.topics.rollback(TOPIC, RollbackRange(7, done.first, done.last))
    )
    await gate.reached.wait()
    rolling.cancel()
    gate.open()
    await settle()
    snapshot = Snapshot(transaction_id=100, read_pointer=100)
    assert await bench.payloads(Poll(snapshot=snapshot)) == []
    bench.forget_cache()
    assert await bench.payloads(Poll(snapshot=snapshot)) == []


async def test_a_keyed_store_is_replayed_after_its_payloads_were_published(
    bench: Bench,
) -> None:
    """Several small stores: their marks are not put yet, and entries that are read as one have none."""
    await bench.create()
    options = [PublishOptions(key=key) for key in "abc"]
    first = [await bench.stored(7, b"x", options=each) for each in options]
    await bench.publish(pointer=7)
    for each, before in zip(options, first, strict=True):
        again = await bench.stored(7, b"x", options=each)
        assert again.replayed
        assert (again.first, again.last) == (before.first, before.last)


async def test_a_negative_pointer_is_refused(bench: Bench) -> None:
    await bench.create()
    done = await bench.publish(b"a", pointer=7)
    await bench.topics.rollback(TOPIC, RollbackRange(7, done.first, done.last))
    with pytest.raises(TransactionTooOld):
        await bench.topics.rollback(TOPIC, RollbackRange(-7, done.first, done.last))
    for asked in (
        bench.publish(b"x", pointer=-7),
        bench.publish(pointer=-7),
        bench.stored(-7, b"x"),
    ):
        with pytest.raises(TransactionTooOld) as caught:
            await asked
        assert (caught.value.http_status, caught.value.code) == (422, "transaction_too_old")
    snapshot = Snapshot(transaction_id=100, read_pointer=100)
    assert await bench.payloads(Poll(snapshot=snapshot)) == []


async def test_a_transaction_past_its_longest_life_is_refused(bench: Bench) -> None:
    bench.restart(transaction_life_max_s=90_000)
    await bench.create()
    now_ms = bench.clock.now_ms()
    young = (now_ms - 90_000_000 + 1) * 1_000_000
    old = (now_ms - 90_000_000) * 1_000_000
    await bench.publish(b"a", pointer=young)
    await bench.stored(young, b"b")
    for asked in (
        bench.publish(b"a", pointer=old),
        bench.publish(pointer=old),
        bench.stored(old, b"b"),
    ):
        with pytest.raises(TransactionTooOld):
            await asked


async def test_a_reference_that_waits_past_its_deadline_is_refused_and_not_stored(
    bench: Bench,
) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    gate = Gate()
    bench.table.on("append", gate.before)
    slow = asyncio.ensure_future(bench.publish(b"slow"))
    await gate.reached.wait()
    options = PublishOptions(deadline=bench.clock.monotonic() + 0.5)
    late = asyncio.ensure_future(bench.publish(pointer=5, options=options))
    await settle()
    behind = asyncio.ensure_future(bench.publish(b"behind"))
    await bench.pass_ms(600)
    with pytest.raises(Overloaded) as caught:
        await asyncio.wait_for(late, 0)
    assert (caught.value.outcome, caught.value.retriable) == ("refused", True)
    await bench.pass_ms(1400)
    gate.open()
    await asyncio.gather(slow, behind)
    assert await bench.payloads() == [b"slow", b"behind"]
    await bench.publish(pointer=5)
    assert await bench.payloads() == [b"slow", b"behind", b"a"]


@pytest.mark.parametrize("gated", ["head", "root"])
async def test_a_reference_whose_payload_log_is_closed_too_slowly_is_refused(
    bench: Bench, gated: str
) -> None:
    await bench.create()
    await bench.stored(5, b"a")
    gate = Gate()
    bench.table.on(gated, gate.after)
    options = PublishOptions(deadline=bench.clock.monotonic() + 0.5)
    late = asyncio.ensure_future(bench.publish(pointer=5, options=options))
    await gate.reached.wait()
    await bench.publish(b"behind")
    await bench.pass_ms(2000)
    with pytest.raises(Unavailable, match="deadline"):
        await late
    gate.open()
    await settle()
    assert await bench.payloads() == [b"behind"]


async def test_publishing_goes_on_between_the_pages_of_a_rollback(bench: Bench) -> None:
    bench.bounds = PageBounds(cells_max=4)
    bench.restart()
    await bench.create()
    rows = [await bench.publish(*[b"x"] * 2500, pointer=7) for _ in range(40)]
    rollback = RollbackRange(7, rows[0].first, rows[-1].last)
    gates = [Gate() for _ in range(3)]
    bench.table.on("rolled", *(gate.after for gate in gates))
    rolling = asyncio.ensure_future(bench.topics.rollback(TOPIC, rollback))
    for number, gate in enumerate(gates):
        await gate.reached.wait()
        # The page before is changed, the next one is not: a publish is not held up meanwhile.
        await asyncio.wait_for(bench.publish(b"%d" % number), 1)
        assert not rolling.done()
        gate.open()
    await rolling
    assert await seen(bench) == [b"0", b"1", b"2"]
    bench.restart()
    assert await seen(bench) == [b"0", b"1", b"2"]

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import OutcomeUnknown, PayloadsSealed, TransactionTooOld
from broker.model import Poll, TopicId, timestamp_of
from broker.storage import head as heads
from broker.storage.columns import ENTRIES_END
from broker.storage.keys import LogId, log_prefix, mark_prefix, page_key, prefix_end, space_of
from broker.storage.ownpage import PageBounds
from broker.storage.page_entries import entries_in
from broker.storage.root import RootState
from broker.storage.table import Space
from broker.testing.mutants import in_force
from broker.topics.settings import PublishOptions
from broker.topics.sweep_rounds import PLACES
from tests.kit.bench import TOPIC, Bench, Gate, Hook, done_but, settle

LOG = LogId(TOPIC, 1)
MARGIN_MS = 60_000
TTL_S = 100
LIFE_S = 90_000


@pytest.fixture
def swept(bench: Bench) -> Bench:
    bench.bounds = PageBounds(cells_max=5)
    bench.restart(transaction_life_max_s=LIFE_S, sweep_rows_max=3)
    return bench


def pointer_now(bench: Bench) -> int:
    return bench.clock.now_ms() * 1_000_000


async def rows_of(bench: Bench, log: LogId = LOG) -> int:
    """Return how many messages the pages that are not gone have."""
    prefix, space, count = log_prefix(log), space_of(log), 0
    for row, cell in await bench.memory.scan(space, prefix, prefix_end(prefix), limit=10_000):
        if len(row) == len(page_key(log, bytes(10))) and not is_gone(cell.value):
            cells = await bench.memory.cells(
                space, row, b"e", ENTRIES_END, cells_max=10_000, bytes_max=1 << 30
            )
            found = entries_in(cells.cells)
            count += sum(0 if entry.is_stub else entry.count for entry in found)
    return count


async def marks_of(bench: Bench) -> list[bytes]:
    """Return the rows of all marks of the topic's messages."""
    prefix = mark_prefix(LOG)[:-4]
    found = await bench.memory.scan(Space.MESSAGES, prefix, prefix_end(prefix), limit=100)
    return [row for row, _ in found]


def is_gone(head: bytes) -> bool:
    return heads.decode(head).state is heads.PageState.GONE


async def publish_each(bench: Bench, count: int, payload: bytes = b"x", **more: int) -> None:
    for _ in range(count):
        await bench.publish(payload, options=PublishOptions(**more))


async def test_expired_messages_are_removed_after_a_margin_and_not_before(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 9)
    last = await swept.publish(b"x")
    await swept.pass_ms(50_000)
    await swept.publish(b"later")
    last_ms = timestamp_of(last.first) + TTL_S * 1000 + MARGIN_MS
    await swept.pass_ms(last_ms - swept.clock.now_ms())
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 11
    await swept.pass_ms(1)
    report = await swept.sweeper.sweep()
    assert report.rows == 10
    assert await rows_of(swept) == 1
    await swept.pass_ms(10**6)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 0
    assert await swept.payloads() == []


async def test_a_page_stays_as_long_as_one_of_its_messages_lives(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 3)
    await swept.pass_ms(TTL_S * 1000)
    await publish_each(swept, 1)
    await swept.pass_ms(MARGIN_MS + 10)
    await swept.sweeper.sweep()
    assert (await rows_of(swept), len(await swept.payloads())) == (4, 1)


async def test_the_floor_is_on_disk_before_a_page_is_cleared(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 12)
    await swept.pass_ms(10**6)
    floors = []

    async def change(real: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("clear"):
            root = await swept.logs.root(LOG)
            assert root is not None
            floors.append((root.floor, swept.leader().hold.page))
        return await real(*arguments, **named)

    swept.table.on("head", *[change] * 10)
    await swept.sweeper.sweep()
    assert len(floors) == 3
    assert all(floor == page for floor, page in floors)


async def test_a_raised_ttl_brings_no_message_back(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 11)
    await swept.pass_ms(TTL_S * 1000 + MARGIN_MS + 10)
    await swept.sweeper.sweep()
    await swept.topics.update(TOPIC, {"ttl": "1000000"})
    assert await swept.payloads() == []


async def test_a_ttl_that_is_raised_during_a_sweep_counts_for_it(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 11)
    await swept.pass_ms(TTL_S * 1000 - 1)
    gate = Gate()
    swept.table.on("scan", gate.before)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    await gate.reached.wait()
    await swept.topics.update(TOPIC, {"ttl": "1000000"})
    await swept.pass_ms(MARGIN_MS + 10)
    gate.open()
    await sweeping
    assert len(await swept.payloads()) == 11


async def test_messages_with_a_shorter_life_go_before_the_others(swept: Bench) -> None:
    await swept.create(ttl_s=10_000)
    await swept.publish(b"a")
    await publish_each(swept, 7, ttl_s=10)
    await swept.publish(b"b")
    await swept.pass_ms(10_000 + MARGIN_MS)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 9
    await swept.pass_ms(2)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 2
    assert await swept.payloads() == [b"a", b"b"]
    assert (await swept.topics.stats(TOPIC)).published == 9


async def test_messages_with_a_shorter_life_go_also_where_no_node_leads(swept: Bench) -> None:
    await swept.create(ttl_s=10_000)
    await swept.publish(b"a", options=PublishOptions(ttl_s=10))
    await swept.publish(b"b")
    swept.restart()
    await swept.pass_ms(10_000 + MARGIN_MS + 2)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 1


async def test_each_message_of_a_page_is_removed_after_its_own_life(swept: Bench) -> None:
    await swept.create(ttl_s=10_000)
    for ttl_s in (10, 20, 30):
        await swept.publish(b"x", options=PublishOptions(ttl_s=ttl_s))
    left = []
    for _ in range(3):
        await swept.pass_ms(10_000 if left else 10_000 + MARGIN_MS + 10)
        await swept.sweeper.sweep()
        left.append(await rows_of(swept))
    assert left == [2, 1, 0]


async def test_an_idle_topic_is_not_claimed_again_and_again(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 7)
    swept.restart()
    await swept.sweeper.sweep()
    await swept.pass_ms(10**6)
    await swept.sweeper.sweep()
    epoch = (await swept.logs.look(TOPIC)).writer.epoch
    for _ in range(3):
        for _ in range(2):
            await swept.topics.forget_idle()
        await swept.sweeper.sweep()
    assert (await swept.logs.look(TOPIC)).writer.epoch == epoch
    assert await rows_of(swept) == 0


async def test_pages_that_a_crash_left_below_the_floor_are_found(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 12)
    await swept.pass_ms(10**6)
    await swept.leader().hold.raise_floor(swept.leader().hold.page)
    swept.restart()
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 0


async def test_a_sweep_leaves_a_topic_that_lost_a_page_below_the_floor(swept: Bench) -> None:
    other = TopicId("ns", "u")
    await swept.create(ttl_s=TTL_S)
    await swept.create(other, ttl_s=TTL_S)
    for topic in (TOPIC, other):
        await swept.publish(b"x", topic=topic)
    page = swept.leader().hold.page
    await swept.pass_ms(10**6)

    async def then_lost(real: Hook, *arguments: Any, **named: Any) -> Any:
        done = await real(*arguments, **named)
        root = await swept.logs.root(LOG)
        if root.floor > page:
            await swept.memory.delete(Space.MESSAGES, [page_key(LOG, page)])
        return done

    swept.table.on("root", then_lost, then_lost)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    await settle(500)
    assert sweeping.done()
    assert (sweeping.result().topics, await rows_of(swept, LogId(other, 1))) == (2, 0)


async def test_a_large_topic_goes_in_few_calls(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 200)
    await swept.pass_ms(10**6)
    before = len(swept.table.calls)
    report = await swept.sweeper.sweep()
    assert report.rows == 200
    assert len(swept.table.calls) - before < 200, "40 pages"


async def test_old_generations_all_go_and_the_present_one_stays(swept: Bench) -> None:
    for generation in (1, 2, 3):
        await swept.create(ttl_s=TTL_S)
        await swept.publish(*[b"%d" % generation] * 5, options=PublishOptions(key="k"))
        await swept.stored(pointer_now(swept), b"stored")
        await swept.pass_ms(1000)
        if generation < 3:
            await swept.topics.delete(TOPIC)
    await swept.sweeper.sweep()
    for generation in (1, 2):
        assert await rows_of(swept, LogId(TOPIC, generation)) == 0
        assert await swept.around.payload_logs.roots(TOPIC, generation, 1 << 62) == []
    assert await swept.payloads() == [b"3"] * 5
    assert [row[-31:-27] for row in await marks_of(swept)] == [b"\0\0\0\3"]
    await swept.topics.delete(TOPIC)
    await swept.sweeper.sweep()
    assert await marks_of(swept) == []
    assert await rows_of(swept, LogId(TOPIC, 3)) == 0
    assert (await swept.create()).generation == 4
    assert await swept.payloads() == []


async def test_a_topic_created_again_during_a_sweep_loses_no_message(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"old"] * 10)
    await swept.topics.delete(TOPIC)
    gate = Gate()
    swept.table.on("head", gate.after)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    await gate.reached.wait()
    await swept.create(ttl_s=TTL_S)
    await swept.publish(*[b"new"] * 10)
    gate.open()
    await sweeping
    assert await swept.payloads() == [b"new"] * 10


async def test_early_payloads_of_a_long_transaction_live_until_their_publish(
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


async def test_payload_logs_are_removed_when_no_reference_can_show_them(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    number, abandoned = pointer_now(swept), pointer_now(swept) + 1
    await swept.stored(number, *[b"p"] * 10)
    await swept.stored(abandoned, *[b"p"] * 10)
    await swept.publish(pointer=number)
    await publish_each(swept, 4)
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
        root = await swept.logs.root(LOG._replace(number=log))
        assert root is not None
        assert root.state is RootState.DROPPED, "kept for a margin: a request may be in flight"
    await swept.pass_ms(MARGIN_MS + 10)
    await swept.sweeper.sweep()
    for log in (number, abandoned):
        assert await swept.logs.root(LOG._replace(number=log)) is None
        with pytest.raises(TransactionTooOld):
            await swept.stored(log, b"late")


async def test_payload_logs_that_cannot_be_due_are_not_read(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    for _ in range(20):
        await swept.stored(pointer_now(swept), b"p")
        await swept.pass_ms(10)
    await swept.sweeper.sweep()
    seen = []

    async def scan(real: Any, *arguments: Any, **named: Any) -> Any:
        found = await real(*arguments, **named)
        seen.extend(row for row, _ in found if arguments[0] is Space.PAYLOADS)
        return found

    swept.table.on("scan", *[scan] * 50)
    await swept.sweeper.sweep()
    assert seen == []


async def test_a_reference_above_the_floor_keeps_the_root_of_its_log(swept: Bench) -> None:
    # Its page stays while another message in it lives, and a raised ttl shows it again, without payloads.
    await swept.create(ttl_s=TTL_S)
    number = pointer_now(swept)
    await swept.stored(number, b"p")
    await swept.publish(pointer=number)
    await swept.pass_ms((LIFE_S + TTL_S) * 1000 + MARGIN_MS + 10)
    await swept.publish(b"m")
    for _ in range(3):
        await swept.sweeper.sweep()
        await swept.pass_ms(MARGIN_MS / 2)
    root = await swept.logs.root(LOG._replace(number=number))
    assert root is not None
    assert root.state is RootState.DROPPED
    await swept.topics.update(TOPIC, {"ttl": "2147483647"})
    swept.forget_cache()
    assert await swept.payloads() == [b"m"]


async def test_a_publish_is_unknown_once_its_reference_may_have_expired(swept: Bench) -> None:
    await swept.create(ttl_s=10)
    number = pointer_now(swept)
    await swept.stored(number, b"p")
    swept.table.on("append", done_but(OutcomeUnknown("crashed")))
    with pytest.raises(OutcomeUnknown):
        await swept.publish(pointer=number)
    swept.restart()
    await publish_each(swept, 5)
    await swept.pass_ms(10_000 + MARGIN_MS + 10)
    await swept.publish(b"n")
    await swept.sweeper.sweep()
    with pytest.raises(OutcomeUnknown):
        await swept.publish(pointer=number)
    assert await swept.payloads() == [b"n"], "not delivered once more"
    with pytest.raises(PayloadsSealed):
        await swept.stored(number, b"late")


async def test_a_publish_is_unknown_if_its_reference_is_swept_during_the_search(
    swept: Bench,
) -> None:
    await swept.create(ttl_s=10)
    number = pointer_now(swept)
    await swept.stored(number, b"p")
    swept.table.on("append", done_but(OutcomeUnknown("crashed")))
    with pytest.raises(OutcomeUnknown):
        await swept.publish(pointer=number)
    swept.restart()
    await publish_each(swept, 5)
    await swept.pass_ms(10_000 + MARGIN_MS + 10)
    await swept.publish(b"n")

    async def stale(*_: Any, **__: Any) -> list[Any]:
        await swept.sweeper.sweep()
        return []

    swept.table.on("scan", stale)
    with pytest.raises(OutcomeUnknown):
        await swept.publish(pointer=number)
    assert await swept.payloads() == [b"n"], "not delivered once more"


async def test_a_log_that_is_written_to_meanwhile_is_not_dropped(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    number = pointer_now(swept)
    await swept.stored(number, b"p")
    assert not await swept.leader().payloads.drop(number, lambda root: False)
    gate = Gate()
    swept.table.on("append", gate.before)
    storing = asyncio.ensure_future(swept.stored(number, b"q"))
    await gate.reached.wait()
    assert not await swept.leader().payloads.drop(number, lambda root: True)
    gate.open()
    await storing


async def test_a_sweep_stops_when_the_clock_jumps(swept: Bench) -> None:
    for number in range(20):
        topic = TOPIC._replace(topic=f"t{number}")
        await swept.create(topic, ttl_s=TTL_S)
        await swept.publish(b"a", topic=topic)
        await swept.publish(b"b", topic=topic)
    await swept.pass_ms(10**6)
    gate = Gate()
    swept.table.on("head", *[gate.after] * 20)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    await gate.reached.wait()
    await swept.pass_ms(500)
    swept.clock.step(10**9)
    gate.open()
    report = await sweeping
    assert report.ended_early
    assert report.topics == PLACES, "those that had begun"


async def test_marks_live_for_their_window_though_their_messages_do_not(swept: Bench) -> None:
    await swept.create(ttl_s=10)
    options = PublishOptions(key="k")
    await swept.publish(b"a", options=options)
    await publish_each(swept, 5)
    await swept.pass_ms(540_000)
    await swept.sweeper.sweep()
    assert await rows_of(swept) == 0
    swept.restart()
    assert (await swept.publish(b"a", options=options)).replayed
    await swept.pass_ms(10**6)
    await swept.sweeper.sweep()
    prefix = mark_prefix(LOG)
    found = await swept.memory.scan(Space.MESSAGES, prefix, prefix_end(prefix), limit=10)
    assert found == []


async def test_one_topic_that_cannot_be_swept_is_skipped(swept: Bench) -> None:
    for name in ("a", "b"):
        topic = TOPIC._replace(topic=name)
        await swept.create(topic, ttl_s=10)
        await swept.publish(b"x", topic=topic)
        await swept.publish(b"y", topic=topic)
    await swept.pass_ms(10**6)
    swept.table.on("root", done_but(OutcomeUnknown("lost")))
    report = await swept.sweeper.sweep()
    assert (report.topics, report.skipped) == (2, 1)
    assert report.problem is not None
    assert report.problem.startswith("ns:a: ")
    report = await swept.sweeper.sweep()
    assert (report.skipped, report.problem) == (0, None)
    await settle()


async def test_publishing_and_polling_go_on_between_slices(swept: Bench) -> None:
    await swept.create(ttl_s=TTL_S)
    await publish_each(swept, 60)
    await swept.pass_ms(10**6)
    sweeping = asyncio.ensure_future(swept.sweeper.sweep())
    published = 0
    while not sweeping.done():
        await swept.publish(b"m")
        published += 1
        assert await swept.payloads(Poll()) == [b"m"] * published
    assert published > 3


async def test_a_reader_that_judged_a_message_alive_still_finds_it(
    swept: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_while_sweeping(name: str) -> int:
        """A reader judges by its clock when its page begins; the sweep comes a moment later."""
        topic = TOPIC._replace(topic=name)
        await swept.create(topic, ttl_s=10)
        for _ in range(6):
            await swept.publish(b"x", topic=topic)
        await swept.pass_ms(10_000 - 10)
        swept.forget_cache()
        gate = Gate()
        swept.table.on("cells", gate.before)
        reading = asyncio.ensure_future(swept.poll(topic=topic))
        await gate.reached.wait()
        now_ms = swept.clock.now_ms()
        await swept.pass_ms(50)
        await swept.sweeper.sweep()
        with monkeypatch.context() as patch:
            patch.setattr(swept.clock, "now_ms", lambda: now_ms)
            gate.open()
            return len(await reading)

    assert await read_while_sweeping("a") == 6
    with in_force("sweep-margin"):
        assert await read_while_sweeping("b") < 6

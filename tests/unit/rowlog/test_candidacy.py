"""Processing: order, retries, wake-ups, subscriptions, and the election of the processor."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from broker.errors import BadRequest, NotFound
from broker.rowlog import Subscription
from broker.rowlog.cell_keys import Entry
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import INDEX, ROW, TABLE, Heard, World, until, virtual


@virtual
async def test_a_message_that_is_done_for_all_leaves_nothing(world: World) -> None:
    log = await world.log("a", "b")
    heard = {name: Heard() for name in ("a", "b")}
    for name, listener in heard.items():
        log.listen(name, listener)
    await log.start()
    message = await log.put(ROW, {b"d:x": b"1"}, b"payload", data=b"data")
    await until(lambda: not world.cells())
    assert [each.messages for each in heard.values()] == [[message], [message]]
    await pass_time(10)
    assert world.entries() == []


@virtual
async def test_a_rowlog_is_started_once(world: World) -> None:
    log = await world.log("a")
    first, second = await asyncio.gather(log.start(), log.start(), return_exceptions=True)
    assert first is None
    assert isinstance(second, BadRequest)
    with pytest.raises(BadRequest, match="Call start once"):
        await log.start()


@virtual
async def test_a_message_stays_until_all_subscriptions_are_done(world: World) -> None:
    log = await world.log("a", "b")
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    message = await log.put(ROW)
    assert message is not None
    await until(lambda: bool(heard.messages))
    await pass_time(20)
    assert await log.is_done(message, "a")
    assert not await log.is_done(message, "b")
    assert await log.is_done(message, "other")
    assert await log.open_messages(ROW, "a") == []
    assert await log.open_messages(ROW) == await log.open_messages(ROW, "b", "a") == [message]
    assert len(heard.messages) == 1


@virtual
async def test_the_first_message_of_a_row_holds_back_later_ones_but_no_other_rows(
    world: World,
) -> None:
    log = await world.log(Subscription("a", backoff_ms_first=60_000))
    heard = Heard(False)
    log.listen("a", heard)
    await log.put(ROW)
    await log.start()
    await until(lambda: len(heard.messages) == 1)
    await log.put(ROW)
    await log.put(b"other")
    await until(lambda: len(heard.messages) == 2)
    assert [(each.row, each.seq) for each in heard.messages] == [(ROW, 1), (b"other", 1)]
    await until(lambda: len(heard.messages) == 4)
    assert [(each.row, each.seq) for each in heard.messages[2:]] == [(ROW, 1), (ROW, 2)]
    assert not heard.overlapped


@virtual
async def test_one_message_of_a_row_is_in_work_and_many_rows_at_once(world: World) -> None:
    log = await world.log(Subscription("a", parallel=4))
    heard = Heard()
    heard.gate = asyncio.Event()
    log.listen("a", heard)
    await log.start()
    for row in (b"1", b"2", b"3", b"4", b"5"):
        for _ in range(3):
            await log.put(row)
    await pass_time(10)
    assert sorted(each.row for each in heard.messages) == [b"1", b"2", b"3", b"4"]
    heard.gate.set()
    await until(lambda: len(heard.messages) == 15)
    assert not heard.overlapped


@virtual
async def test_the_back_off_doubles_and_after_the_last_try_a_message_is_dead(world: World) -> None:
    log = await world.log(
        Subscription("a", max_tries=4, backoff_ms_first=1_000, backoff_ms_max=2_000)
    )
    times = []

    async def fail(_: object) -> bool:
        times.append(world.clock.monotonic())
        raise ValueError("no good")

    log.listen("a", fail)
    await log.start()
    await log.put(ROW)
    await until(lambda: log.figures.values["dead", "a"] == 1)
    waits = [after - before for before, after in itertools.pairwise(times)]
    for wait, low, high in zip(waits, (0.5, 1, 1), (1, 2, 2), strict=True):
        # The wall clock is in whole milliseconds, so a wait may be one shorter.
        assert low - 0.001 <= wait <= high + 0.1, waits
    (letter,) = await log.dead("a")
    assert (letter.tries, letter.reason, letter.held) == (4, "ValueError: no good", False)


@virtual
async def test_a_dead_letter_lets_the_row_go_on_and_can_be_revived_or_dropped(
    world: World,
) -> None:
    log = await world.log(Subscription("a", max_tries=1))
    heard = Heard(False, False)
    log.listen("a", heard)
    await log.start()
    for _ in range(3):
        await log.put(ROW)
    await until(lambda: heard.seqs == [1, 2, 3])
    await pass_time(10)
    first, second = await log.dead("a")
    assert [first.message.seq, second.message.seq] == [1, 2]
    await log.drop(first)
    await log.revive(second)
    await until(lambda: heard.seqs == [1, 2, 3, 2])
    await pass_time(10)
    assert (world.cells(), world.entries()) == ({}, [])
    for letter in (first, second):
        with pytest.raises(NotFound):
            await log.revive(letter)


@virtual
async def test_if_order_is_respected_later_subscriptions_wait_for_the_earlier(
    world: World,
) -> None:
    log = await world.log(
        Subscription("second", order=20),
        Subscription("first", order=10, backoff_ms_first=1_000),
        settings={"respect_order": True},
    )
    told: list[tuple[str, int]] = []
    fails = [True]

    async def first(message: object) -> bool:
        told.append(("first", message.seq))  # type: ignore[attr-defined]
        return not (fails and fails.pop())

    async def second(message: object) -> bool:
        told.append(("second", message.seq))  # type: ignore[attr-defined]
        return True

    log.listen("first", first)
    log.listen("second", second)
    await log.start()
    await log.put(ROW)
    await until(lambda: not world.cells())
    assert told == [("first", 1), ("first", 1), ("second", 1)]


@virtual
async def test_a_message_that_is_dead_for_an_earlier_subscription_is_held_for_later_ones(
    world: World,
) -> None:
    log = await world.log(
        Subscription("first", order=10, max_tries=1),
        Subscription("second", order=20),
        settings={"respect_order": True},
    )
    first, second = Heard(False), Heard()
    log.listen("first", first)
    log.listen("second", second)
    await log.start()
    await log.put(ROW)
    await until(lambda: log.figures.values["dead", "first"] == 1)
    await pass_time(10)
    assert second.messages == []
    (held,) = await log.dead("second")
    assert held.held
    with pytest.raises(BadRequest, match="earlier"):
        await log.revive(held)
    (letter,) = await log.dead("first")
    await log.revive(letter)
    await until(lambda: not world.cells())
    assert (first.seqs, second.seqs) == ([1, 1], [1])
    await pass_time(10)
    assert world.entries() == []


@virtual
async def test_without_respect_for_order_no_subscription_waits_for_another(world: World) -> None:
    log = await world.log(Subscription("first", order=1), Subscription("second", order=2))
    heard = Heard()
    log.listen("second", heard)
    await log.start()
    await log.put(ROW)
    await until(lambda: heard.seqs == [1])


@virtual
async def test_a_paused_subscription_gets_its_messages_later(world: World) -> None:
    log = await world.log("a", "b")
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await log.pause("a")
    await pass_time(10)
    await log.put(ROW)
    await pass_time(60)
    assert heard.messages == []
    await log.pause("a", paused=False)
    await until(lambda: heard.seqs == [1])


@virtual
async def test_a_new_subscription_begins_now_or_with_what_is_open(world: World) -> None:
    log = await world.log("old")
    await log.put(ROW, payload=b"open", data=b"d")
    for name, since in (("now", "now"), ("open", "open")):
        await log.subscribe(Subscription(name), since=since)  # type: ignore[arg-type]
    heard = {name: Heard() for name in ("now", "open", "old")}
    for name, listener in heard.items():
        log.listen(name, listener)
    await log.put(ROW)
    await log.start()
    await until(lambda: not world.cells())
    assert {name: each.seqs for name, each in heard.items()} == {
        "now": [2],
        "open": [1, 2],
        "old": [1, 2],
    }
    assert heard["open"].messages[0].data == b"d"


@virtual
async def test_a_removed_subscription_leaves_nothing_behind(world: World) -> None:
    log = await world.log("a", "b")
    other = await world.process()
    await other.log.put(ROW)
    await log.put(ROW)
    other.put_late(5)
    putting = asyncio.create_task(other.log.put(b"late"))
    await pass_time(0.1)
    assert await log.unsubscribe("a") == 2
    assert not any(key[1:2] == b"a" for key in world.entries())
    with pytest.raises(NotFound):
        await log.unsubscribe("a")
    await putting  # It began before, and is for the removed subscription, too.
    await log.index.add([Entry(0, "a", 1, 9, ROW)])
    log.listen("b", Heard())
    await log.start()
    await until(lambda: not world.cells() and not world.cells(b"late"))
    report = await log.verify(mend=True)
    assert world.entries() == []
    assert report.orphans + report.stale == 1


@virtual
async def test_a_message_for_a_subscription_not_known_here_yet_is_kept(world: World) -> None:
    """A processor that goes by an old setup must not take a new subscription for a removed one."""
    log = await world.log("a")
    writer = (await world.process()).log
    log.listen("a", Heard())
    await log.start()
    await log.put(b"warm")
    await until(lambda: not world.cells(b"warm"))
    await writer.meta.change(lambda setup: setup.with_subscription(Subscription("new")))
    message = await writer.put(ROW)
    assert message is not None
    await until(lambda: log.is_done(message, "a"))
    assert not await log.is_done(message, "new")
    log.listen("new", Heard())
    await until(lambda: not world.cells())


@virtual
async def test_old_shards_are_read_until_they_are_empty(world: World) -> None:
    log = await world.log("a", shards=2)
    for each in range(20):
        await log.put(b"row%d" % each)
    await log.reshard(8)
    for each in range(20):
        await log.put(b"row%d" % each)
    assert {key[0] for key in world.entries()} > {0, 1}
    await log.reshard(1)
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await until(lambda: len(heard.messages) == 40)
    for row in {each.row for each in heard.messages}:
        assert [each.seq for each in heard.messages if each.row == row] == [1, 2]
    await pass_time(10)
    assert world.entries() == []
    await log.change_settings(sweep_ms=60_000)

    async def has_one_shard() -> bool:
        return len((await log.meta.setup()).shards) == 1

    await until(has_one_shard, within_s=200)


@virtual
async def test_a_processor_counts_what_is_open_and_dead(world: World) -> None:
    log = await world.log(Subscription("a", max_tries=1), "b")
    log.listen("a", Heard(False))
    await log.start()
    await log.put(ROW)
    await until(lambda: log.figures.values["dead_messages", "a"] == 1)
    assert log.figures.values["open_messages", "b"] == 1
    assert log.figures.values["oldest_open_seconds", "b"] > 20


@virtual
async def test_a_wake_up_of_another_process_is_at_once_and_its_trailing_edge_too(
    world: World,
) -> None:
    log = await world.log("a")
    writer = (await world.process()).log
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await pass_time(6)
    begun = world.clock.monotonic()
    for each in range(10):
        await writer.put(b"%d" % each)
        await pass_time(0.003)
    await until(lambda: len(heard.messages) == 10)
    assert world.clock.monotonic() - begun < 0.2


@virtual
async def test_a_message_whose_put_was_in_flight_during_a_scan_is_processed_at_once(
    world: World,
) -> None:
    """A scan that another put caused finds its entry, but no message yet."""
    log = await world.log("a")
    writer = await world.process()
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await pass_time(6)
    put = writer.rows.put

    async def slow(table: bytes, rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        if (table, rows[0][0]) == (TABLE, ROW):
            await pass_time(0.5)
        await put(table, rows)

    writer.rows.put = slow  # type: ignore[method-assign]
    putting = asyncio.create_task(writer.log.put(ROW))
    await pass_time(0.1)
    await writer.log.put(b"other")
    await putting
    await until(lambda: {each.row for each in heard.messages} == {b"other", ROW}, within_s=0.2)


@virtual
async def test_after_a_lost_wake_up_the_poll_finds_the_message(world: World) -> None:
    log = await world.log("a", settings={"enable_notify": False, "wakeup_timeout_ms": 3_000})
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await pass_time(7)
    await log.put(ROW)
    await until(lambda: heard.seqs == [1], within_s=3.5)


@virtual
async def test_a_processor_leaves_young_messages_to_their_writer(world: World) -> None:
    log = await world.log("a", settings={"minimal_process_delay_ms": 5_000})
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await log.put(ROW)
    await pass_time(4)
    assert heard.messages == []
    await until(lambda: heard.seqs == [1], within_s=3)


@virtual
async def test_a_row_with_very_many_messages_is_worked_off_in_order(world: World) -> None:
    log = await world.log("a")
    heard = Heard()
    log.listen("a", heard)
    for _ in range(150):
        await log.put(ROW, payload=b"p")
    await log.start()
    await until(lambda: len(heard.messages) == 150)
    assert heard.seqs == [*range(1, 151)]
    assert {each.payload for each in heard.messages} == {b"p"}


@virtual
async def test_a_state_that_can_not_be_decoded_stops_only_its_row(world: World) -> None:
    log = await world.log("a")
    await log.put(ROW)
    state = next(name for name in world.cells() if name[8:9] == b"\x02")
    world.stored[TABLE][ROW][state] = b"\x09rubbish"
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await log.put(b"other")
    await until(lambda: [each.row for each in heard.messages] == [b"other"])
    report = await log.verify(mend=True)
    assert (report.unreadable, report.is_sound) == (1, False)
    assert b"\x09rubbish" in world.cells().values()


@virtual
async def test_a_bug_in_a_processor_is_logged_and_processing_goes_on(world: World) -> None:
    log = await world.log("a")
    heard, fails = Heard(), [ZeroDivisionError("a bug")]
    log.listen("a", heard)
    scan = log.index.pages

    def pages(subscription: str, since: int) -> object:
        if fails:
            raise fails.pop()
        return scan(subscription, since)

    log.index.pages = pages  # type: ignore[method-assign, assignment]
    await log.start()
    await log.put(ROW)
    with capture_logs() as told:
        await until(lambda: heard.seqs == [1])
    assert [each["event"] for each in told if each["log_level"] == "error"] == [
        "rowlog processor failed"
    ]


@virtual
async def test_a_bug_in_the_upkeep_is_logged_and_the_upkeep_goes_on(world: World) -> None:
    log = await world.log(Subscription("a", max_tries=1))
    log.listen("a", Heard(False))
    count, fails = log.index.count_dead, [ZeroDivisionError("a bug")]

    async def count_dead(subscription: str, limit: int) -> int:
        if fails:
            raise fails.pop()
        return await count(subscription, limit)

    log.index.count_dead = count_dead  # type: ignore[method-assign]
    await log.start()
    await log.put(ROW)
    with capture_logs() as told:
        await until(lambda: log.figures.values["dead_messages", "a"] == 1, within_s=200)
    assert [each["event"] for each in told if each["log_level"] == "error"] == [
        "rowlog upkeep failed"
    ]


@virtual
async def test_two_rowlogs_share_a_family(world: World) -> None:
    first = await world.log("a")
    second = await world.log("a", id="wal", log_byte=3)
    both = Heard(), Heard()
    for log, heard in zip((first, second), both, strict=True):
        log.listen("a", heard)
        await log.start()
    await first.put(ROW, payload=b"first")
    await second.put(ROW, payload=b"second")
    await until(lambda: not world.cells())
    assert [[each.payload for each in heard.messages] for heard in both] == [
        [b"first"],
        [b"second"],
    ]
    with pytest.raises(BadRequest, match="log byte 4"):
        await world.process(log_byte=9)


@virtual
async def test_metrics_count_puts_tries_and_leadership(world: World) -> None:
    log = await world.log("a")
    log.listen("a", Heard(False))
    await log.put(ROW)
    await log.put(b"other")
    assert await log.depth("a") == (2, 0.0)
    await log.start()
    await until(lambda: log.figures.values["processed", "a"] == 2)
    text = log.figures.text()
    for line in (
        'broker_rowlog_puts_total{rowlog="mq",subscription=""} 2',
        'broker_rowlog_retries_total{rowlog="mq",subscription="a"} 1',
        'broker_rowlog_processed_total{rowlog="mq",subscription="a"} 2',
        'broker_rowlog_leads{rowlog="mq",subscription=""} 1',
    ):
        assert line in text.splitlines()


@virtual
async def test_old_entries_that_a_sweep_adds_again_are_found_at_once(world: World) -> None:
    """A sweep of another process adds entries that are older than any margin."""
    log = await world.log("a")
    await log.put(ROW)
    (key,) = world.entries()
    del world.stored[INDEX][key]
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await pass_time(500)
    assert heard.messages == []
    other = await world.process()
    assert (await other.log.verify(mend=True)).without_entry == 1
    await until(lambda: heard.seqs == [1], within_s=5)


async def offers_with_the_table_away_for(world: World, seconds: float) -> int:
    """Return how often a message is offered whose mark finds no table for so long."""
    log = await world.log("a")
    heard = Heard()
    heard.gate = asyncio.Event()
    log.listen("a", heard)
    await log.put(ROW)
    await log.start()
    await until(lambda: bool(heard.messages))
    world.processes[0].is_gone = True
    heard.gate.set()
    await pass_time(seconds)
    world.processes[0].is_gone = False
    await until(lambda: not world.cells())
    return len(heard.messages)


@virtual
async def test_a_mark_is_tried_again_while_the_table_is_away(world: World) -> None:
    assert await offers_with_the_table_away_for(world, 10) == 1


@virtual
async def test_a_mark_is_given_up_after_half_a_minute(world: World) -> None:
    assert await offers_with_the_table_away_for(world, 45) == 2

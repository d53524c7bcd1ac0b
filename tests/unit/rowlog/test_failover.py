"""Processors that die, sleep and come back; repair both ways; clocks that differ."""

import asyncio

import pytest

from broker.errors import Fenced
from broker.rowlog import Subscription
from broker.rowlog.candidacy import best_for
from broker.rowlog.cell_keys import Entry, index_key
from broker.rowlog.cells import decode_state
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import (
    INDEX,
    ROW,
    TABLE,
    Epoch,
    Heard,
    Process,
    World,
    attempt,
    until,
    virtual,
)


async def two(world: World, subscription: Subscription | None = None) -> tuple[Process, Process]:
    """Return two processes that listen; the first one processes."""
    first, second = await world.process(), await world.process()
    await first.log.subscribe(subscription or Subscription("a"))
    await first.log.start()
    await until(lambda: first.log.figures.values["leads", ""] == 1)
    await second.log.start()
    return first, second


@virtual
async def test_another_takes_over_within_the_session_time_out_and_a_second(world: World) -> None:
    first, second = await two(world)
    heard = Heard()
    second.log.listen("a", heard)
    await first.crash()
    crashed_at = world.clock.monotonic()
    message = await second.log.put(ROW)
    await until(lambda: heard.messages == [message])
    assert world.clock.monotonic() - crashed_at <= world.coordination.session_timeout_s + 1


@virtual
async def test_a_processor_that_slept_loses_its_mark_and_begins_nothing(world: World) -> None:
    """It is stopped while its listener runs, and goes on when another has done all of the row."""
    first, second = await two(world)
    slept, heard = Heard(), Heard()
    slept.gate = asyncio.Event()
    first.log.listen("a", slept)
    second.log.listen("a", heard)
    for _ in range(3):
        await first.log.put(ROW)
    await until(lambda: slept.seqs == [1])
    world.coordination.deafen(first.session)
    await until(lambda: heard.seqs == [1, 2, 3])
    slept.gate.set()
    await pass_time(0)
    world.coordination.listen(first.session)
    await pass_time(60)
    assert slept.seqs == [1]
    assert heard.seqs == [1, 2, 3]
    assert world.cells() == {}


@virtual
async def test_a_mark_of_a_fenced_processor_changes_nothing(world: World) -> None:
    """It is stopped while its listener runs, and goes on while its successor's runs, too."""
    first, second = await two(world)
    slept, heard = Heard(), Heard()
    slept.gate, heard.gate = asyncio.Event(), asyncio.Event()
    first.log.listen("a", slept)
    second.log.listen("a", heard)
    await first.log.put(ROW)
    await first.log.put(ROW)
    await until(lambda: slept.seqs == [1])
    world.coordination.deafen(first.session)
    await until(lambda: heard.seqs == [1])
    (state,) = [
        decode_state(value)
        for name, value in world.cells().items()
        if name[8:9] == b"\x02" and name[16:17] == b"\x01"
    ]
    slept.gate.set()
    await pass_time(5)
    assert state in [decode_state(each) for each in world.cells().values() if each[:1] == b"\x02"]
    assert state.parts["a"].epoch == 2
    assert slept.seqs == heard.seqs == [1]
    heard.gate.set()
    await until(lambda: heard.seqs == [1, 2])
    assert slept.seqs == [1]


@virtual
async def test_without_contact_nothing_begins_and_what_was_begun_is_marked(world: World) -> None:
    first, _ = await two(world)
    heard = Heard()
    heard.gate = asyncio.Event()
    first.log.listen("a", heard)
    message = await first.log.put(ROW)
    await first.log.put(ROW)
    assert message is not None
    await until(lambda: heard.seqs == [1])
    world.coordination.outage()
    heard.gate.set()
    await until(lambda: first.log.is_done(message, "a"))
    await pass_time(30)
    assert heard.seqs == [1]
    world.coordination.recover()
    await until(lambda: heard.seqs == [1, 2])


@virtual
async def test_a_processor_that_finds_a_higher_epoch_becomes_a_candidate_again(
    world: World,
) -> None:
    first, _ = await two(world)
    first.log.listen("a", Heard())
    await first.log.meta.raise_epoch("mq.all", "another")
    await pass_time(20)
    assert await first.log.meta.epoch("mq.all") >= 3, "it stood in line again"


@virtual
async def test_subscriptions_are_spread_over_nodes_and_over_those_that_are_left(
    world: World,
) -> None:
    names = [f"s{each}" for each in range(8)]
    first = await world.process(settings={"spread": True})
    for name in names:
        await first.log.subscribe(Subscription(name))
    second = await world.process()
    processes = (first, second)
    heard = {process: Heard() for process in processes}
    for process in processes:
        for name in names:
            process.log.listen(name, heard[process])
        await process.log.start()
    await pass_time(10)
    await first.log.put(ROW)
    await until(lambda: sum(len(each.messages) for each in heard.values()) == 8)
    share = len(heard[second].messages)
    assert share == sum(best_for(name, [0, 1]) == 1 for name in names)
    assert 0 < share < 8
    assert [each.log.figures.values["leads", ""] for each in processes] == [8 - share, share]
    await second.crash()
    await first.log.put(ROW)
    await until(lambda: len(heard[first].messages) == 8 - share + 8)


# Repair.


@virtual
async def test_an_orphan_goes_once_it_is_old_and_not_before(world: World) -> None:
    log = await world.log("a")
    log.listen("a", Heard())
    entry = Entry(0, "a", world.clock.now_ms(), 1, ROW)
    world.stored[INDEX][index_key(entry)] = {b"messages:msg": b""}
    await log.start()
    await pass_time(110)
    assert len(world.entries()) == 1
    await pass_time(30)
    assert world.entries() == []
    assert log.figures.values["orphans_removed", "a"] == 1


@virtual
async def test_a_row_that_is_put_late_is_processed(world: World) -> None:
    log = await world.log("a")
    heard = Heard()
    log.listen("a", heard)
    await log.put(ROW)
    late = world.stored[TABLE].pop(ROW)
    await log.start()
    await pass_time(60)
    world.stored[TABLE][ROW] = late
    await until(lambda: heard.seqs == [1], within_s=6)


@virtual
async def test_a_row_that_is_put_after_the_orphan_delay_is_found_by_the_sweep(world: World) -> None:
    log = await world.log("a", settings={"sweep_ms": 600_000})
    heard = Heard()
    log.listen("a", heard)
    await log.put(ROW, data=b"data")
    late = world.stored[TABLE].pop(ROW)
    await log.start()
    await pass_time(200)
    assert world.entries() == []
    world.stored[TABLE][ROW] = late
    await until(lambda: heard.seqs == [1], within_s=500)
    assert heard.messages[0].data == b"data"


@virtual
async def test_a_lost_removal_of_an_entry_heals(world: World) -> None:
    log = await world.log("a", "b")
    log.listen("a", Heard())
    await log.put(ROW)
    before = {key: dict(world.stored[INDEX][key]) for key in world.entries()}
    await log.start()
    await until(lambda: len(world.entries()) == 1)
    world.stored[INDEX].update(before)
    await until(lambda: len(world.entries()) == 1, within_s=16)


@virtual
async def test_after_a_crash_between_the_last_mark_and_the_deletion_a_sweep_deletes(
    world: World,
) -> None:
    log = await world.log("a")
    process = world.processes[0]
    log.listen("a", Heard())
    message = await log.put(ROW)
    assert message is not None

    def crash_before_the_deletion(name: str, table: bytes) -> None:
        process.is_gone |= (name, table) == ("delete", TABLE)

    process.on_step = crash_before_the_deletion
    await log.process(message)
    assert [decode_state(each).is_finished for each in world.cells().values() if each] == [True]
    other = (await world.process()).log
    report = await other.verify()
    assert (report.finished, report.is_sound) == (1, False)
    await other.verify(mend=True)
    assert world.cells() == {}
    await pass_time(130)
    await other.verify(mend=True)
    assert (await other.verify()).is_sound


@virtual
async def test_messages_of_writers_with_wrong_clocks_are_found_by_a_poll_or_a_full_scan(
    world: World,
) -> None:
    log = await world.log("a")
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await pass_time(300)
    for by_ms in (-100_000, 100_000):
        writer = await world.process()
        writer.clock.step(by_ms)
        await writer.log.put(b"%d" % by_ms)
    await until(lambda: len(heard.messages) == 2, within_s=6)
    writer = await world.process()
    writer.clock.step(-1_000_000)
    await writer.log.put(b"beyond")
    await until(lambda: len(heard.messages) == 3, within_s=601)


@virtual
async def test_a_dead_letter_that_is_not_listed_is_listed_by_a_sweep(world: World) -> None:
    log = await world.log(Subscription("a", max_tries=1))
    log.listen("a", Heard(False))
    await log.start()
    await log.put(ROW)
    await until(lambda: log.figures.values["dead", "a"] == 1)
    await pass_time(1)
    (key,) = world.entries()
    del world.stored[INDEX][key]
    assert await log.dead("a") == []
    assert (await log.verify(mend=True)).without_entry == 1
    assert len(await log.dead("a")) == 1


@virtual
async def test_an_index_that_was_lost_is_made_again_from_the_rows(world: World) -> None:
    await (await world.log("a")).put(ROW)
    world.stored[INDEX].clear()
    log = await world.log("a")
    heard = Heard()
    log.listen("a", heard)
    assert (await log.verify(mend=True)).without_entry == 1
    await log.start()
    await until(lambda: heard.seqs == [1])


@virtual
async def test_an_earlier_epoch_can_not_claim_what_a_later_one_has_tried(world: World) -> None:
    log = await world.log("a")
    log.listen("a", Heard(False))
    await log.put(ROW)
    await attempt(log, Epoch(7))
    await pass_time(60)  # Its back-off is over.
    with pytest.raises(Fenced):
        await attempt(log, Epoch(6))


@virtual
async def test_a_message_that_another_process_revives_at_once_keeps_its_entry(world: World) -> None:
    log = await world.log(Subscription("a", max_tries=1), settings={"enable_notify": False})
    heard = Heard(False)
    log.listen("a", heard)
    await log.start()
    other = (await world.process()).log
    await pass_time(1)
    await log.put(ROW)
    await until(lambda: log.figures.values["dead", "a"] == 1)
    await pass_time(0.1)
    (letter,) = await other.dead("a")
    await other.revive(letter)
    await until(lambda: heard.seqs == [1, 1], within_s=10)

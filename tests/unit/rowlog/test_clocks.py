"""Processes whose wall clocks differ: ages count from when a process first saw a thing, by its own clock."""

import asyncio
from typing import Any

import pytest

from broker.errors import Unavailable
from broker.rowlog import Subscription
from broker.rowlog.row_table import NotWritten
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import INDEX, ROW, TABLE, Heard, World, until, virtual

HOUR_MS = 3_600_000
NO_WAIT = {"full_scan_ms": 2_000}
"""Each scan reads the whole index: the entries of slow clocks, too."""


@pytest.mark.parametrize("fast_ms", [-120_000, -HOUR_MS, HOUR_MS])
def test_a_put_in_flight_is_no_orphan_by_any_clock_of_its_writer(fast_ms: int) -> None:
    @virtual
    async def run(world: World) -> None:
        log = await world.log("a", settings=NO_WAIT)
        heard = Heard()
        log.listen("a", heard)
        await log.start()
        await until(lambda: log.figures.values["leads", ""] == 1)
        writer = await world.process(fast_ms=fast_ms)
        writer.put_late(20)
        await writer.log.put(ROW)
        assert log.figures.values["orphans_removed", "a"] == 0
        await until(lambda: heard.seqs == [1], within_s=10)

    run()


@pytest.mark.parametrize("fast_ms", [-HOUR_MS, HOUR_MS])
def test_an_orphan_of_another_clock_goes_after_its_delay(fast_ms: int) -> None:
    @virtual
    async def run(world: World) -> None:
        log = await world.log("a", settings=NO_WAIT)
        log.listen("a", Heard())
        writer = await world.process(fast_ms=fast_ms)
        await writer.log.put(ROW)
        del world.stored[TABLE][ROW]
        await log.start()
        await pass_time(115)
        assert len(world.entries()) == 1
        await until(lambda: world.entries() == [], within_s=20)

    run()


@virtual
async def test_verify_leaves_the_entry_of_a_put_in_flight(world: World) -> None:
    log = await world.log("a")
    heard = Heard()
    writer = await world.process(fast_ms=-HOUR_MS)
    writer.put_late(20)
    putting = asyncio.create_task(writer.log.put(ROW))
    await pass_time(5)
    report = await log.verify(mend=True)
    await putting
    assert (report.orphans, report.entries) == (0, 1)
    log.listen("a", heard)
    await log.start()
    await until(lambda: heard.seqs == [1], within_s=20)


@virtual
async def test_verify_waits_to_tell_an_orphan_from_a_put_in_flight(world: World) -> None:
    log = await world.log("a")
    writer = await world.process(fast_ms=HOUR_MS)
    await writer.log.put(ROW)
    del world.stored[TABLE][ROW]
    began = world.clock.monotonic()
    assert (await log.verify()).orphans == 1
    assert world.clock.monotonic() - began >= 120, "before that, its put may be in flight"
    assert (await log.verify(mend=True)).orphans == 1
    assert world.entries() == []


@virtual
async def test_verify_does_not_wait_for_an_entry_that_is_being_removed(world: World) -> None:
    log = await world.log("a")
    await log.put(ROW)
    del world.stored[TABLE][ROW]
    verifying = asyncio.create_task(log.verify())
    await pass_time(1.5)
    assert not verifying.done()
    for key in world.entries():
        del world.stored[INDEX][key]
    await pass_time(5)
    assert verifying.done()
    assert (await verifying).orphans == 0


@pytest.mark.parametrize("fast_ms", [-HOUR_MS, HOUR_MS])
def test_a_call_keeps_its_message_for_the_claim_timeout(fast_ms: int) -> None:
    @virtual
    async def run(world: World) -> None:
        log = await world.log("a", settings={**NO_WAIT, "claim_timeout_ms": 30_000})
        heard = Heard()
        log.listen("a", heard)
        writer = (await world.process(fast_ms=fast_ms)).log
        slow = Heard()
        slow.gate = asyncio.Event()
        writer.listen("a", slow)
        message = await writer.put(ROW)
        assert message is not None
        processing = asyncio.create_task(writer.process(message))
        await until(lambda: slow.seqs == [1])
        await log.start()
        await pass_time(15)
        assert heard.seqs == [], "the call has it in work"
        slow.gate.set()
        assert await processing is True
        assert heard.seqs == []

    run()


@pytest.mark.parametrize("fast_ms", [-HOUR_MS, HOUR_MS])
def test_the_message_of_a_call_that_died_is_taken_over_after_the_claim_timeout(
    fast_ms: int,
) -> None:
    @virtual
    async def run(world: World) -> None:
        log = await world.log("a", settings={**NO_WAIT, "claim_timeout_ms": 30_000})
        heard = Heard()
        log.listen("a", heard)
        writer = await world.process(fast_ms=fast_ms)
        slow = Heard()
        slow.gate = asyncio.Event()
        writer.log.listen("a", slow)
        message = await writer.log.put(ROW)
        assert message is not None
        processing = asyncio.create_task(writer.log.process(message))
        await until(lambda: slow.seqs == [1])
        await writer.crash()
        processing.cancel()
        await log.start()
        await pass_time(25)
        assert heard.seqs == []
        await until(lambda: heard.seqs == [1], within_s=15)

    run()


@pytest.mark.parametrize("fast_ms", [-HOUR_MS, HOUR_MS])
def test_a_writer_has_a_young_message_to_itself(fast_ms: int) -> None:
    @virtual
    async def run(world: World) -> None:
        settings = {**NO_WAIT, "minimal_process_delay_ms": 5_000}
        log = await world.log("a", settings=settings)
        heard = Heard()
        log.listen("a", heard)
        await log.start()
        await until(lambda: log.figures.values["leads", ""] == 1)
        writer = (await world.process(fast_ms=fast_ms)).log
        first = await writer.put(ROW)
        await pass_time(4)
        assert heard.seqs == []
        await until(lambda: heard.seqs == [1], within_s=6)
        assert first is not None

    run()


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_a_message_waits_for_its_back_off_although_the_clock_steps(step_ms: int) -> None:
    @virtual
    async def run(world: World) -> None:
        process = await world.process()
        await process.log.subscribe(Subscription("a", backoff_ms_first=2_000))
        heard = Heard(False, False, True)
        process.log.listen("a", heard)
        await process.log.start()
        await process.log.put(ROW)
        await until(lambda: len(heard.seqs) == 1, within_s=10)
        process.clock.step(step_ms)
        await until(lambda: len(heard.seqs) == 3, within_s=20)

    run()


@pytest.mark.parametrize("fast_ms", [-HOUR_MS, HOUR_MS])
def test_a_row_lock_holds_against_another_clock(fast_ms: int) -> None:
    @virtual
    async def run(world: World) -> None:
        first = await world.process(settings={"row_locks": True, "lock_timeout_ms": 10_000})
        await first.log.subscribe(Subscription("a"))
        other = await world.process(fast_ms=fast_ms)
        change = first.rows.change

        async def late(table: bytes, *given: Any) -> bool:
            await pass_time(6)
            return await change(table, *given)

        first.rows.change = late  # type: ignore[method-assign]
        putting = asyncio.create_task(first.log.put(ROW, payload=b"first"))
        await pass_time(1)
        second = await other.log.put(ROW, payload=b"second")
        assert second is not None
        assert second.seq == 2
        assert await putting is not None

    run()


@pytest.mark.parametrize("fast_ms", [-HOUR_MS, HOUR_MS])
def test_the_lock_of_a_writer_that_died_ends_with_its_timeout(fast_ms: int) -> None:
    @virtual
    async def run(world: World) -> None:
        settings = {"row_locks": True, "lock_timeout_ms": 10_000}
        first = await world.process(settings=settings, fast_ms=fast_ms)
        await first.log.subscribe(Subscription("a"))
        first.steps_left = 1  # It takes the lock, and dies.
        with pytest.raises(Unavailable):
            await first.log.put(ROW)
        other = await world.process()
        began = world.clock.monotonic()
        assert await other.log.put(ROW) is not None
        assert 10 <= world.clock.monotonic() - began < 11

    run()


@virtual
async def test_a_back_off_by_a_fast_clock_ends_after_its_length(world: World) -> None:
    once = Subscription("a", backoff_ms_first=1_000, backoff_ms_max=1_000)
    first = await world.process(fast_ms=HOUR_MS)
    await first.log.subscribe(once)
    failing = Heard(False)
    first.log.listen("a", failing)
    await first.log.start()
    await until(lambda: first.log.figures.values["leads", ""] == 1)
    await first.log.put(ROW)
    await until(lambda: failing.ended == 1)
    await pass_time(0.1)
    await first.crash()
    log = (await world.process()).log
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await until(lambda: heard.seqs == [1], within_s=60)


# Every writer knows.


@virtual
async def test_a_subscription_gets_each_put_after_subscribe_returned(world: World) -> None:
    log = await world.log("a")
    writers = [(await world.process(coordinator=None)).log for _ in range(3)]
    for writer in writers:
        await writer.put(ROW)  # It has read the setup just now, and hears of no change.
    await log.subscribe(Subscription("b"))
    for writer in writers:
        message = await writer.put(ROW)
        assert message is not None
        assert not await writer.is_done(message, "b")


@virtual
async def test_a_subscription_that_all_know_is_there_at_once(world: World) -> None:
    log = await world.log("a")
    began = world.clock.monotonic()
    await log.subscribe(Subscription("a"))
    assert world.clock.monotonic() == began


@virtual
async def test_a_call_that_died_before_all_knew_is_completed_by_the_next(world: World) -> None:
    log = await world.log("a")
    writer = (await world.process(coordinator=None)).log
    first = asyncio.create_task(log.subscribe(Subscription("b")))
    await pass_time(0.1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await writer.put(ROW)
    await log.subscribe(Subscription("b"))
    message = await writer.put(ROW)
    assert message is not None
    assert not await writer.is_done(message, "b")


@virtual
async def test_no_message_is_put_for_a_subscription_after_unsubscribe_returned(
    world: World,
) -> None:
    log = await world.log("a", "b")
    writer = (await world.process(coordinator=None)).log
    await writer.put(ROW)
    await log.unsubscribe("b")
    message = await writer.put(ROW)
    assert message is not None
    (*_, last) = await log.messages.open(ROW)
    assert set(last.state.parts) == {"a"}


@virtual
async def test_row_locks_hold_for_each_put_after_the_change_returned(world: World) -> None:
    log = await world.log("a")
    writer = (await world.process(coordinator=None)).log
    await writer.put(ROW)
    await log.change_settings(row_locks=True)
    await writer.put(ROW)
    assert any(column.endswith(b"LOCK") for column in world.stored[TABLE][ROW])


@virtual
async def test_a_put_is_refused_by_a_writer_that_can_not_read_the_setup(world: World) -> None:
    log = await world.log("a")
    process = await world.process(coordinator=None)
    await process.log.put(ROW)
    get = process.rows.get

    async def failing(table: bytes, rows: Any, columns: Any) -> Any:
        if any(row.endswith(b"setup") for row in rows):
            raise NotWritten("the region is away")
        return await get(table, rows, columns)

    process.rows.get = failing  # type: ignore[method-assign]
    await log.subscribe(Subscription("b"))
    with pytest.raises(Unavailable):
        await process.log.put(ROW)

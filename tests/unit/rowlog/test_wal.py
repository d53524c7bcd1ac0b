"""A rowlog as a write-ahead log: secondary actions before the call returns, and before a row's next change."""

import asyncio

import pytest

from broker.errors import BadRequest
from broker.rowlog import MessagesOpen, Subscription
from broker.rowlog.feeder import feeder
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import ROW, TABLE, Heard, World, until, virtual

WAL = {"respect_order": True, "work_off_first": True, "minimal_process_delay_ms": 5_000}


@virtual
async def test_process_calls_the_listeners_in_order_before_it_returns(world: World) -> None:
    log = await world.log(
        Subscription("feeder", order=20), Subscription("links", order=10), settings=WAL
    )
    told = []

    async def links(_: object) -> None:
        told.append("links")

    async def feed(_: object) -> bool:
        told.append("feeder")
        return True

    log.listen("links", links)
    log.listen("feeder", feed)
    message = await log.put(ROW, {b"d:x": b"1"}, b"p")
    assert message is not None
    assert await log.process(message)
    assert told == ["links", "feeder"]
    assert world.cells() == {}
    assert await log.process(message), "what is finished is done"


@virtual
async def test_a_failed_action_stops_the_later_ones_and_leaves_them_open(world: World) -> None:
    log = await world.log(Subscription("one", order=1), Subscription("two", order=2), settings=WAL)
    one, two = Heard(ValueError("no")), Heard()
    log.listen("one", one)
    log.listen("two", two)
    message = await log.put(ROW)
    assert message is not None
    assert not await log.process(message)
    assert two.messages == []
    assert await log.process(message)
    assert (one.seqs, two.seqs) == ([1, 1], [1])


@virtual
async def test_a_dead_letter_is_not_done_and_is_listed_at_once(world: World) -> None:
    log = await world.log(Subscription("a", max_tries=1))
    log.listen("a", Heard(False))
    message = await log.put(ROW)
    assert message is not None
    assert not await log.process(message)
    assert not await log.process(message), "it is a dead letter"
    (letter,) = await log.dead("a")
    await log.drop(letter)
    assert await log.process(message)


@virtual
async def test_a_message_that_dies_in_a_processor_meanwhile_is_not_done(world: World) -> None:
    log = await world.log("a", Subscription("b", max_tries=1))
    slow = Heard()
    slow.gate = asyncio.Event()
    log.listen("a", slow)
    log.listen("b", Heard())
    await log.put(ROW, subscriptions=["a"])
    message = await log.put(ROW, subscriptions=["b"])
    assert message is not None
    processing = asyncio.create_task(log.process(message))
    await until(lambda: slow.seqs == [1])
    other = (await world.process()).log
    other.listen("b", Heard(False))
    await other.start()
    await until(lambda: other.figures.values["dead", "b"] == 1)
    slow.gate.set()
    assert not await processing
    assert [each.message for each in await log.dead("b")] == [message]


@virtual
async def test_open_messages_are_worked_off_before_the_next_change(world: World) -> None:
    log = await world.log("a", settings=WAL)
    heard = Heard()
    log.listen("a", heard)
    await log.put(ROW, {b"d:x": b"1"})
    assert heard.messages == []
    await log.put(ROW, {b"d:x": b"2"})
    assert heard.seqs == [1]
    assert world.stored[TABLE][ROW][b"d:x"] == b"2"


@virtual
async def test_a_change_is_refused_with_the_reason_if_messages_of_the_row_stay_open(
    world: World,
) -> None:
    log = await world.log("a", settings=WAL)
    await log.put(ROW, {b"d:x": b"1"})
    with pytest.raises(MessagesOpen, match=r"message 1 for 'a': it has no listener"):
        await log.put(ROW, {b"d:x": b"2"})
    log.listen("a", Heard(ValueError("broken link")))
    with pytest.raises(MessagesOpen, match="broken link"):
        await log.put(ROW, {b"d:x": None, b"d:deleted": b"1"})
    assert world.stored[TABLE][ROW][b"d:x"] == b"1"
    assert len([name for name in world.cells() if name[8:9] == b"\x02"]) == 1


@virtual
async def test_a_processor_processes_messages_of_a_writer_that_died(world: World) -> None:
    writer = await world.process(settings=WAL)
    await writer.log.subscribe(Subscription("a"))
    message = await writer.log.put(ROW)
    await writer.crash()
    log = await world.log()
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await until(lambda: heard.messages == [message])
    assert world.clock.monotonic() >= 5


@virtual
async def test_process_and_processor_never_have_one_message_at_once(world: World) -> None:
    log = await world.log("a")
    other = (await world.process()).log
    mine, theirs = Heard(), Heard()
    mine.gate = asyncio.Event()
    log.listen("a", mine)
    other.listen("a", theirs)
    message = await log.put(ROW)
    assert message is not None
    processing = asyncio.create_task(log.process(message))
    await until(lambda: mine.seqs == [1])
    await other.start()
    await pass_time(15)
    assert theirs.messages == []
    assert not await other.process(message)
    mine.gate.set()
    assert await processing
    await pass_time(200)
    assert theirs.messages == []


@virtual
async def test_a_call_that_takes_too_long_is_ended_before_it_is_taken_over(world: World) -> None:
    log = await world.log("a", settings={"claim_timeout_ms": 10_000})
    other = (await world.process()).log
    mine, theirs = Heard(), Heard()
    mine.gate = asyncio.Event()
    log.listen("a", mine)
    other.listen("a", theirs)
    message = await log.put(ROW)
    assert message is not None
    processing = asyncio.create_task(log.process(message))
    await until(lambda: mine.seqs == [1])
    await other.start()
    await until(lambda: mine.ended == 1, within_s=10)
    assert theirs.messages == []
    assert not await processing
    await until(lambda: theirs.seqs == [1])


@virtual
async def test_a_crashed_call_is_taken_over_after_its_time(world: World) -> None:
    caller = await world.process(settings={"claim_timeout_ms": 10_000})
    await caller.log.subscribe(Subscription("a"))
    gone = Heard()
    gone.gate = asyncio.Event()
    caller.log.listen("a", gone)
    message = await caller.log.put(ROW)
    assert message is not None
    calling = asyncio.create_task(caller.log.process(message))
    await until(lambda: gone.seqs == [1])
    await caller.crash()
    log = await world.log()
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    begun = world.clock.monotonic()
    await until(lambda: heard.seqs == [1])
    assert 9 < world.clock.monotonic() - begun < 16
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)


@virtual
async def test_a_listener_can_not_change_the_row_that_is_being_worked_off(world: World) -> None:
    log = await world.log("a", settings=WAL)
    told: list[Exception] = []

    async def again(_: object) -> bool:
        try:
            await log.put(ROW)
        except BadRequest as error:
            told.append(error)
        return True

    log.listen("a", again)
    await log.put(ROW)
    await log.put(ROW)
    assert len(told) == 1


@virtual
async def test_the_wal_feeds_the_mq(world: World) -> None:
    wal = await world.log(
        Subscription("links", order=10),
        Subscription("feeder", order=20),
        id="wal",
        log_byte=3,
        settings=WAL,
    )
    mq = await world.log("indexer")
    links, indexed = Heard(), Heard()
    wal.listen("links", links)
    wal.listen("feeder", feeder(mq))
    mq.listen("indexer", indexed)
    await mq.start()
    message = await wal.put(ROW, {b"d:x": b"1"}, b"payload", data=b"data")
    assert message is not None
    assert await wal.process(message)
    await until(lambda: bool(indexed.messages))
    assert (indexed.messages[0].row, indexed.messages[0].data, indexed.messages[0].payload) == (
        ROW,
        b"data",
        b"payload",
    )
    await until(lambda: not world.cells())

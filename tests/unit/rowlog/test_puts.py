"""Putting: the order of the writes, and the state after a crash or a refusal."""

import asyncio
from typing import Any

import pytest

from broker.errors import BadRequest, BodyTooLarge, NotFound, OutcomeUnknown, Unavailable
from broker.rowlog import Filter, Put, Subscription
from broker.rowlog.row_locks import RowLocks
from broker.rowlog.row_table import WriteUnknown
from broker.rowlog.setup import Settings
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import INDEX, ROW, TABLE, Heard, World, until, virtual

LOCKED = {"row_locks": True}


@virtual
async def test_row_payload_and_state_are_one_put_behind_the_index(world: World) -> None:
    log = await world.log("a", "b")
    world.steps.clear()
    message = await log.put(ROW, {b"d:x": b"1"}, b"payload", data=b"data")
    assert message is not None
    assert (message.seq, message.payload, message.data) == (1, b"payload", b"data")
    assert world.steps == [
        "increment records",
        "put rowlog-mq",
        "put rowlog-mq",
        "put records",
    ]
    assert world.stored[TABLE][ROW][b"d:x"] == b"1"
    assert sorted(world.cells().values())[1:] == [b"data", b"payload"]
    assert [world.stored[INDEX][key] for key in world.entries()] == [{b"messages:msg": b"data"}] * 2


@virtual
async def test_without_a_subscription_only_the_row_is_changed(world: World) -> None:
    log = await world.log()
    assert await log.put(ROW, {b"d:x": b"1"}, b"payload") is None
    assert world.stored[TABLE] == {ROW: {b"d:x": b"1"}}


@virtual
async def test_numbers_rise_in_each_row(world: World) -> None:
    log = await world.log("a")
    put = await log.put_many([Put(ROW), Put(b"other"), Put(ROW), Put(ROW)])
    assert [(each.row, each.seq) for each in put] == [  # type: ignore[union-attr]
        (ROW, 1),
        (b"other", 1),
        (ROW, 2),
        (ROW, 3),
    ]


@virtual
async def test_a_message_is_for_named_subscriptions_or_those_whose_filter_takes_it(
    world: World,
) -> None:
    log = await world.log("a", Subscription("users", filter=Filter(row_prefix=b"user/")))
    for row, only in ((b"user/1", None), (b"page/1", None), (b"page/2", ["users"])):
        await log.put(row, payload=b"x", subscriptions=only)
    names = sorted((key[1 : key.index(b"\0", 1)], key[-6:]) for key in world.entries())
    assert names == [
        (b"a", b"page/1"),
        (b"a", b"user/1"),
        (b"users", b"page/2"),
        (b"users", b"user/1"),
    ]
    with pytest.raises(NotFound, match="nothing"):
        await log.put(ROW, subscriptions=["nothing"])


@virtual
async def test_a_subscription_that_another_process_added_can_be_named_at_once(
    world: World,
) -> None:
    first, second = await world.log("a"), await world.log()
    await second.put(ROW)
    await first.meta.change(lambda setup: setup.with_subscription(Subscription("new")))
    assert await second.put(ROW, subscriptions=["new"]) is not None


@virtual
async def test_a_put_that_is_not_allowed_writes_nothing(world: World) -> None:
    log = await world.log("a", settings={"payload_bytes_max": 3})
    for put in (
        Put(b""),
        Put(ROW, {b"nocolon": b""}),
        Put(ROW, {b"rowlog:\x04SEQNR": b""}),
    ):
        with pytest.raises(BadRequest):
            await log.put(*put[:3])
    with pytest.raises(BodyTooLarge):
        await log.put(ROW, payload=b"1234")
    with pytest.raises(BodyTooLarge):
        await log.put(ROW, data=bytes(70_000))
    assert world.stored[TABLE] == {}


@virtual
async def test_a_crash_leaves_an_entry_at_most(world: World) -> None:
    process = await world.process()
    await process.log.subscribe(Subscription("a"))
    for steps in range(3):
        process.is_gone, process.steps_left = False, steps
        with pytest.raises(Unavailable):
            await process.log.put(ROW, {b"d:x": b"1"}, b"p")
        assert world.cells() == {}
        assert b"d:x" not in world.stored[TABLE].get(ROW, {})
    assert len(world.entries()) == 1


@virtual
async def test_a_column_is_deleted_in_the_step_that_puts_others(world: World) -> None:
    log = await world.log("a")
    await log.put(ROW, {b"d:x": b"1", b"d:y": b"2"})
    await log.put(ROW, {b"d:x": None, b"d:z": b"3"})
    row = world.stored[TABLE][ROW]
    assert {name: row[name] for name in row if name[:2] == b"d:"} == {b"d:y": b"2", b"d:z": b"3"}


@virtual
async def test_a_put_holds_the_rows_lock(world: World) -> None:
    log = await world.log("a", settings={"row_locks": True, "lock_timeout_ms": 1_000})
    other = await world.process()
    locks = RowLocks(other.rows, other.log.messages, other.clock)
    settings = Settings(lock_timeout_ms=1_000)
    async with locks.locked(ROW, settings):
        putting = asyncio.create_task(log.put(ROW, {b"d:x": b"1"}))
        await until(lambda: world.clock.monotonic() > 0.5)
        assert not putting.done()
    await putting
    assert world.stored[TABLE][ROW][b"rowlog:\x04LOCK"] == b""


@virtual
async def test_a_lock_whose_time_is_up_is_taken_over_and_its_holder_can_not_write(
    world: World,
) -> None:
    log = await world.log("a", settings={"row_locks": True, "lock_timeout_ms": 1_000})

    def taken_over(name: str, _: bytes) -> None:
        if (
            name == "change"
        ):  # The holder slept before its put; another took the lock over meanwhile.
            world.stored[TABLE][ROW][b"rowlog:\x04LOCK"] = b"\0" * 12

    world.processes[0].on_step = taken_over
    with pytest.raises(OutcomeUnknown, match="lost"):
        await log.put(ROW, {b"d:x": b"1"})
    assert world.cells() == {}


@virtual
async def test_a_put_that_was_made_and_processed_is_not_told_as_refused(world: World) -> None:
    """The gateway's first call makes the change, and its answer is lost; its second call finds another lock."""
    log = await world.log("a", settings={"row_locks": True})
    log.listen("a", Heard())
    await log.start()
    rows = world.processes[0].rows
    change = rows.change

    async def twice(*given: Any) -> bool:
        assert await change(*given)
        await until(lambda: not world.cells())
        world.stored[TABLE][ROW][b"rowlog:\x04LOCK"] = b"\0" * 12
        return await change(*given)

    rows.change = twice  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await log.put(ROW, {b"d:x": b"1"})
    assert world.stored[TABLE][ROW][b"d:x"] == b"1"


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "no-answer"])
def test_a_lock_is_kept_while_a_put_that_can_not_compare_it_may_arrive(is_cancelled: bool) -> None:
    @virtual
    async def test(world: World) -> None:
        log, second = [(await world.process(settings=LOCKED)).log for _ in range(2)]
        await log.subscribe(Subscription("a"))
        await second.meta.fresh()
        for process in world.processes:
            process.rows.changes_together = False
        rows = world.processes[0].rows
        put = rows.put
        late: list[asyncio.Task[None]] = []

        async def arrive(*given: Any) -> None:
            await pass_time(2)
            await put(*given)

        async def slow(table: bytes, given: Any) -> None:
            if table != TABLE:
                return await put(table, given)
            late.append(asyncio.create_task(arrive(table, given)))
            await pass_time(1)
            raise WriteUnknown("no answer in time")

        rows.put = slow  # type: ignore[method-assign]
        putting = asyncio.create_task(log.put(ROW, {b"d:x": b"first"}))
        await until(lambda: bool(late))
        if is_cancelled:
            putting.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else OutcomeUnknown):
            await putting
        await second.put(ROW, {b"d:x": b"second"})
        assert late[0].done(), "the lock lasts longer than the first put is in flight"
        assert world.stored[TABLE][ROW][b"d:x"] == b"second"

    test()


@virtual
async def test_puts_of_one_process_appear_in_the_order_of_their_numbers(world: World) -> None:
    log = await world.log("a")
    heard = Heard()
    log.listen("a", heard)
    await log.start()
    await asyncio.gather(*(log.put(ROW, payload=b"%d" % each) for each in range(50)))
    await until(lambda: len(heard.messages) == 50)
    assert heard.seqs == [*range(1, 51)]


@virtual
async def test_a_put_does_not_overtake_a_cancelled_one_of_its_row(world: World) -> None:
    log = await world.log("a")
    rows = world.processes[0].rows
    put, begun = rows.put, asyncio.Event()

    async def slow_once(table: bytes, given: Any) -> None:
        if table == TABLE and not begun.is_set():
            begun.set()
            await pass_time(2)
        await put(table, given)

    rows.put = slow_once  # type: ignore[method-assign]
    putting = asyncio.create_task(log.put(ROW, {b"d:x": b"first"}))
    await begun.wait()
    putting.cancel()
    await log.put(b"other", {b"d:x": b"other"})
    assert world.clock.monotonic() < 2, "puts of other rows do not wait"
    await log.put(ROW, {b"d:x": b"second"})
    await pass_time(3)
    assert world.stored[TABLE][ROW][b"d:x"] == b"second"

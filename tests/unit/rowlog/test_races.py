"""Steps of two tasks or processes of a rowlog that come between each other."""

from typing import Any

from broker.rowlog import Put, Subscription
from broker.rowlog.cell_keys import Entry
from broker.rowlog.worklist import Work
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import ROW, Heard, World, until, virtual


@virtual
async def test_a_shard_is_not_dropped_that_a_writer_still_uses(world: World) -> None:
    log = await world.log("a", shards=4, settings={"sweep_ms": 60_000})
    heard = Heard()
    log.listen("a", heard)
    other = (await world.process(coordinator=None)).log  # It hears of no change.
    await log.start()
    await until(lambda: log.figures.values["leads", ""] == 1)
    await pass_time(59.8 - world.clock.monotonic())
    await other.meta.fresh()
    await log.reshard(1)
    await pass_time(2)
    for each in range(20):
        await other.put(b"row%d" % each)
    await until(lambda: len(heard.messages) == 20, within_s=30)

    async def has_one_shard() -> bool:
        return len((await log.meta.setup()).shards) == 1

    await until(has_one_shard, within_s=200)


def test_a_row_that_is_woken_while_it_is_in_work_does_not_wait() -> None:
    work = Work()
    work.offer(Entry(0, "b", 1, 1, ROW, b""))
    assert work.take(0) == ROW
    work.wake(ROW)
    work.finish(ROW, due=5_000)
    assert work.take(1) == ROW
    work.finish(ROW, due=5_000)
    assert work.take(1) is None


@virtual
async def test_puts_for_a_subscription_not_known_here_yet_keep_their_order(world: World) -> None:
    log = (await world.process(coordinator=None)).log
    await log.subscribe(Subscription("a"))
    other = (await world.process()).log
    await other.subscribe(Subscription("b"))
    found = await log.put_many(
        [Put(ROW, payload=b"1", subscriptions=["b"]), Put(ROW, payload=b"2")]
    )
    assert [(each.seq, each.payload) for each in found] == [(1, b"1"), (2, b"2")]  # type: ignore[union-attr]


@virtual
async def test_puts_that_wait_for_the_setup_read_it_once(world: World) -> None:
    process = await world.process()
    await process.log.subscribe(Subscription("a"))
    await pass_time(10)
    get, readings = process.rows.get, []

    async def counted(table: bytes, rows: Any, columns: Any) -> Any:
        readings.extend(row for row in rows if row.endswith(b"setup"))
        return await get(table, rows, columns)

    process.rows.get = counted  # type: ignore[method-assign]
    await process.log.put_many([Put(b"%d" % each) for each in range(100)])
    assert len(readings) == 1

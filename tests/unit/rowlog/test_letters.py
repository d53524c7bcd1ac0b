"""Dead letters and held messages, and the entries of messages that open again."""

import asyncio
from typing import Any

import pytest

from broker.errors import NotFound
from broker.rowlog import RowLog, Subscription
from broker.rowlog.cells import encode_state
from broker.rowlog.execution_state import DONE
from broker.rowlog.row_table import NotWritten, TableError
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import INDEX, ROW, TABLE, Heard, Process, World, until, virtual

ORDERED = {"respect_order": True}


async def with_a_held_message(world: World) -> tuple[RowLog, Heard]:
    """Return a log whose message is dead for "first" and held for "second", and the listener of "second"."""
    log = await world.log(
        Subscription("first", order=1, max_tries=1),
        Subscription("second", order=2),
        settings=ORDERED,
    )
    second = Heard()
    log.listen("first", Heard(False))
    log.listen("second", second)
    await log.start()
    await log.put(ROW, data=b"d")
    await until(lambda: log.figures.values["dead", "first"] == 1)
    await pass_time(10)
    assert [each.held for each in await log.dead("second")] == [True]
    return log, second


@virtual
async def test_a_message_is_held_no_more_once_the_earlier_subscription_is_removed(
    world: World,
) -> None:
    log, second = await with_a_held_message(world)
    assert await log.unsubscribe("first") == 1
    await until(lambda: second.seqs == [1], within_s=2)
    assert second.messages[0].data == b"d"
    await until(lambda: not world.cells())
    await pass_time(10)
    assert (await log.dead("second"), world.entries()) == ([], [])


async def strand(log: RowLog, world: World) -> None:
    """Remove "first" as earlier releases did: the message stays held."""
    (found,) = await log.messages.open(ROW)
    await log.meta.change(lambda setup: setup.without_subscription("first"))
    (column,) = [each for each, value in world.cells().items() if value == found.raw]
    world.stored[TABLE][ROW][column] = encode_state(found.state.with_part("first", DONE))


@virtual
async def test_a_sweep_opens_what_nothing_holds_any_more(world: World) -> None:
    log, second = await with_a_held_message(world)
    await strand(log, world)
    assert (await log.verify()).held == 1
    assert second.seqs == []
    report = await log.verify(mend=True)
    assert (report.held, report.is_sound) == (1, False)
    await until(lambda: second.seqs == [1], within_s=2)


@pytest.mark.parametrize("is_revived", [True, False], ids=["revived", "dropped"])
def test_a_letter_that_nothing_holds_any_more_can_be_revived_and_dropped(is_revived: bool) -> None:
    @virtual
    async def test(world: World) -> None:
        log, second = await with_a_held_message(world)
        (letter,) = await log.dead("second")
        await strand(log, world)
        await (log.revive if is_revived else log.drop)(letter)
        await until(lambda: not world.cells())
        assert second.seqs == ([1] if is_revived else [])
        with pytest.raises(NotFound):
            await log.drop(letter)

    test()


def slowed(process: Process, table: bytes, call: str, seconds: float) -> None:
    """Delay the next call of a process to a table."""
    original = getattr(process.rows, call)

    async def slow(given: bytes, *args: Any) -> Any:
        if given != table:
            return await original(given, *args)
        setattr(process.rows, call, original)
        await pass_time(seconds)
        return await original(given, *args)

    setattr(process.rows, call, slow)


@virtual
async def test_a_scan_while_a_message_is_opened_for_a_new_subscription_loses_nothing(
    world: World,
) -> None:
    log = await world.log("a")
    heard = Heard()
    log.listen("b", heard)
    await log.start()
    await log.put(ROW)
    await pass_time(200)
    other = await world.process()
    slowed(other, TABLE, "check_and_put", 12)
    await other.log.subscribe(Subscription("b"), since="open")
    await until(lambda: heard.seqs == [1], within_s=10)


@virtual
async def test_subscribing_with_what_is_open_may_be_repeated(world: World) -> None:
    log = await world.log("a")
    await log.put(ROW)
    other = await world.process()

    def fail(name: str, table: bytes) -> None:
        if (name, table) == ("put", INDEX):
            raise NotWritten("the gateway restarts")

    other.on_step = fail
    with pytest.raises(TableError):
        await other.log.subscribe(Subscription("b"), since="open")
    other.on_step = None
    for _ in range(2):
        await other.log.subscribe(Subscription("b"), since="open")
    heard = Heard()
    log.listen("b", heard)
    await log.start()
    await until(lambda: heard.seqs == [1])
    await pass_time(60)
    assert heard.seqs == [1]


@virtual
async def test_a_message_that_is_dead_for_an_earlier_subscription_is_held_for_a_new_one(
    world: World,
) -> None:
    log = await world.log(Subscription("first", order=1, max_tries=1), settings=ORDERED)
    heard = Heard()
    log.listen("first", Heard(False))
    log.listen("new", heard)
    await log.start()
    await log.put(ROW)
    await until(lambda: log.figures.values["dead", "first"] == 1)
    await log.subscribe(Subscription("new", order=2), since="open")
    await pass_time(10)
    assert heard.seqs == []
    assert [each.held for each in await log.dead("new")] == [True]
    await log.revive(*await log.dead("first"))
    await until(lambda: heard.seqs == [1])


async def died(world: World, *, age_s: float) -> Heard:
    """Process a message that dies behind the first scan; return its listener, which took some seconds."""
    log, heard = await world.log(Subscription("a", max_tries=1)), Heard(False)
    heard.gate = asyncio.Event()
    log.listen("a", heard)
    await log.put(ROW)
    await pass_time(age_s)
    await log.start()
    await pass_time(7)
    heard.gate.set()
    await until(lambda: log.figures.values["dead", "a"] == 1)
    return heard


@virtual
async def test_a_message_that_died_just_now_is_offered_as_soon_as_it_is_revived(
    world: World,
) -> None:
    heard = await died(world, age_s=600)
    await pass_time(1)
    other = (await world.process()).log
    await other.revive(*await other.dead("a"))
    await until(lambda: heard.seqs == [1, 1], within_s=2)


@virtual
async def test_a_scan_while_a_message_is_revived_loses_nothing(world: World) -> None:
    heard = await died(world, age_s=0)
    await pass_time(60)
    other = await world.process()
    (letter,) = await other.log.dead("a")
    slowed(other, TABLE, "check_and_put", 12)
    await other.log.revive(letter)
    await until(lambda: heard.seqs == [1, 1], within_s=10)


@virtual
async def test_a_message_that_is_revived_while_it_is_buried_keeps_its_entry(world: World) -> None:
    process = await world.process()
    log, heard = process.log, Heard(False)
    await log.subscribe(Subscription("a", max_tries=1))
    log.listen("a", heard)
    await log.start()
    await pass_time(10)
    slowed(process, INDEX, "delete", 3)
    await log.put(ROW)
    await until(lambda: log.figures.values["dead", "a"] == 1)
    await pass_time(1)
    other = (await world.process()).log
    await other.revive(*await other.dead("a"))
    await until(lambda: heard.seqs == [1, 1], within_s=10)

"""Several appends in flight at once, on a table that keeps their order."""

import asyncio

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.errors import BodyTooLarge, Fenced, StorageFull
from broker.model import LOG_KEY_MAX, TopicId
from broker.storage.head import PageState
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import PageBounds
from tests.kit.bench import Gate, HookedTable, settle
from tests.kit.contract.log_bench import KEY, Bench


class InOrder(MemoryTable):
    """Applies changes in the order of the calls. A test lets each change through."""

    keeps_order = True

    def __init__(self) -> None:
        super().__init__()
        self.held: list[asyncio.Future[BaseException | None]] | None = None

    @override
    async def change(self, *args, **named):
        if self.held is not None:
            turn = asyncio.get_running_loop().create_future()
            self.held.append(turn)
            if (error := await turn) is not None:
                raise error
        return await super().change(*args, **named)


@pytest.fixture
def bench() -> Bench:
    table = InOrder()
    bounds = PageBounds(cells_max=3, packed_from=1 << 30)
    one, other = (Logs(table, SystemClock(), bounds=bounds) for _ in "12")
    return Bench(table, TopicId("ns", "t"), one, other)


async def two_in_flight(bench: Bench, hold, **named):
    """Begin two appends; return them, and the futures that let their changes through."""
    bench.table.held = []
    appends = [asyncio.ensure_future(bench.publish(hold, **named)) for _ in "12"]
    await settle()
    turns, bench.table.held = bench.table.held, None
    assert len(turns) == 2
    return appends, turns


async def test_two_appends_are_in_flight_and_confirmed_in_order(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_in_flight(bench, hold)
    turns[0].set_result(None)
    first = await one
    assert not two.done()
    assert hold.pointer == first[-1]
    turns[1].set_result(None)
    second = await two
    assert await bench.read() == [*first, *second]
    assert hold.head.total == 2


async def test_after_a_refused_append_the_next_one_is_not_written(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_in_flight(bench, hold)
    turns[0].set_result(StorageFull("full"))
    with pytest.raises(StorageFull):
        await one
    turns[1].set_result(None)
    with pytest.raises(Fenced):
        await two
    assert hold.done
    assert await bench.read() == []


async def test_an_append_that_the_table_refuses_leaves_the_one_before_it_in_flight(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_in_flight(bench, hold)
    turns[1].set_result(BodyTooLarge("too large"))
    with pytest.raises(BodyTooLarge):
        await two
    bench.table.held = []
    three = asyncio.ensure_future(bench.publish(hold))
    await settle()
    for turn in (turns[0], *bench.table.held):
        turn.set_result(None)
    rows = [*await one, *await three]
    assert await bench.read() == rows
    assert not hold.done


async def test_after_a_claim_of_another_node_both_appends_are_refused(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_in_flight(bench, hold)
    other = await bench.claim(bench.other, "other")
    for turn in turns:
        turn.set_result(None)
    for append in (one, two):
        with pytest.raises(Fenced):
            await append
    assert await bench.read() == []
    assert await bench.publish(other) == await bench.read()


async def test_a_handoff_waits_for_both_appends(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_in_flight(bench, hold)
    handing = asyncio.ensure_future(hold.hand_off())
    await settle()
    for turn in turns:
        turn.set_result(None)
    rows = [*await one, *await two]
    assert await handing
    assert await bench.read() == rows


async def test_a_cancelled_append_that_waits_for_the_one_before_it_ends_the_hold(bench) -> None:
    table, gate = HookedTable(bench.table), Gate()
    hold = await bench.claim(Logs(table, SystemClock()))
    table.on("append", gate.after)
    one = asyncio.ensure_future(bench.publish(hold))
    await gate.reached.wait()
    two = asyncio.ensure_future(bench.publish(hold))
    await settle()
    two.cancel()
    with pytest.raises(asyncio.CancelledError):
        await two
    assert hold.done
    gate.open()
    first = await one
    assert (await bench.read())[:1] == first
    with pytest.raises(Fenced):
        await bench.publish(hold)


async def test_an_append_with_marks_in_flight_keeps_marked_unchanged(bench) -> None:
    hold = await bench.claim()
    marked = hold.head.marked
    bench.table.held = []
    keyed = asyncio.ensure_future(bench.publish(hold, key=KEY))
    plain = asyncio.ensure_future(bench.publish(hold))
    await settle()
    turns, bench.table.held = bench.table.held, None
    for turn in turns:
        turn.set_result(None)
    await keyed
    await plain
    assert hold.head.marked == marked


async def test_the_log_rolls_a_full_page_before_the_next_append(bench) -> None:
    hold = await bench.claim()
    rows = [
        row
        for each in await asyncio.gather(*(bench.publish(hold) for _ in range(7)))
        for row in each
    ]
    await hold.settled()
    assert await bench.read() == sorted(rows)
    states = [head.state for _, head in await hold.chain(bytes(10), LOG_KEY_MAX)]
    assert states == [PageState.SEALED, PageState.SEALED, PageState.OPEN]

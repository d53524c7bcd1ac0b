"""Appends that are sent behind each other, where the table keeps their order."""

import asyncio

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.errors import Fenced, StorageFull
from broker.model import ROW_ID_MAX, TopicId
from broker.storage.head import PageState
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import PageBounds
from tests.kit.bench import settle
from tests.kit.contract.log_bench import KEY, Bench


class InOrder(MemoryTable):
    """Makes changes in the order of asking, each when it is let through."""

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
    one, other = (Logs(table, SystemClock(), bounds=bounds, call_s=0.3) for _ in "12")
    return Bench(table, TopicId("ns", "t"), one, other)


async def two_under_way(bench: Bench, hold, **named):
    """Begin two appends; return them and the turns of their changes."""
    bench.table.held = []
    appends = [asyncio.ensure_future(bench.publish(hold, **named)) for _ in "12"]
    await settle()
    turns, bench.table.held = bench.table.held, None
    assert len(turns) == 2
    return appends, turns


async def test_both_are_under_way_and_confirmed_in_order(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_under_way(bench, hold)
    assert hold.is_busy
    turns[0].set_result(None)
    first = await one
    assert not two.done()
    assert hold.pointer == first[-1]
    turns[1].set_result(None)
    second = await two
    assert await bench.read() == [*first, *second]
    assert (hold.head.total, hold.is_busy) == (2, False)


async def test_behind_one_that_is_refused_nothing_is_written(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_under_way(bench, hold)
    turns[0].set_result(StorageFull("full"))
    with pytest.raises(StorageFull):
        await one
    turns[1].set_result(None)
    with pytest.raises(Fenced):
        await two
    assert hold.done
    assert await bench.read() == []


async def test_behind_a_claim_of_another_both_are_refused(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_under_way(bench, hold)
    other = await bench.claim(bench.other, "other")
    for turn in turns:
        turn.set_result(None)
    for append in (one, two):
        with pytest.raises(Fenced):
            await append
    assert await bench.read() == []
    assert await bench.publish(other) == await bench.read()


async def test_a_change_of_the_head_alone_waits_for_both(bench) -> None:
    hold = await bench.claim()
    (one, two), turns = await two_under_way(bench, hold)
    handing = asyncio.ensure_future(hold.hand_off())
    await settle()
    for turn in turns:
        turn.set_result(None)
    rows = [*await one, *await two]
    assert await handing
    assert await bench.read() == rows


async def test_marks_under_way_keep_marked_where_it_is(bench) -> None:
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


async def test_one_that_fills_the_page_is_rolled_before_the_next(bench) -> None:
    hold = await bench.claim()
    rows = [
        row
        for each in await asyncio.gather(*(bench.publish(hold) for _ in range(7)))
        for row in each
    ]
    await hold.settled()
    assert await bench.read() == sorted(rows)
    states = [head.state for _, head in await hold.chain(bytes(10), ROW_ID_MAX)]
    assert states == [PageState.SEALED, PageState.SEALED, PageState.OPEN]

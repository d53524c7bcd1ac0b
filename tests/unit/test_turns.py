"""Turns of calls, in virtual time: a region or a topic that hangs does not take every turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.testing.virtual_time import VirtualLoop, pass_time, simulate
from broker.turns import LATE_S, SLOW_KNOWN_MAX, CallSubject, Turn, Turns

WAIT_S = 10.0
LATE_SHARES = 3
HUNG, WELL = CallSubject("messages/1", b"ns:hung:"), CallSubject("messages/2", b"ns:well:")


def of_hung(number: int) -> CallSubject:
    """Return another topic in the region that hangs."""
    return CallSubject(HUNG.region, b"ns:hung-%d:" % number)


def run(main: Callable[[Turns], Awaitable[None]], turns_max: int = 16) -> None:
    async def begin(_: VirtualLoop) -> None:
        turns = Turns(turns_max, LATE_SHARES * turns_max)
        await main(turns)
        turns.close()

    simulate(begin)


async def taken(turns: Turns, *places: CallSubject) -> list[asyncio.Task[Turn]]:
    """Ask for turns in this order, and wait until the free turns are given."""
    tasks = [asyncio.ensure_future(turns.take(place, WAIT_S)) for place in places]
    await pass_time(0.001)
    return tasks


def count(tasks: list[asyncio.Task[Turn]]) -> int:
    return sum(task.done() for task in tasks)


async def drop(turns: Turns, tasks: list[asyncio.Task[Turn]]) -> None:
    for task in tasks:
        task.cancel()
    for each in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(each, Turn):
            turns.give_back(each)


async def call(turns: Turns, place: CallSubject, seconds: float = 0.002) -> None:
    turn = await turns.take(place, WAIT_S)
    await pass_time(seconds)
    turns.give_back(turn, answered=True)


def test_a_region_that_hangs_leaves_a_quarter_of_the_turns_to_others() -> None:
    async def main(turns: Turns) -> None:
        hung = await taken(turns, *map(of_hung, range(100)))
        assert count(hung) == 12
        began = asyncio.get_running_loop().time()
        for _ in range(100):
            await call(turns, WELL)
        assert asyncio.get_running_loop().time() - began < LATE_S
        await drop(turns, hung)

    run(main)


def test_late_calls_hold_no_turns_and_their_region_gets_one_call_at_a_time() -> None:
    async def main(turns: Turns) -> None:
        hung = await taken(turns, *map(of_hung, range(100)))
        await pass_time(LATE_S)
        assert count(hung) == 12, "a slow region gets no call while one of its calls is in flight"
        places = [CallSubject(f"messages/{2 + n % 4}", b"ns:%d:" % n) for n in range(15)]
        well = await taken(turns, *places)
        assert count(well) == 15
        for one in hung[:12]:
            turns.give_back(one.result())
        await pass_time(0.001)
        assert count(hung) == 13, "it gets one call"
        turns.give_back(hung[12].result())
        await pass_time(0.001)
        assert count(hung) == 14, "that call has failed, so it gets another one"
        turns.give_back(hung[13].result(), answered=True)
        await drop(turns, well)
        await pass_time(0.001)
        assert count(hung) == 14 + 12, "it has answered, so it gets many"
        await drop(turns, hung[14:])
        assert turns.under_way == 0

    run(main)


def test_regions_that_hang_together_delay_others_only_until_their_calls_are_late() -> None:
    async def main(turns: Turns) -> None:
        places = [CallSubject(f"messages/{n % 8}", b"ns:%d:" % n) for n in range(3, 43)]
        hung = await taken(turns, *places)
        assert count(hung) == 16
        well = await taken(turns, CallSubject("messages/9", b"ns:9:"))
        assert count(well) == 0
        await pass_time(LATE_S)
        assert count(well) == 1
        await drop(turns, [*hung, *well])

    run(main)


def test_a_topic_has_half_of_the_turns_at_most() -> None:
    async def main(turns: Turns) -> None:
        one = await taken(turns, *[HUNG] * 20)
        assert count(one) == 8
        other = await taken(turns, of_hung(1))
        assert count(other) == 1, "another topic of its region goes on"
        await drop(turns, [*one, *other])

    run(main)


def test_topics_that_wait_have_their_turns_in_rotation() -> None:
    async def main(turns: Turns) -> None:
        order: list[bytes] = []

        async def noted(place: CallSubject) -> None:
            turn = await turns.take(place, WAIT_S)
            order.append(place.topic)
            turns.give_back(turn, answered=True)

        (first,) = await taken(turns, WELL)
        waiting = [asyncio.ensure_future(noted(HUNG)) for _ in range(50)]
        await pass_time(0.001)
        waiting += [asyncio.ensure_future(noted(place)) for place in (of_hung(1), WELL)]
        await pass_time(0.001)
        turns.give_back(first.result(), answered=True)
        await asyncio.gather(*waiting)
        assert set(order[:4]) == {HUNG.topic, of_hung(1).topic, WELL.topic}

    run(main, turns_max=1)


def test_calls_that_hang_are_bounded() -> None:
    async def main(turns: Turns) -> None:
        held: list[asyncio.Task[Turn]] = []
        for wave in range(LATE_SHARES + 3):
            held += await taken(
                turns, *(CallSubject(f"messages/{wave}.{n}", b"t:%d:" % n) for n in range(4))
            )
            await pass_time(LATE_S)
        assert count(held) == turns.under_way == 4 * (1 + LATE_SHARES)
        late = held[0].result()
        turns.give_back(late)
        await pass_time(0.001)
        assert turns.under_way == 4 * (1 + LATE_SHARES), "the next one has become late"
        await drop(turns, held[1:])
        assert turns.under_way == 0

    run(main, turns_max=4)


def test_the_turn_of_a_cancelled_caller_goes_to_the_next_one() -> None:
    async def main(turns: Turns) -> None:
        first, leaving, following = await taken(turns, WELL, WELL, WELL)
        turns.give_back(first.result(), answered=True)
        leaving.cancel()
        await pass_time(0.001)
        assert following.done()
        turns.give_back(following.result(), answered=True)
        assert turns.under_way == 0

    run(main, turns_max=1)


def test_a_caller_that_waits_too_long_gets_an_error_and_holds_no_turn() -> None:
    async def main(turns: Turns) -> None:
        turn = await turns.take(WELL, WAIT_S)
        with pytest.raises(TimeoutError):
            await turns.take(WELL, 0.1)
        turns.give_back(turn, answered=True)
        assert turns.under_way == 0
        await call(turns, WELL)

    run(main, turns_max=1)


def test_only_a_limited_number_of_slow_regions_is_remembered() -> None:
    async def main(turns: Turns) -> None:
        for number in range(SLOW_KNOWN_MAX + 100):
            turn = await turns.take(CallSubject(f"messages/{number}"), WAIT_S)
            await pass_time(LATE_S)
            await call(turns, WELL)
            turns.give_back(turn)
        for number, begun in ((0, 1), (SLOW_KNOWN_MAX + 99, 2)):
            tasks = await taken(turns, *[CallSubject(f"messages/{number}")] * 2)
            assert count(tasks) == begun, "a remembered slow region gets one call at a time"
            await drop(turns, tasks)

    run(main)

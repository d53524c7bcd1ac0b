"""Walks over state let other work run, and take turns. Heavy work runs in threads, one at a time for each caller."""

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest

from broker.errors import Overloaded
from broker.long_work import (
    CALLER,
    COUNTED_AT_ONCE,
    ROUNDS_FREE,
    FairLock,
    Pace,
    ShortWork,
    Take,
    aside,
    heavy,
    paced,
)
from broker.testing.virtual_time import simulate
from tests.kit.bench import settle


class _Time:
    """A loop's time that the test sets."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patch: pytest.MonkeyPatch) -> None:
        self.now_s = loop.time()
        patch.setattr(loop, "time", lambda: self.now_s)


async def _work(name: str, steps: int, rounds: list[str]) -> None:
    mine = Pace()
    for _ in range(steps):
        rounds.append(name)
        await mine.pause()


async def test_work_within_its_slice_is_not_interrupted() -> None:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        time = _Time(loop, patch)
        mine = Pace()
        loop.call_soon(seen.append, "other")
        await mine.step()
        assert not seen
        time.now_s += 1
        await mine.step()
        assert seen == ["other"]
        time.now_s += 1
        loop.call_soon(seen.append, "again")
        await mine.step()
        assert seen == ["other", "again"], "the next slice ends as well"


async def test_a_round_of_the_loop_has_one_slice_of_all_long_work() -> None:
    loop = asyncio.get_running_loop()
    done: list[str] = []
    most = 0

    async def count_rounds() -> None:
        nonlocal most
        before = len(done)
        while len(done) < 40:
            await settle(1)
            most, before = max(most, len(done) - before), len(done)

    working = [loop.create_task(_work(name, 10, done)) for name in "abcd"]
    await settle(1)  # The first slices begin at once.
    assert done == list("abcd")
    await asyncio.wait_for(asyncio.gather(count_rounds(), *working), 10)
    assert most == 1
    assert done == list("abcd") * 10, "they take turns"


async def test_between_two_slices_some_rounds_are_free() -> None:
    loop = asyncio.get_running_loop()
    done: list[str] = []
    free = [0]

    async def count_rounds() -> None:
        before = len(done)
        while len(done) < 20:
            await settle(1)
            free[-1] += len(done) == before
            if len(done) > before:
                free.append(0)
                before = len(done)

    working = [loop.create_task(_work(name, 10, done)) for name in "ab"]
    await settle(1)
    await asyncio.wait_for(asyncio.gather(count_rounds(), *working), 10)
    assert min(free[1:-1]) >= ROUNDS_FREE


async def test_cancelled_work_does_not_delay_other_work() -> None:
    done: list[str] = []
    first, second = (asyncio.ensure_future(_work(name, 3, done)) for name in "ab")
    await settle(1)
    first.cancel()
    await asyncio.wait_for(second, 10)
    assert done == list("abbb")
    assert (await asyncio.gather(first, return_exceptions=True))[
        0
    ].__class__ is asyncio.CancelledError


def test_no_slice_ends_in_virtual_time() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> list[str]:
        seen: list[str] = []
        loop.call_soon(seen.append, "other")
        async for _ in paced(range(1000)):
            pass
        return [*seen]

    assert not simulate(main)


async def test_aside_runs_work_in_one_thread_while_the_loop_goes_on() -> None:
    loop_thread = threading.get_ident()
    goes_on = threading.Event()
    threads: list[int] = []

    def work() -> int:
        threads.append(threading.get_ident())
        assert goes_on.wait(10)
        return 7

    first, second = (asyncio.ensure_future(aside(work)) for _ in range(2))
    asyncio.get_running_loop().call_soon(goes_on.set)
    assert await asyncio.gather(first, second) == [7, 7]
    assert len(set(threads)) == 1
    assert loop_thread not in threads


def test_aside_runs_work_at_once_in_virtual_time() -> None:
    async def main(_: object) -> None:
        assert await aside(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await aside(lambda: 1 // 0)

    simulate(main)


async def test_heavy_work_of_a_caller_runs_one_at_a_time_and_that_of_others_beside_it() -> None:
    goes_on = {name: threading.Event() for name in ("a1", "a2", "b")}
    begun: list[str] = []

    def work(name: str) -> str:
        begun.append(name)
        assert goes_on[name].wait(10)
        return name

    first, second, other = (
        asyncio.ensure_future(heavy(caller, partial(work, name)))
        for caller, name in (("a", "a1"), ("a", "a2"), ("b", "b"))
    )
    goes_on["b"].set()
    assert await asyncio.wait_for(other, 10) == "b"
    assert sorted(begun) == ["a1", "b"]
    goes_on["a2"].set()
    goes_on["a1"].set()
    assert await asyncio.wait_for(asyncio.gather(first, second), 10) == ["a1", "a2"]


async def test_a_thread_counts_its_items_on_the_loop() -> None:
    loop_thread, counted = threading.get_ident(), list[tuple[int, int]]()

    def work(take: Take) -> None:
        for _ in range(COUNTED_AT_ONCE + 1):
            take(1)
        take(7 * COUNTED_AT_ONCE)

    await heavy("a", work, lambda count: counted.append((threading.get_ident(), count)))
    assert counted == [
        (loop_thread, COUNTED_AT_ONCE),
        (loop_thread, 7 * COUNTED_AT_ONCE + 1),
    ]


@pytest.mark.parametrize("count", [1, COUNTED_AT_ONCE])
async def test_a_refused_count_is_the_error_of_the_work(count: int) -> None:
    def refuse(_: int) -> None:
        raise Overloaded("no")

    with pytest.raises(Overloaded):
        await heavy("a", lambda take: take(count), refuse)


async def test_a_call_that_is_cancelled_waits_for_the_end_of_its_thread() -> None:
    begun, goes_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        assert goes_on.wait(10)
        ended.append(True)

    call = asyncio.ensure_future(heavy("a", work))
    assert await asyncio.to_thread(begun.wait, 10)
    call.cancel()
    await settle()
    assert not call.done()
    goes_on.set()
    assert isinstance(
        (await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError
    )
    assert ended == [True]


async def test_no_slice_begins_beside_short_work() -> None:
    order: list[str] = []

    async def walk() -> None:
        await Pace().pause()
        order.append("slice")

    with ShortWork():
        walking = asyncio.create_task(walk())
        await settle(ROUNDS_FREE + 2)
        order.append("short")
    await walking
    assert order == ["short", "slice"]


async def test_short_work_that_takes_long_holds_no_walk_for_ever() -> None:
    with ShortWork():
        async with asyncio.timeout(30):
            await Pace().pause()


def _as_caller(caller: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    context = copy_context()
    context.run(CALLER.set, caller)
    return asyncio.get_running_loop().create_task(work, context=context)


async def test_callers_take_turns_however_much_one_of_them_asks_for() -> None:
    """Beside a thousand reads of one caller, a small one of another ended at its deadline, after 30 s."""
    lock, done = FairLock(), list[str]()

    async def work(name: str) -> None:
        async with lock:
            done.append(name)

    async with lock:
        asked = [
            *(("a", f"a{number}") for number in range(5)),
            ("b", "b0"),
            ("c", "c0"),
            ("b", "b1"),
        ]
        tasks = [_as_caller(caller, work(name)) for caller, name in asked]
        await settle(2)
        tasks[1].cancel()
    await settle(20)
    assert done == ["a0", "b0", "c0", "b1", "a2", "a3", "a4"]


async def test_a_lock_that_comes_with_a_cancellation_is_passed_on() -> None:
    lock, done = FairLock(), list[str]()

    async def work(name: str) -> None:
        async with lock:
            done.append(name)

    async with lock:
        first, _second = _as_caller("a", work("first")), _as_caller("a", work("second"))
        await settle(2)
    first.cancel()
    await settle(5)
    assert done == ["second"]
    async with lock:
        pass


async def test_walks_of_one_caller_do_not_delay_those_of_another() -> None:
    rounds: list[str] = []
    many = [_as_caller("a", _work("a", 50, rounds)) for _ in range(50)]
    await settle(3)
    await _as_caller("b", _work("b", 5, rounds))
    assert rounds.count("a") <= 50 + 2 * 5
    await asyncio.gather(*many)

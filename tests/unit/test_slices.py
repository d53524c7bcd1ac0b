"""Long work runs in slices: other work runs between them, and only one slice runs at a time."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Generator

import pytest

from broker import slices
from broker.slices import ROUNDS_FREE, ShortWork, Slice, aside, in_shared_slices
from broker.testing.virtual_time import simulate
from tests.kit.bench import settle


class _Time:
    """A loop's time that the test sets."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patch: pytest.MonkeyPatch) -> None:
        self.now_s = loop.time()
        patch.setattr(loop, "time", lambda: self.now_s)


async def _work(name: str, steps: int, rounds: list[str]) -> None:
    mine = Slice()
    for _ in range(steps):
        rounds.append(name)
        await mine.next()


async def test_work_within_its_slice_is_not_interrupted() -> None:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        time = _Time(loop, patch)
        mine = Slice()
        loop.call_soon(seen.append, "other")
        await mine.go_on()
        assert not seen
        time.now_s += 1
        assert mine.is_over
        await mine.go_on()
        assert seen == ["other"]
        time.now_s += 1
        assert mine.is_over, "the next slice ends as well"


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


async def test_long_work_waits_for_short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "HELD_S_MAX", 3600)
    done: list[str] = []
    with ShortWork(), ShortWork():
        working = asyncio.ensure_future(_work("a", 3, done))
        await settle(ROUNDS_FREE + 5)
        assert done == ["a"], "the first slice begins at once, the second waits"
    await asyncio.wait_for(working, 10)
    assert done == list("aaa")


async def test_short_work_that_takes_long_does_not_stop_long_work() -> None:
    done: list[str] = []
    with ShortWork():
        await asyncio.wait_for(_work("a", 3, done), 10)
    assert done == list("aaa")


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


def _steps(name: str, count: int, done: list[str]) -> Generator[None, None, str]:
    for _ in range(count):
        done.append(name)
        yield
    return name


async def test_short_pieces_share_a_slice() -> None:
    loop = asyncio.get_running_loop()
    done: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        _Time(loop, patch)  # It stands still, so no slice ends.
        pieces = [asyncio.ensure_future(in_shared_slices(_steps(name, 2, done))) for name in "abc"]
        rounds = 0
        while not done:
            await settle(1)
            rounds += 1
        assert rounds > ROUNDS_FREE, "they wait for their turn like other long work"
        assert done == list("aabbcc"), "one turn is enough for all"
        assert await asyncio.gather(*pieces) == list("abc")


async def test_a_long_piece_in_a_shared_slice_lets_the_others_go_on() -> None:
    loop = asyncio.get_running_loop()
    done: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        time = _Time(loop, patch)

        def long() -> Generator[None, None, str]:
            for _ in range(5):
                done.append("long")
                time.now_s += 1
                yield
            return "long"

        pieces = [
            asyncio.ensure_future(in_shared_slices(steps))
            for steps in (long(), _steps("a", 1, done), _steps("b", 1, done))
        ]
        assert await asyncio.gather(*pieces) == ["long", "a", "b"]
        assert done.index("a") < done.index("b") < 4, "they don't wait for the end of the long one"


async def test_a_shared_slice_hands_errors_and_cancellations_to_their_own_callers() -> None:
    done: list[str] = []

    def failing() -> Generator[None, None, str]:
        yield
        raise ValueError("no")

    cancelled = asyncio.ensure_future(in_shared_slices(_steps("cancelled", 1, done)))
    failed = asyncio.ensure_future(in_shared_slices(failing()))
    good = asyncio.ensure_future(in_shared_slices(_steps("good", 1, done)))
    await settle(1)
    cancelled.cancel()
    assert await asyncio.wait_for(good, 10) == "good"
    with pytest.raises(ValueError, match="no"):
        await failed
    assert done == ["good"]
    assert await asyncio.wait_for(in_shared_slices(_steps("later", 1, done)), 10) == "later"


def test_a_loop_that_had_long_work_is_freed() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_work("a", 1, []))
    loop.close()
    kept = weakref.ref(loop)
    del loop
    gc.collect()
    assert kept() is None


def test_no_slice_ends_in_virtual_time() -> None:
    async def main(_: asyncio.AbstractEventLoop) -> bool:
        mine = Slice()
        for _step in range(1000):
            await mine.go_on()
        return mine.is_over

    assert simulate(main) is False


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

"""Work that fails is repeated, and its errors are freed with it."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from broker.retries import repeat


class Failing:
    """Fails ``times`` times, then returns the number of attempts. ``held`` is alive while any error is."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.attempts = 0
        self.held: list[weakref.ref[Held]] = []

    async def __call__(self) -> int:
        held = Held()
        self.held.append(weakref.ref(held))
        self.attempts += 1
        if self.attempts <= self.times:
            raise ValueError(self.attempts)
        return self.attempts


class Held:
    """Something large in the frame that fails."""


async def test_work_is_repeated_until_it_does_not_fail():
    told, slept = [], []

    def pause_s(error: Exception, attempt: int) -> float:
        told.append((str(error), attempt))
        return attempt / 2

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    assert await repeat(Failing(3), pause_s, sleep) == 4
    assert (told, slept) == ([("1", 1), ("2", 2), ("3", 3)], [0.5, 1.0, 1.5])


async def test_the_error_after_which_no_pause_follows_is_raised():
    async def sleep(_: float) -> None:
        return None

    work = Failing(9)
    with pytest.raises(ValueError, match="3"):
        await repeat(work, lambda _, attempt: None if attempt == 3 else 0.0, sleep)
    assert work.attempts == 3


@pytest.mark.parametrize("limit", [1, 3])
async def test_no_error_outlives_its_retries(limit):
    async def sleep(_: float) -> None:
        assert [each for each in work.held[:-1] if each() is not None] == []

    work = Failing(9)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await repeat(work, lambda _, attempt: None if attempt == limit else 0.0, sleep)
        assert [each for each in work.held if each() is not None] == []
    finally:
        gc.enable()


async def test_a_cancelled_wait_raises_nothing_else():
    began = asyncio.Event()

    async def sleep(_: float) -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(repeat(Failing(9), lambda *_: 0.0, sleep))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

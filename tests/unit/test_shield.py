import asyncio

import pytest

from broker.shield import unless_abandoned


async def test_work_that_ends_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert await unless_abandoned(work(), asyncio.get_running_loop().create_future()) == 7


async def test_abandoned_work_is_cancelled_and_over() -> None:
    ended = asyncio.Event()
    abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        abandoned.set_result(None)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await unless_abandoned(work(), abandoned) is None
    assert ended.is_set()


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await unless_abandoned(work(), asyncio.get_running_loop().create_future())


async def test_cancelling_the_waiter_cancels_the_work() -> None:
    ended, began = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiter = asyncio.ensure_future(
        unless_abandoned(work(), asyncio.get_running_loop().create_future())
    )
    await began.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert ended.is_set()


async def test_abandoning_finished_work_cancels_nothing() -> None:
    abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        abandoned.set_result(None)
        return 7

    assert await unless_abandoned(work(), abandoned) == 7
    await asyncio.wait([asyncio.ensure_future(asyncio.wait([abandoned]))])
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_waiter_that_is_cancelled_when_it_is_abandoned_is_cancelled() -> None:
    abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    waiter = asyncio.ensure_future(unless_abandoned(work(), abandoned))
    await began.wait()
    abandoned.set_result(None)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_work_that_goes_on_when_it_was_abandoned_before_is_cancelled() -> None:
    abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    abandoned.set_result(None)
    assert await unless_abandoned(asyncio.Event().wait(), abandoned) is None

import time

import pytest

from broker.testing.virtual_time import EPOCH_MS, Hang, VirtualClock, pass_time, simulate, within


def test_an_hour_of_waiting_takes_no_time():
    async def main(loop):
        clock = VirtualClock(loop)
        begun_ms = clock.now_ms()
        await clock.sleep(3600)
        return clock.now_ms() - begun_ms, clock.monotonic()

    before = time.monotonic()
    passed_ms, monotonic = simulate(main)
    assert passed_ms == 3_600_000
    assert monotonic == pytest.approx(3600)
    assert time.monotonic() - before < 60  # Much less than an hour.


def test_timers_fire_in_order():
    async def main(loop):
        order = []
        for delay_s in (3, 1, 2):
            loop.call_later(delay_s, order.append, delay_s)
        await pass_time(5)
        return order

    assert simulate(main) == [1, 2, 3]


def test_a_wait_that_can_never_end_is_an_error():
    async def main(loop):
        await loop.create_future()

    with pytest.raises(Hang):
        simulate(main)


def test_each_wall_clock_has_its_own_error():
    async def main(loop):
        right, wrong = VirtualClock(loop), VirtualClock(loop, wall_ms=EPOCH_MS - 500)
        assert wrong.now_ms() == right.now_ms() - 500
        await pass_time(2)
        wrong.step(-1000)
        assert wrong.now_ms() == right.now_ms() - 1500
        assert (right.steady_ms(), wrong.steady_ms()) == (2000, 0)
        assert right.monotonic() == wrong.monotonic()

    simulate(main)


def test_threads_are_refused():
    async def main(loop):
        with pytest.raises(RuntimeError):
            loop.run_in_executor(None, print)
        with pytest.raises(RuntimeError):
            loop.call_soon_threadsafe(print)

    simulate(main)


def test_a_generator_that_is_left_early_is_closed():
    closed = []

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            await pass_time(1)
            closed.append(True)

    async def main(loop):
        async for _ in numbers():
            break
        await pass_time(2)
        return list(closed)

    assert simulate(main) == [True]


def test_remaining_tasks_are_cancelled_at_the_end():
    ended = []

    async def forever():
        try:
            await pass_time(1e9)
        finally:
            ended.append(True)

    async def main(loop):
        loop.create_task(forever())
        await pass_time(0)

    simulate(main)
    assert ended == [True]


def test_the_error_of_a_deadline_has_the_state():
    async def main(loop):
        assert await within(5, pass_time(1, "done"), lambda: "") == "done"
        with pytest.raises(AssertionError, match="3 of 4 arrived"):
            await within(5, loop.create_future(), lambda: "3 of 4 arrived")

    simulate(main)

"""Clocks of simulated machines, seen through the guard."""

from __future__ import annotations

from broker.testing.simulation.machine_clocks import MachineWall, ProcessClock
from broker.testing.virtual_time import EPOCH_MS, VirtualLoop, pass_time, simulate


def test_a_process_does_not_follow_a_step_that_is_corrected_within_a_minute() -> None:
    async def main(loop: VirtualLoop) -> None:
        wall = MachineWall(loop)
        clock = ProcessClock(wall)
        wall.step(3_600_000)
        assert clock.now_ms() == EPOCH_MS
        await pass_time(30)
        assert clock.now_ms() == EPOCH_MS + 30_000
        wall.step(-3_600_000)
        await pass_time(60)
        assert clock.now_ms() == EPOCH_MS + 90_000
        assert wall.off_ms == 0

    simulate(main)


def test_a_clock_can_start_wrong_stop_and_be_corrected() -> None:
    async def main(loop: VirtualLoop) -> None:
        wall = MachineWall(loop, off_ms=-5_000, rate=1.05)
        clock = ProcessClock(wall)
        assert clock.now_ms() == EPOCH_MS - 5_000
        await pass_time(100)
        assert abs(wall.off_ms) < 1e-6
        wall.run(0)
        shown_ms = wall.wall_ms()
        await pass_time(10)
        assert wall.wall_ms() == shown_ms
        assert clock.monotonic() == loop.time()
        wall.mend()
        assert wall.wall_ms() == EPOCH_MS + 110_000

    simulate(main)


def test_the_clock_of_a_later_machine_shows_the_same_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        await pass_time(1000)
        assert MachineWall(loop).off_ms == 0
        assert MachineWall(loop, off_ms=250).off_ms == 250

    simulate(main)


def test_the_end_of_a_drift_takes_back_only_its_own_error() -> None:
    async def main(loop: VirtualLoop) -> None:
        wall = MachineWall(loop, off_ms=-400)
        stopped = wall.drift(0.0)
        await pass_time(10)
        fast = wall.drift(1.5)
        wall.step(300)
        await pass_time(10)
        assert round(wall.off_ms) == -400 - 10_000 + 300 + 5_000
        stopped()
        assert round(wall.off_ms) == -400 + 300 + 5_000
        await pass_time(10)
        assert round(wall.off_ms) == -400 + 300 + 10_000
        fast()
        fast()
        assert round(wall.off_ms) == -100

    simulate(main)


def test_a_drift_goes_on_when_a_later_one_ends() -> None:
    async def main(loop: VirtualLoop) -> None:
        wall = MachineWall(loop)
        slow, fast = wall.drift(0.5), wall.drift(2.0)
        await pass_time(4)
        fast()
        await pass_time(4)
        assert round(wall.off_ms) == -2_000
        wall.mend()
        slow()
        assert round(wall.off_ms) == 0

    simulate(main)

"""Clocks of simulated machines, seen through the guard."""

from __future__ import annotations

from broker.testing.clock import EPOCH_MS, VirtualLoop, pass_time, simulate
from broker.testing.simulation.clocks import MachineWall, ProcessClock


def test_a_step_is_not_believed_for_a_minute_and_mending_it_ends_it() -> None:
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


def test_a_clock_can_be_wrong_from_the_start_stand_still_and_be_mended() -> None:
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


def test_a_machine_that_comes_later_shows_the_time_of_all_others() -> None:
    async def main(loop: VirtualLoop) -> None:
        await pass_time(1000)
        assert MachineWall(loop).off_ms == 0
        assert MachineWall(loop, off_ms=250).off_ms == 250

    simulate(main)

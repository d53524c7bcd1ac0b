import os

from benchmarks import occupancy
from benchmarks.occupancy import Snapshot, objection

BEFORE = Snapshot(100.0, machine_s=50.0, stolen_s=1.0, kernel_threads_s=2.0, processes_s={7: 10.0})


def after(
    *, machine: float, stolen: float = 0.0, ours: float = 0.0, kernel: float = 0.0
) -> Snapshot:
    """Return the counters ten seconds later, with these increments."""
    return Snapshot(110.0, 50.0 + machine, 1.0 + stolen, 2.0 + kernel, {7: 10.0 + ours})


def test_time_of_our_processes_and_the_kernel_is_no_objection() -> None:
    assert objection(BEFORE, after(machine=12.0, ours=10.0, kernel=1.5)) == ""


def test_time_of_other_processes_is_an_objection_with_a_figure() -> None:
    assert objection(BEFORE, after(machine=12.0, ours=9.0)).startswith("others used 0.30 cores")


def test_stolen_time_is_an_objection() -> None:
    assert objection(BEFORE, after(machine=10.0, ours=10.0, stolen=2.0)).startswith("0.20 cores")


def test_the_counters_of_this_machine_can_be_read() -> None:
    sum(range(300_000))  # Some work, so that the counters are above zero.
    taken = occupancy.snapshot(0.0, [os.getpid()])
    assert taken.machine_s > taken.processes_s[os.getpid()] >= 0
    assert occupancy.process_s(2**22 + 1) == 0.0

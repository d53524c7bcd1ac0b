import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from broker import logs
from broker.metrics import Metrics
from broker.node.monitor import (
    LOGGED_EVERY_S,
    REST_TICK_S,
    TICK_S,
    ClockReading,
    MachineClocks,
    Monitor,
    blocked_s,
    next_tick_s,
)

BEFORE = ClockReading(at_s=100.0, computed_s=5.0, waited_s=1.0)
DUE_S = 100.01


def now(late_s: float, *, computed_s: float, waited_s: float = 0.0) -> ClockReading:
    return ClockReading(DUE_S + late_s, BEFORE.computed_s + computed_s, BEFORE.waited_s + waited_s)


@pytest.mark.parametrize(
    ("reading", "held"),
    [
        (now(0.0, computed_s=0.0), 0.0),
        (now(-0.001, computed_s=0.001), 0.0),
        (now(0.05, computed_s=0.06), 0.05),
        (now(0.05, computed_s=0.02), 0.02),  # Other programs had the processor.
        (now(0.05, computed_s=0.06, waited_s=0.03), 0.02),
        (now(0.05, computed_s=0.06, waited_s=0.07), 0.0),
    ],
)
def test_only_computing_time_of_this_process_counts_as_held(
    reading: ClockReading, held: float
) -> None:
    assert blocked_s(DUE_S, BEFORE, reading) == pytest.approx(held)


def test_the_monitor_of_an_idle_process_ticks_less_often() -> None:
    assert next_tick_s(BEFORE, now(0.0, computed_s=0.0004)) == REST_TICK_S
    assert next_tick_s(BEFORE, now(0.0, computed_s=0.001)) == TICK_S


class World:
    """Clocks that a test sets, the reported holds, and the logged lines."""

    def __init__(self) -> None:
        self.reading = BEFORE
        self.told: list[float] = []
        self.lines: list[dict[str, object]] = []

    def pass_by(self, seconds: float) -> None:
        """Let the process compute without a pause."""
        at_s, computed_s, waited_s = self.reading
        self.reading = ClockReading(at_s + seconds, computed_s + seconds, waited_s)

    def note(self, event: str, fields: object) -> None:
        assert isinstance(fields, dict)
        self.lines.append({"event": event, **fields})


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with logs.taken(world.note):
        yield world


async def test_a_tick_measures_from_its_due_time(world: World) -> None:
    with Monitor(world.told.append, lambda: world.reading) as monitor:
        for seconds in (TICK_S, TICK_S + 0.03, TICK_S):
            world.pass_by(seconds)
            monitor.tick()
    assert world.told == pytest.approx([0.0, 0.03, 0.0])
    assert world.lines == []


async def test_long_holds_are_logged_but_rarely(world: World) -> None:
    with Monitor(world.told.append, lambda: world.reading) as monitor:
        for blocked_seconds in (0.2, 0.4, 0.3):
            world.pass_by(TICK_S + blocked_seconds)
            monitor.tick()
        assert [line["longest_s"] for line in world.lines] == [0.2]
        world.pass_by(LOGGED_EVERY_S)
        world.reading = world.reading._replace(waited_s=world.reading.waited_s + LOGGED_EVERY_S)
        monitor.tick()
    assert [(line["longest_s"], line["times"]) for line in world.lines] == [(0.2, 1), (0.4, 2)]


async def test_a_computation_on_the_loop_is_measured() -> None:
    told: list[float] = []
    ticked = asyncio.Event()

    def tell(held: float) -> None:
        told.append(held)
        ticked.set()

    clocks = MachineClocks()
    with Monitor(tell, clocks):
        await ticked.wait()
        told.clear()
        compute_until = time.thread_time() + 0.2
        while time.thread_time() < compute_until:
            pass
        ticked.clear()
        await ticked.wait()
    clocks.close()
    # On a busy machine the thread also waits: then less time counts, never more.
    assert told[0] > 0.1


async def test_the_clocks_measure_this_thread() -> None:
    clocks = MachineClocks()
    before = clocks()
    thread = threading.Thread(target=sum, args=(range(200_000),))
    thread.start()
    thread.join()
    after = clocks()
    assert after.at_s > before.at_s
    assert after.computed_s > before.computed_s
    assert after.waited_s >= before.waited_s
    clocks.close()
    clocks.close()


def test_the_held_time_is_a_histogram() -> None:
    metrics = Metrics("7")
    metrics.loop_blocked.observe(0.0201)
    shown = metrics.render().decode()
    assert 'broker_loop_held_seconds_bucket{le="0.02",node="7"} 0.0' in shown
    assert 'broker_loop_held_seconds_bucket{le="0.03",node="7"} 1.0' in shown

"""A simulated test ends, and stays in its world."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client import SyncClient
from broker.testing import Cluster, simulated
from broker.testing.simulation.public import OutsideWorld
from broker.testing.virtual_time import Hang, pass_time

pytestmark = pytest.mark.simulation


@simulated(seed=1)
async def for_ever() -> None:
    async with Cluster(nodes=1):
        await asyncio.Event().wait()  # The test waits here.


@simulated(seed=1, lasts_s_max=60)
async def deaf() -> None:
    """Take a cancellation for one more event."""
    async with Cluster(nodes=1):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


@simulated(seed=1, lasts_s_max=60)
async def asleep() -> None:
    await pass_time(61)


def test_a_test_that_waits_for_ever_beside_nodes_that_live_ends_with_its_place() -> None:
    began = time.monotonic()
    with pytest.raises(Hang, match="7200 s") as hang:
        for_ever()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "The test waits here" in text)
    assert f"test_bounds_of_a_world.py:{line}" in str(hang.value)
    assert time.monotonic() - began < 60


@simulated(seed=1)
async def spinning() -> None:
    async with Cluster(nodes=1):
        while True:
            await pass_time()


def test_a_test_that_spins_ends_with_its_place_and_without_other_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Hang, match=r"spins .* the test waits at .*test_bounds_of_a_world"):
            spinning()
        gc.collect()


@pytest.mark.parametrize("test", [deaf, asleep])
def test_a_bound_of_ones_own_ends_a_test(test: Callable[[], None]) -> None:
    with pytest.raises(Hang, match="60 s"):
        test()


def test_a_test_that_ends_within_the_bound_is_not_disturbed() -> None:
    @simulated(seed=1)
    async def an_hour() -> str:
        async with Cluster(nodes=1) as cluster:
            await cluster.pass_time(3_600)
        return "done"

    assert an_hour() == "done"


def blocking_client() -> None:
    with SyncClient("http://node-0:8080") as client:
        client.publish("orders", "one")


def thread() -> None:
    threading.Thread(target=print).start()


def connection() -> None:
    with socket.socket() as real:
        real.connect(("127.0.0.1", 9))


@pytest.mark.parametrize("leave", [blocking_client, thread, connection])
def test_what_leaves_the_world_is_refused(leave: Callable[[], None]) -> None:
    @simulated(seed=1)
    async def test() -> None:
        async with Cluster(nodes=1):
            leave()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(OutsideWorld, match="simulated"):
            test()
        gc.collect()
    started = threading.Thread(target=int)
    started.start()  # Outside, threads are as before.
    started.join()


def test_threads_that_run_already_go_on() -> None:
    wanted, made = threading.Event(), threading.Event()

    def helper() -> None:
        wanted.wait(20)
        other = threading.Thread(target=made.set)
        other.start()
        other.join()

    outside = threading.Thread(target=helper)
    outside.start()

    @simulated(seed=1)
    async def test() -> bool:
        wanted.set()
        return made.wait(20)

    assert test()
    outside.join()

"""Commands that act on the nodes of a scenario, and on network, storage, ZooKeeper and clocks. See interpreter.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any, Final

from broker.config.sections import SweepConfig
from broker.storage.memory.adversary import CALM
from broker.storage.ownpage import PageBounds
from broker.storage.table import Space
from broker.testing.simulation.cluster import SimCluster
from broker.testing.simulation.node import Machine
from tests.kit.scenarios.interpreter import (
    CLIENTS,
    SEED,
    Lines,
    ScenarioError,
    Story,
    command,
    seconds,
)

SERVED_S: Final = 30.0
STOPPED_S: Final = 30.0
HEARD_S: Final = 0.01
"""In this time the connection resets of a dead process reach the other machines."""
STORAGE, ZOOKEEPER, NODES = "storage", "zookeeper", "nodes"
PAGE_ENTRIES: Final = "64"


# Nodes.


@command("cluster")
async def cluster(story: Story, nodes: str = "3", page: str = PAGE_ENTRIES) -> Lines:
    """Start a cluster. ``page``: the number of entries in a page."""
    bounds = PageBounds(bytes_max=1 << 20, cells_max=int(page))
    settings = {"sweep": SweepConfig(sweep_interval_s=1e6, sweep_margin_s=1.0, sweep_rest_s=0.0)}
    story.cluster = SimCluster(nodes=int(nodes), seed=SEED, bounds=bounds, settings=settings)
    for machine in story.cluster.machines:
        # One after the other, so that each node's number is its instance id.
        await _started(story, machine)
    return ()


@command("start")
async def start(story: Story, node: str, instance: str | None = None) -> Lines:
    """Start a node. The next free number is a new node, which may have a configured instance id."""
    machines = story.cluster.machines
    if node == str(len(machines)):
        new = story.cluster.add_machine(None if instance is None else int(instance))
        story.cluster.others.remove(new)
        machines.append(new)
    return await _started(story, story.machine(node))


async def _started(story: Story, machine: Machine) -> Lines:
    ended = len(story.cluster.shared.ended)
    machine.start()
    if await machine.served(SERVED_S):
        return ()
    why = story.cluster.shared.ended[ended:]
    return [f"node {machine.number} does not serve: {why[-1] if why else 'it waits'}"]


@command("stop")
async def stop(story: Story, node: str) -> Lines:
    """Stop a node and wait for its end: it hands its topics over and answers the requests in flight."""
    machine = story.machine(node)
    machine.terminate(again=False)
    async with asyncio.timeout(STOPPED_S):
        while machine.is_alive:  # noqa: ASYNC110 - A machine has no event for its end.
            await asyncio.sleep(0.05)  # Of virtual time.
    return ()


@command("kill")
async def kill(story: Story, node: str) -> Lines:
    """Kill a node's process at once."""
    story.machine(node).kill()
    await asyncio.sleep(HEARD_S)
    return ()


@command("pause")
async def pause(story: Story, node: str) -> Lines:
    """Pause a node's process, as SIGSTOP or a long garbage collection does."""
    story.machine(node).pause()
    return ()


@command("resume")
async def resume(story: Story, node: str) -> Lines:
    """Let a paused process go on."""
    story.machine(node).resume()
    return ()


@command("sweep")
async def sweep(story: Story) -> Lines:
    """Run the sweeper of every node."""
    for machine in story.cluster.up:
        assert machine.process is not None, "it is up"
        assert machine.node is not None, "it is up"
        await machine.process.begin(machine.node.sweep())
    return ()


# Time.


@command("wait")
async def wait(story: Story, time: str) -> Lines:
    """Let time pass."""
    del story
    await asyncio.sleep(seconds(time))
    return ()


@command("clock")
async def clock(story: Story, node: str, by: str) -> Lines:
    """Set a machine's clock forward or back, or correct it (``by`` is ``right``)."""
    wall = story.machine(node).wall
    if by == "right":
        wall.mend()
    else:
        wall.step(seconds(by) * 1000)
    return ()


# The network.


@command("cut")
async def cut(story: Story, *words: str) -> Lines:
    """Cut two sides off from each other; ``cut A to B`` only drops what A sends to B.

    A side is a number, several numbers with commas, ``nodes`` (all other nodes), ``clients``, ``storage`` or
    ``zookeeper``.
    """
    is_one_way = len(words) == 3 and words[1] == "to"
    if len(words) != 2 and not is_one_way:
        raise ScenarioError("cut A B, or cut A to B")
    first, last = words[0], words[-1]
    if ZOOKEEPER in words:
        _cut_zookeeper(story, first if last == ZOOKEEPER else last)
    elif STORAGE in words:
        node = first if last == STORAGE else last
        there = not is_one_way or last == STORAGE
        for machine in _machines(story, node, last):
            machine.way.cut(there=there, back=not is_one_way or not there)
    else:
        for one, two in product(_names(story, first, last), _names(story, last, first)):
            story.cluster.network.cut(one, two)
            if not is_one_way:
                story.cluster.network.cut(two, one)
    return ()


def _cut_zookeeper(story: Story, node: str) -> None:
    for machine in _machines(story, node, ZOOKEEPER):
        session = machine.cut_session(None)
        if session is None:
            raise ScenarioError(f"node {machine.number} has no contact with ZooKeeper")
        story.mends.append(lambda of=machine, cut=session: of.mend_session(cut))  # type: ignore[misc]


def _machines(story: Story, side: str, other: str) -> list[Machine]:
    if side == NODES:
        others = other.split(",")
        return [each for each in story.cluster.machines if str(each.number) not in others]
    return [story.machine(number) for number in side.split(",")]


def _names(story: Story, side: str, other: str) -> list[str]:
    if side == CLIENTS:
        return [CLIENTS]
    return [machine.name for machine in _machines(story, side, other)]


@command("heal")
async def heal(story: Story) -> Lines:
    """End every cut, and all faults of storage."""
    story.cluster.network.heal()
    story.cluster.table.heal()
    for machine in story.cluster.machines:
        machine.way.heal()
    for mend in story.mends:
        mend()
    story.mends.clear()
    return ()


# Faults of storage, ZooKeeper, network and clocks.


@command("zookeeper")
async def zookeeper(story: Story, state: str) -> Lines:
    """Stop ZooKeeper (``down``), start it again (``up``), or delete all its data (``wiped``)."""
    if state == "wiped":
        story.cluster.coordination.wipe()
        return ()
    if state not in ("down", "up") or (state == "down") == story.cluster.is_out:
        raise ScenarioError("zookeeper down, zookeeper up, or zookeeper wiped")
    story.cluster.is_out = not story.cluster.is_out
    if story.cluster.is_out:
        story.cluster.coordination.outage()
    else:
        story.cluster.coordination.recover()
    return ()


@command("session")
async def session(story: Story, node: str, noticed: str = "0s") -> Lines:
    """End a node's session; the node learns of it after ``noticed``."""
    of_node = story.machine(node).session
    if of_node is None:
        raise ScenarioError(f"node {node} has no session")
    story.cluster.coordination.expire(of_node, noticed_after_s=seconds(noticed))
    return ()


WRONGS: Final = {
    "refuse": "refused",
    "be-slow": "slow",
    "make-late": "late_write",
    "never-make": "never",
    "lose-answer": "lost_answer",
    "repeat": "again",
    "say-no": "lie",
}
"""The faults of a write: the scenario's word, and the adversary's name."""


class _Next:
    """Acts as a Bias: one fault happens to each of the next writes, and to no write after them."""

    def __init__(self, wrong: str, writes: int, late_ms: float) -> None:
        self._left = Counter({wrong: writes})
        self._late_ms = late_ms

    def __getattr__(self, name: str) -> Any:
        if name.startswith("late_m"):
            return self._late_ms
        if self._left[name] > 0:
            self._left[name] -= 1
            return 1.0
        return getattr(CALM, name)


@command("storage")
async def storage(story: Story, wrong: str, writes: str = "1", late: str = "150ms") -> Lines:
    """Inject a fault into the next writes: refuse, be-slow, make-late, never-make, lose-answer, repeat, say-no.

    ``late`` is the approximate delay of a late or repeated write.
    """
    if wrong not in WRONGS:
        raise ScenarioError(f"{wrong} is none of {', '.join(WRONGS)}")
    bias: Any = _Next(WRONGS[wrong], int(writes), seconds(late) * 1000)
    story.cluster.table.bias = bias
    return ()


@command("slow-writes")
async def slow_writes(story: Story, by: str) -> Lines:
    """Delay each write to a topic's log by this time; ``slow-writes 0s`` ends it."""
    story.cluster.table.slow_s[Space.MESSAGES] = seconds(by)
    return ()


@command("slow-storage")
async def slow_storage(story: Story, by: str) -> Lines:
    """Make each call of storage take about so long, until ``heal``."""
    story.cluster.table.bias = replace(CALM, delay_ms=seconds(by) * 1000)
    return ()

"""Run the transaction service in a simulated cluster: the shipped nodes and client, random requests, and faults.

With several nodes, the leader is killed, paused and stopped, and another node must take over in time. With one
node, storage has faults, the node is killed while it works or recovers, and its clock is set forward and back. Pages
and snapshots of the journal are small, so that leaders replay, raise floors and sweep often::

    python -m tests.kit.seeds.cluster_transactions --seed 7 [--nodes 1] [--runs 10] [--mutant answer-before-durable]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Final, NamedTuple

from broker.config.sections import TransactionsConfig
from broker.errors import BrokerError
from broker.storage.memory.adversary import CALM, Bias
from broker.storage.ownpage import PageBounds
from broker.testing import mutants
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.node import Machine
from broker.testing.simulation.trace import Trace
from broker.testing.simulation.world import in_world
from broker.topics.reserved import TRANSACTIONS
from tests.kit.seeds.seeded_cluster import SeededCluster
from tests.kit.transacting import Transactors, asking, pause

CLIENTS: Final = 4
SESSION_S: Final = 4.0
FAULTS: Final = 4
KILLS: Final = 8
"""The number of kills with one node."""
STEP_MS: Final = 4_000
PROBE_S: Final = 0.3
"""The deadline of one probe. It is short, because a paused node answers no request."""
PROBES_MAX: Final = 100
PAGES: Final = PageBounds(bytes_max=4_096, cells_max=16, packed_from=2)
SMALL: Final = PageBounds(bytes_max=2_000, cells_max=7, packed_from=2)
SERVICE: Final = TransactionsConfig(journal_snapshot_edits=100, transaction_sweep_interval_s=1.0)


class Outcome(NamedTuple):
    """The result of a run. ``takeovers_s``: the time from each fault to the first answered start."""

    seed: int
    violations: list[str]
    starts: int
    commits: int
    conflicts: int
    unknown: int
    faults: Counter[str]
    takeovers_s: list[float]


class _Run:
    def __init__(self, loop: SimLoop, trace: Trace, seed: int, nodes: int) -> None:
        self.loop = loop
        self.trace = trace
        self._over = False
        self.chance = random.Random(seed)
        self.cluster = SeededCluster(
            nodes=nodes,
            seed=seed,
            bias=Bias() if nodes == 1 else CALM,
            bounds=SMALL if nodes == 1 else PAGES,
            settings={"transactions": SERVICE},
        )
        client = self.cluster.client("clients", deadline_s=20.0)
        self.clients = Transactors(
            asking(client.transactions), random.Random(self.chance.random()), pause
        )
        self.faults: Counter[str] = Counter()
        self.takeovers_s: list[float] = []

    async def run(self) -> None:
        await self.cluster.start()
        clients = [asyncio.ensure_future(self._client()) for _ in range(CLIENTS)]
        if len(self.cluster.machines) == 1:
            await self._kill_alone(*self.cluster.machines)
        else:
            for _ in range(FAULTS):
                await asyncio.sleep(self.chance.uniform(0.5, 2.0))
                await self._fault()
        self.cluster.heal()
        self._over = True
        await asyncio.gather(*clients)
        await self.clients.look()

    async def _client(self) -> None:
        while not self._over:
            await self.clients.transact()
            await pause(50)

    async def _led_again(self, former: Machine) -> None:
        """Start transactions through another node until one succeeds."""
        for _ in range(PROBES_MAX):
            up = [each for each in self.cluster.machines if each.is_up and each is not former]
            if up:
                probe = self.cluster.client("probe", node=up[0].url, deadline_s=PROBE_S)
                with contextlib.suppress(BrokerError):
                    begun = await probe.transactions.start()
                    await probe.transactions.abort(begun.transaction_id)
                    return
            await asyncio.sleep(0.01)

    async def _kill_alone(self, machine: Machine) -> None:
        """Kill the only node, sometimes while it recovers; set its clock forward and back."""
        for _ in range(KILLS):
            await asyncio.sleep(self.chance.expovariate(1 / 0.5))
            if self.chance.random() < 0.3:
                self.faults["clock"] += 1
                machine.wall.step(self.chance.randint(-STEP_MS, STEP_MS))
            else:
                self.faults["kill"] += 1
                machine.kill()
                await asyncio.sleep(self.chance.expovariate(1 / 0.2))
                machine.start()

    def _leader(self) -> Machine | None:
        for machine in self.cluster.machines:
            if machine.is_up and TRANSACTIONS in machine.topics_led:
                return machine
        return None

    async def _fault(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        kind = self.chance.choice(("kill", "pause", "stop"))
        self.faults[kind] += 1
        began = self.loop.time()
        if kind == "kill":
            leader.kill()
        elif kind == "pause":
            leader.pause()
        else:
            leader.terminate()
        await self._led_again(leader)
        self.takeovers_s.append(self.loop.time() - began)
        if kind == "pause":
            await asyncio.sleep(self.chance.uniform(0, 3))
            leader.resume()
        elif kind == "kill":
            leader.start()


def simulate(seed: int, nodes: int = 3) -> Outcome:
    """Make one run and judge it."""

    async def main(loop: SimLoop, trace: Trace) -> Outcome:
        run = _Run(loop, trace, seed, nodes)
        problems = []
        try:
            await run.run()
        except AssertionError as error:
            problems.append(f"stuck: {error}")
        clients = run.clients
        problems += [
            f"late: a start was answered {seconds:.2f} s after a fault"
            for seconds in run.takeovers_s
            if seconds > SESSION_S + 1
        ]
        return Outcome(
            seed,
            [*clients.violations, *problems],
            clients.starts,
            len(clients.commits),
            clients.conflicts,
            clients.unknown,
            run.faults,
            run.takeovers_s,
        )

    return in_world(seed, main)


def main(arguments: list[str] | None = None) -> int:
    """Make runs by seed and print their results."""
    name = "python -m tests.kit.seeds.cluster_transactions"
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--mutant", choices=sorted(mutants.NAMES), help="run the product without this guard"
    )
    parser.add_argument("--runs", type=int, default=1, help="this seed and the following ones")
    chosen = parser.parse_args(arguments)
    bad = 0
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        with nullcontext() if chosen.mutant is None else mutants.in_force(chosen.mutant):
            outcome = simulate(seed, chosen.nodes)
        bad += bool(outcome.violations)
        sys.stdout.write(f"{outcome!s:.600}\n")
    sys.stdout.write(f"{chosen.runs} runs, {bad} bad\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""The transaction service on one node, simulated: over a storage that misbehaves, killed at any await, its clock set back.

A run is a function of its seed. Clients (transacting.py) begin, commit, abort and invalidate; a nemesis kills the node
and steps its clock. Then the storage heals, and a last snapshot must know all that was answered. Pages and
snapshots of the journal are small, so that replays, floors and sweeps are met often.

    python -m tests.kit.one_node_transactions --seed 7 [--runs 100] [--mutant answer-before-durable]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
from contextlib import nullcontext
from typing import Any, NamedTuple

from broker import logs
from broker.config.sections import LogFormat, LogLevel, LogsConfig
from broker.errors import BrokerError
from broker.storage.hold import PageBounds
from broker.storage.memory.adversary import AdversaryTable, Bias
from broker.storage.memory.table import MemoryTable
from broker.testing import mutants
from broker.testing.virtual_time import VirtualClock, VirtualLoop, virtual_loop
from broker.topics.settings import TopicSettings
from broker.transactions.service_settings import TransactionSettings
from tests.kit.mortal import NodeDied, own_tasks
from tests.kit.node import WholeNode
from tests.kit.transacting import Told, Transactors, pause, told_by

SETTINGS = TopicSettings(transaction_life_max_s=1 << 40, sweep_margin_ms=0, batch_rows_max=6)
BOUNDS = PageBounds(bytes_max=2_000, cells_max=7, packed_from=2)
SERVICE = TransactionSettings(snapshot_edits=25, sweep_interval_s=1.0)
CLIENTS = 4
QUIET = LogsConfig(log_level=LogLevel.ERROR, log_format=LogFormat.JSON)
TRANSACTIONS = 12
NEMESIS_STEPS = 8
STEP_MS = 4000


class Outcome(NamedTuple):
    """What came of a run."""

    seed: int
    violations: list[str]
    starts: int
    commits: int
    conflicts: int
    unknown: int
    lives: int

    @property
    def command(self) -> str:
        """How to run it again."""
        return f"python -m tests.kit.one_node_transactions --seed {self.seed}"


class Run:
    """One run."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        """Set the world up; all chances come from ``seed``."""
        self._chance = chance = random.Random(seed)
        self._clock = VirtualClock(loop)
        stored = MemoryTable(is_alone=chance.random() < 0.5)
        self._table = AdversaryTable(loop, random.Random(chance.random()), Bias(), stored)
        self.node = WholeNode(
            "n",
            self._table,
            self._clock,
            random.Random(chance.random()),
            settings=SETTINGS,
            bounds=BOUNDS,
            transactions=SERVICE,
        )
        self.clients = Transactors(self._ask, random.Random(chance.random()), pause)
        self.problems: list[str] = []

    async def _ask(self, method: str, path: str, body: bytes) -> Told:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            answer = await self.node.call(method, path, body, headers)
        except NodeDied:
            return Told("unknown")
        return told_by(answer.status, answer.headers, answer.body)

    async def run(self) -> None:
        """Let all act, then heal and look once more."""
        clients = [asyncio.ensure_future(self._client()) for _ in range(CLIENTS)]
        await self._nemesis()
        await asyncio.gather(*clients)
        self.node.kill()
        self._table.heal()
        await self.clients.look()

    async def _client(self) -> None:
        for _ in range(TRANSACTIONS):
            await self.clients.transact()

    async def _nemesis(self) -> None:
        for _ in range(NEMESIS_STEPS):
            await pause(self._chance.expovariate(1 / 60))
            draw = self._chance.random()
            if draw < 0.6:
                self.node.kill()
            elif draw < 0.8:
                self._clock.step(self._chance.randint(-STEP_MS, STEP_MS))
            else:
                with contextlib.suppress(NodeDied, BrokerError):
                    await self.node.sweep()

    def unhandled(self, about: dict[str, Any]) -> None:
        """Note an error that ended a task, or that nothing waited for."""
        error = about.get("exception")
        if not isinstance(error, BrokerError | NodeDied):
            self.problems.append(f"unexpected: {about['message']}: {error!r}")


def simulate(seed: int) -> Outcome:
    """Make one run and judge it."""
    with virtual_loop() as loop, logs.writing(QUIET):
        own_tasks(loop)
        run = Run(loop, seed)
        loop.set_exception_handler(lambda _, about: run.unhandled(about))
        try:
            loop.run_until_complete(run.run())
        except AssertionError as error:
            run.problems.append(f"stuck: {error}")
    clients = run.clients
    return Outcome(
        seed,
        [*clients.violations, *run.problems],
        clients.starts,
        len(clients.commits),
        clients.conflicts,
        clients.unknown,
        run.node.starts,
    )


def main(arguments: list[str] | None = None) -> int:
    """Repeat runs by seed and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.one_node_transactions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="this seed and the following ones")
    parser.add_argument("--mutant", choices=sorted(mutants.NAMES), help="without this guard")
    chosen = parser.parse_args(arguments)
    bad = 0
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        dropped = nullcontext() if chosen.mutant is None else mutants.in_force(chosen.mutant)
        with dropped:
            outcome = simulate(seed)
        if outcome.violations:
            bad += 1
            sys.stdout.write(f"{outcome.command}: {outcome.violations[0]:.400}\n")
        elif chosen.runs == 1:
            sys.stdout.write(f"{outcome}\n")
    sys.stdout.write(f"{chosen.runs} runs, {bad} bad\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

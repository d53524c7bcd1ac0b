"""Seeded random runs of the log protocol: the shipped code over a table with all allowed faults.

A run is a function of its seed and its plan. For about a second of virtual time, nodes serve clients' requests,
pause, die and start again. Then all faults end and late writes take effect. A fresh node claims the log, appends, and
reads it to the end. ghost.py judges the run.

    python -m tests.kit.logs.exploration --seed 7 [--plan moves] [--runs 100] [--mutant NAME] [--story]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from broker.model import LOG_KEY_MIN
from broker.storage.chainaudit import audited
from broker.storage.chainproof import ChainReader
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.memory.adversary import AdversaryTable, Bias
from broker.storage.ownpage import PageBounds
from broker.testing import mutants
from broker.testing.virtual_time import EPOCH_MS, VirtualClock, VirtualLoop, virtual_loop
from tests.kit.logs.ghost import Ghost
from tests.kit.logs.node import ENDS_BADLY, Node, Refused, Request
from tests.kit.logs.watched import TOPIC, WatchedTable

STANDS_STILL_S = (0.02, 0.2, 0.8)
ALONE_TRIES = 40


@dataclasses.dataclass(frozen=True)
class Plan:
    """The requests of a run by weight, and its faults by probability."""

    nodes: int = 3
    clients: int = 4
    requests: int = 12
    cells_max: int = 3
    weights: tuple[tuple[str, int], ...] = (("append", 6), ("poll", 2), ("read", 2))
    sticks: float = 0.7
    """The probability that a request goes to the same node as the last one."""
    still: float = 0.05
    """The probability that a node pauses or dies before a request, half of each."""
    bias: Bias = dataclasses.field(default_factory=Bias)
    instances: bool = True
    """True if each node has its own instance number in its ids."""
    is_chained: bool = False
    """True if the log has a hash chain."""


_LATE = Bias(late_write=0.1, again=0.12, lie=0.08, old_answer=0.15, lost_answer=0.08)
_TOPIC = (("append", 5), ("keyed", 1), ("poll", 3), ("read", 3), ("backwards", 2))
_EDITS = (*_TOPIC, ("in transaction", 5), ("rollback", 6))
_FLOOR = (*_TOPIC, ("lived", 2), ("floor", 3), ("lives", 2), ("in transaction", 2), ("rollback", 2))
_MARKS = (("append", 2), ("keyed", 8), ("poll", 1), ("floor", 1), ("hand off", 1))
_GENERATIONS = (*_TOPIC, ("delete", 2), ("create", 4), ("generations", 3))
_PAYLOADS = (
    ("append", 2),
    ("store", 8),
    ("publish", 4),
    ("references", 3),
    ("drop", 1),
    ("poll", 1),
)
_ZOMBIES = (("append", 8), ("floor", 5), ("read", 5), ("poll", 2))
_ALL = (*_FLOOR, *_GENERATIONS, *_PAYLOADS, ("rollback", 3), ("in transaction", 3), ("keyed", 2))

PLANS: dict[str, Plan] = {
    "plain": Plan(weights=_TOPIC),
    "storm": Plan(weights=_TOPIC, bias=_LATE),
    "moves": Plan(weights=_TOPIC, sticks=0.3, still=0.15, cells_max=2),
    "edits": Plan(weights=_EDITS, sticks=0.6),
    "floor": Plan(weights=_FLOOR, cells_max=2),
    "marks": Plan(weights=_MARKS, sticks=0.6, still=0.1),
    "generations": Plan(weights=_GENERATIONS, cells_max=2, sticks=0.4, still=0.15),
    "payloads": Plan(weights=_PAYLOADS, sticks=0.5),
    "zombies": Plan(
        weights=(*_ZOMBIES, ("rollback", 2), ("in transaction", 2)),
        nodes=2,
        sticks=0.4,
        still=0.3,
        cells_max=2,
        bias=dataclasses.replace(_LATE, lost_answer=0.2),
    ),
    "same ids": Plan(weights=_TOPIC, sticks=0.3, still=0.1, bias=_LATE, instances=False),
    "all": Plan(weights=_ALL, requests=18, bias=_LATE, still=0.08),
    "chain": Plan(weights=_ALL, requests=18, bias=_LATE, still=0.08, is_chained=True),
}


class Outcome(NamedTuple):
    """The result of one run: problems, counts of events, and its story."""

    seed: int
    plan: str
    wrong: list[str]
    happened: Counter[str]
    story: list[str]


class World:
    """One run."""

    def __init__(self, loop: VirtualLoop, seed: int, plan: Plan) -> None:
        """Draw all random numbers from the seed."""
        self._loop = loop
        self._chance = random.Random(f"{seed}")
        self._plan = plan
        self._table = WatchedTable()
        bias = self._chance.choice(
            (plan.bias, plan.bias, dataclasses.replace(plan.bias, old_answer=0.0))
        )
        self.adversary = AdversaryTable(loop, random.Random(f"{seed} table"), bias, self._table)
        self.ghost = Ghost(self._table)
        self.nodes = [self._node(number) for number in range(plan.nodes)]
        self._kinds = [kind for kind, _ in plan.weights]
        self._weights = [weight for _, weight in plan.weights]
        self._labels = 0
        self._preferred = 0
        self._under_way: list[dict[asyncio.Task[None], None]] = [{} for _ in range(plan.nodes)]
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []

    def _node(self, number: int) -> Node:
        clock = VirtualClock(
            self._loop, wall_ms=EPOCH_MS + self._chance.choice((0, 0, -50, 50, 3000))
        )
        bounds = PageBounds(cells_max=self._plan.cells_max)
        instance = number if self._plan.instances else 0
        node = Node(
            number, self.adversary, self.ghost, self._chance, clock, bounds, instance=instance
        )
        node.is_chained = self._plan.is_chained
        return node

    async def run(self) -> None:
        """Run with faults, end the faults, and judge."""
        await self._ask(self.nodes[0], "create", self.nodes[0].create)
        async with asyncio.timeout(600):
            await asyncio.gather(*(self._client() for _ in range(self._plan.clients)))
            await self._heal()
            await self._alone()
        self.ghost.judge()

    # Clients.

    async def _client(self) -> None:
        for _ in range(self._plan.requests):
            await asyncio.sleep(self._chance.expovariate(1 / 0.02))
            if self._chance.random() > self._plan.sticks:
                self._preferred = self._chance.randrange(len(self.nodes))
            number = self._preferred
            if self._chance.random() < self._plan.still:
                self._disturb(number)
            kind = self._chance.choices(self._kinds, self._weights)[0]
            node = self.nodes[number]
            task = asyncio.ensure_future(self._ask(node, kind, self._request(node, kind)))
            under_way = self._under_way[number]
            under_way[task] = None
            task.add_done_callback(under_way.pop)
            await asyncio.wait((task,), timeout=1.0)

    async def _ask(self, node: Node, kind: str, call: Callable[[], Awaitable[None]]) -> None:
        began = self._loop.time()
        outcome = "ok"
        try:
            await call()
        except Refused:
            outcome = "refused"
        except ENDS_BADLY as error:
            outcome = type(error).__name__
        except asyncio.CancelledError:
            outcome = "killed"
            raise
        except Exception as error:  # noqa: BLE001 - The run goes on; the crash is a problem of it.
            outcome = "crashed"
            self.ghost.bad(f"{kind} crashes:", repr(error))
        finally:
            self.happened[f"{kind} {outcome}"] += 1
            self.story.append(
                f"{began:8.3f} - {self._loop.time():8.3f}  {node.name}  {kind}  {outcome}"
            )

    def _request(self, node: Node, kind: str) -> Callable[[], Awaitable[None]]:
        chance = self._chance
        simple: dict[str, Callable[[], Awaitable[None]]] = {
            "poll": node.poll,
            "read": lambda: node.read(backwards=False),
            "backwards": lambda: node.read(backwards=True),
            "floor": node.raise_floor,
            "lives": node.end_lives,
            "hand off": node.hand_off,
            "delete": node.delete,
            "create": node.create,
            "generations": node.sweep_generations,
            "references": node.read_references,
            "store": lambda: node.store(self._number(), self._label()),
            "publish": lambda: node.publish(self._number()),
            "drop": lambda: node.drop(self._number()),
        }
        if kind in simple:
            return simple[kind]
        if kind == "rollback":
            return self._rollback(node)
        request = Request([self._label() for _ in range(chance.choice((1, 1, 2, 3)))])
        if kind == "keyed":
            request = request._replace(key=f"key {chance.randrange(6)}")
        elif kind == "in transaction":
            request = request._replace(pointer=chance.randrange(1, 4))
        elif kind == "lived":
            request = request._replace(lifetime_ms=chance.choice((1, 50, 1000)))
        return lambda: node.append(request)

    def _number(self) -> int:
        # Numbers rise, so that some payload logs are open and some published.
        return self._labels // 20 + self._chance.randrange(1, 4)

    def _label(self) -> str:
        self._labels += 1
        return f"m{self._labels}"

    def _rollback(self, node: Node) -> Callable[[], Awaitable[None]]:
        acked = self.ghost.acked
        pointer = self._chance.randrange(1, 4)
        if not acked:
            return lambda: node.rollback(pointer, LOG_KEY_MIN, b"\x7f" * 10)
        ids = [acked[self._chance.randrange(max(0, len(acked) - 12), len(acked))].id for _ in "12"]
        return lambda: node.rollback(pointer, min(ids), max(ids))

    # Faults.

    def _disturb(self, number: int) -> None:
        node = self.nodes[number]
        if self._chance.random() < 0.5:
            node.table.going.clear()
            self._loop.call_later(self._chance.choice(STANDS_STILL_S), node.table.going.set)
            self.happened["paused"] += 1
            self.story.append(f"{self._loop.time():8.3f}  {node.name} pauses")
            return
        for task in list(self._under_way[number]):
            task.cancel()
        node.table.going.set()
        if node.lead is not None:
            node.lead.hold.end()
        self.nodes[number] = self._node(number)
        self.happened["killed"] += 1
        self.story.append(f"{self._loop.time():8.3f}  {node.name} is killed")

    async def _heal(self) -> None:
        self.adversary.heal()
        for node in self.nodes:
            node.table.going.set()
        waiting = [task for tasks in self._under_way for task in tasks]
        if waiting:
            await asyncio.wait(waiting)
        while self.adversary.still_to_come:
            await self.nodes[0].clock.sleep(0.5)

    async def _alone(self) -> None:
        """Check that from any state one fresh node without faults can create, claim, append and read."""
        node = self._node(9)
        label = self._label()
        last: BaseException | None = None
        for _ in range(ALONE_TRIES):
            try:
                await node.create()
                await node.append(Request([label]))
                break
            except ENDS_BADLY as error:
                self.ghost.never.discard(label)
                last = error
        else:
            self.ghost.bad("a node alone can't go on:", repr(last))
            return
        await self._ask(node, "poll", node.poll)
        await self._ask(node, "read", lambda: node.read(backwards=False))
        await self._ask(node, "backwards", lambda: node.read(backwards=True))
        await self._ask(node, "references", lambda: node.read_references(is_calm=True))
        lead = await node.leader()
        root = self._table.root()
        assert root is not None
        pages = self._table.chain(LogId(TOPIC, root.generation))
        have = [m.id for m in lead.cache]
        want = [
            key
            for page in pages
            if page.key >= root.floor
            for entry in page.entries
            if not entry.is_stub
            for key in entry.ids()
        ]
        if have != want:
            self.ghost.bad("a node alone does not have the whole log", len(have), len(want))
        if self._plan.is_chained:
            await self._check_chain(node)

    async def _check_chain(self, node: Node) -> None:
        """Check that the chain leads over all that is stored (rule 16)."""
        reader = ChainReader(Logs(self._table, node.clock), node.clock.now_ms)
        found = await audited(lambda page: reader.stretch(LogId(TOPIC, 0), page))
        for problem in found.problems:
            self.ghost.bad("the chain does not fit:", problem.what)
        if found.end is None:
            self.ghost.bad("there is no chain")
        self.happened["chained pages"] += found.pages


def explore(seed: int, plan: str) -> Outcome:
    """Make one run and judge it."""
    with virtual_loop() as loop:
        world = World(loop, seed, PLANS[plan])
        loop.run_until_complete(world.run())
    happened = world.happened + world.adversary.happened
    happened["acknowledged"] += len(world.ghost.acked)
    return Outcome(seed, plan, world.ghost.wrong, happened, world.story)


class Summary(NamedTuple):
    """The result of many runs: counts of events, and the bad runs."""

    runs: int
    happened: Counter[str]
    bad: list[Outcome]


def plan_of(seed: int) -> str:
    """Return the default plan of a seed; the seeds take all plans in turn."""
    return sorted(PLANS)[seed % len(PLANS)]


def explore_many(seeds: range, plan: str | None = None, *, bad_max: int = 3) -> Summary:
    """Make a run for each seed; stop after ``bad_max`` bad runs."""
    happened: Counter[str] = Counter()
    bad = []
    runs = 0
    for seed in seeds:
        outcome = explore(seed, plan or plan_of(seed))
        happened += outcome.happened
        runs += 1
        if outcome.wrong:
            bad.append(outcome)
            if len(bad) >= bad_max:
                break
    return Summary(runs, happened, bad)


def main(arguments: list[str] | None = None) -> int:
    """Make runs by seed and print their problems."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.logs.exploration")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="this seed and the following ones")
    parser.add_argument("--plan", choices=sorted(PLANS), help="one plan; default: all in turn")
    parser.add_argument(
        "--mutant", choices=sorted(mutants.MUTANTS), help="run the product without this guard"
    )
    parser.add_argument("--story", action="store_true", help="print the events of bad runs")
    chosen = parser.parse_args(arguments)
    began = time.perf_counter()
    with mutants.in_force(chosen.mutant) if chosen.mutant else contextlib.nullcontext():
        summary = explore_many(range(chosen.seed, chosen.seed + chosen.runs), chosen.plan)
    for outcome in summary.bad:
        _print(f"--seed {outcome.seed} --plan {outcome.plan}")
        for line in outcome.wrong[:20]:
            _print(f"  {line}")
        for line in outcome.story if chosen.story else ():
            _print(f"    {line}")
    counts = ", ".join(f"{name}: {number}" for name, number in sorted(summary.happened.items()))
    took_s = time.perf_counter() - began
    _print(f"{summary.runs} runs in {took_s:.1f} s, {len(summary.bad)} bad; {counts}")
    return 1 if summary.bad else 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())

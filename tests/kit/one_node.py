"""One node, simulated: clients at its handlers, a storage that misbehaves, crashes, a clock that jumps.

A run is a function of its seed. Publishers with and without keys and transactions, stores, references,
rollbacks; consumers that tail, page, wait and browse; a topic that comes and goes; a sweeper on a topic
with a short ttl; and a nemesis that kills the node at any await, steps its clock, or lets it rest. Then
everything heals, and the log as it ended is compared with what every client was told, by the checkers
of chaos/checkers and by those here, which know the rules of consuming::

    stalled        a waiting poll slept through a commit
    old_rows       a topic that was created anew shows rows of before
    expired_late   a reader was shown what had expired
    expired_early  a message that lives is gone
    unexpected     an error that nothing foresees ended a task of the node
    wrong_page     a page of a consumer differs from what the log's rows say, by width and snapshot

The plan ``swept`` is for the sweeper: the clock runs ahead by less than the margin, and comes back.

    python -m tests.kit.one_node --seed 7 [--plan swept] [--runs 100] [--mutant dedupe]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from broker import logs
from broker.config.sections import LogLevel, LogsConfig
from broker.errors import BrokerError
from broker.model import (
    ROW_ID_MIN,
    Message,
    Poll,
    PublishRequest,
    Snapshot,
    TopicId,
)
from broker.storage.hold import PageBounds
from broker.storage.memory.adversary import AdversaryTable, Bias
from broker.storage.memory.table import MemoryTable
from broker.testing import mutants
from broker.testing.virtual_time import VirtualClock, VirtualLoop, virtual_loop
from broker.topics.settings import NO_OPTIONS, TopicSettings
from broker.wire import avro
from chaos import checkers
from chaos.checkers import Verdict, Violation
from chaos.history import Operation
from tests.kit.clients import LOG, Clients, consumable, path_of
from tests.kit.lives import Lives
from tests.kit.mortal import NodeDied, own_tasks
from tests.kit.node import WholeNode

FLUX = TopicId("default", "flux")
SHORT = TopicId("default", "short")
SHORT_TTL_S = 1
LONG_TTL_S = 1 << 30
SETTINGS = TopicSettings(
    transaction_life_max_s=1 << 40,
    page_rows_max=7,
    cache_bytes_max=6000,
    sweep_margin_ms=500,
    sweep_rows_max=5,
    batch_rows_max=6,
    idempotency_keys_max=3,
    payload_logs_open_max=2,
    topics_in_use_max=2,
)
"""Small bounds, so that every one of them is reached."""
BOUNDS = PageBounds(bytes_max=2_000, cells_max=7, packed_from=2)
WAIT_S = 4.0
SLACK_S = 1.5
"""How long after a commit a waiting poll may still be reading, in a storage that misbehaves."""
LAST_WRITES_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in a run, and how often."""

    bias: Bias = field(default_factory=Bias)
    publishers: int = 3
    requests: int = 8
    pause_ms: float = 15.0
    nemesis_steps: int = 8
    kill: float = 0.5
    step_clock: float = 0.3
    step_ms: int = 4000
    is_alone: bool = False
    """Whether the node has the store to itself, as with LevelDB: then no reading is old."""
    is_within_margin: bool = False
    """The clock is right or ahead, by at most ``step_ms``, which is less than the sweeper's margin."""


PLANS = {
    "usual": Plan(),
    "alone": Plan(is_alone=True),
    "swept": Plan(
        requests=20, nemesis_steps=30, kill=0.05, step_clock=0.5, step_ms=450, is_within_margin=True
    ),
}


class Run(Clients):
    """One run."""

    def __init__(self, loop: VirtualLoop, seed: int, plan: Plan) -> None:
        """Set the world up; all chances come from ``seed``."""
        self.loop = loop
        chance = random.Random(seed)
        self.plan = plan
        stored = MemoryTable(is_alone=plan.is_alone)
        self.table = AdversaryTable(loop, random.Random(chance.random()), plan.bias, stored)
        self.clock = VirtualClock(loop)
        node = WholeNode(
            "n",
            self.table,
            self.clock,
            random.Random(chance.random()),
            settings=SETTINGS,
            bounds=BOUNDS,
        )
        super().__init__(loop, chance, node)
        self.violations: list[Violation] = []
        self._stopping = False
        self._steps = 0
        self._ahead_ms = 0
        self._lives = Lives(SHORT_TTL_S * 1000)

    async def run(self) -> None:
        """Let everybody act, then heal everything and read the log to its end."""
        for topic, ttl_s in ((LOG, LONG_TTL_S), (SHORT, SHORT_TTL_S)):
            await self._insist(topic, ttl_s)
        publishers = [self._publisher(f"p{number}") for number in range(self.plan.publishers)]
        others = [
            asyncio.ensure_future(other)
            for other in (
                self._waiter(),
                self._pager(),
                self._browser(),
                self._flux(),
                self._short(),
                self._sweeper(),
            )
        ]
        await asyncio.gather(*publishers, self._nemesis())
        self._stopping = True
        await asyncio.gather(*others)
        await self._finish()

    def unhandled(self, about: dict[str, Any]) -> None:
        """Note an error that ended a task, or that nothing waited for."""
        error = about.get("exception")
        if not isinstance(error, BrokerError | NodeDied):
            self.violations.append(Violation("unexpected", f"{about['message']}: {error!r}"))

    async def _insist(self, topic: TopicId, ttl_s: int) -> None:
        body = json.dumps({"ttl": str(ttl_s)}).encode()
        while True:
            with contextlib.suppress(NodeDied):
                answer = await self.node.call("PUT", path_of(topic), body)
                if answer.status in (200, 409):
                    return
            await self.pause(10)

    # Clients.

    async def _publisher(self, name: str) -> None:
        for _ in range(self.plan.requests):
            await self.pause(self.plan.pause_ms)
            draw = self.chance.random()
            if draw < 0.25:
                await self.keyed(name)
            elif draw < 0.45:
                await self.transactional(name)
            elif draw < 0.6:
                await self.roll_back(name)
            elif draw < 0.75:
                await self.store_and_refer(name)
            else:
                await self.publish(name, self.payloads(name), NO_OPTIONS)

    async def _pager(self) -> None:
        """Follow the log in pages of different widths."""
        start: bytes | None = None
        while not self._stopping:
            await self.pause(25)
            width = self.chance.choice([1, 2, 5, 100, None])
            page = await self.read("pager", start, width)
            if page:
                start = page[-1].id

    async def _waiter(self) -> None:
        """Wait for what is new, and see whether anything went by."""
        start: bytes | None = None
        while not self._stopping:
            began = self.loop.time()
            starts = self.node.starts
            page = await self.read("waiter", start, 3, WAIT_S)
            ended = self.loop.time()
            if page:
                start = page[-1].id
            if page == [] and starts == self.node.starts:
                self._check_awake(start, began, ended)
            await self.pause(5)

    def _check_awake(self, start: bytes | None, began: float, ended: float) -> None:
        for at, last in self.commits:
            if began <= at < ended - SLACK_S and (start is None or last + ROW_ID_MIN > start):
                detail = f"from {start!r}, {began:.3f} to {ended:.3f} s; committed at {at:.3f}"
                self.violations.append(Violation("stalled", detail))
                return

    async def _browser(self) -> None:
        while not self._stopping:
            await self.pause(40)
            await self.browse("browser")

    # A topic that comes and goes, and one whose messages go.

    async def _flux(self) -> None:
        """Create, fill, look and delete: no row of an earlier life may be seen."""
        newest = b""
        while not self._stopping:
            await self._insist(FLUX, LONG_TTL_S)
            for _ in range(self.chance.randint(0, 3)):
                body = avro.encode_publish_request(PublishRequest(None, [b"flux"] * 2))
                await self.call("POST", path_of(FLUX, "publish"), body)
                await self.pause(5)
            seen = await self.poll(FLUX, Poll())
            old = [message for message in seen or () if message.id <= newest]
            if old:
                self.violations.append(Violation("old_rows", f"{old[0].id.hex()} came back"))
            newest = max([newest, *(message.id for message in seen or ())])
            if not await self._delete(FLUX):
                return
            await self.pause(20)

    async def _delete(self, topic: TopicId) -> bool:
        for _ in range(100):
            answer = await self.call("DELETE", path_of(topic))
            if answer.status in (200, 404):
                return True
            await self.pause(20)
        return False

    async def _short(self) -> None:
        while not self._stopping:
            await self.pause(30)
            body = avro.encode_publish_request(PublishRequest(None, [b"short"] * 3))
            await self.call("POST", path_of(SHORT, "publish"), body)
            asked_ms, steps = self.clock.now_ms(), self._steps
            shown = [message.id for message in await self.poll(SHORT, Poll()) or ()]
            # A step of the clock while the poll was under way makes both moments possible.
            self.violations += self._lives.expired(shown, min(asked_ms, self.clock.now_ms()))
            if self.plan.is_within_margin and steps == self._steps:
                self.violations += self._lives.removed(shown, self.clock.now_ms())
            self._lives.note(shown)

    async def _sweeper(self) -> None:
        while not self._stopping:
            await self.pause(200)
            with contextlib.suppress(NodeDied, BrokerError):
                await self.node.sweep()

    async def _nemesis(self) -> None:
        for _ in range(self.plan.nemesis_steps):
            await self.pause(40)
            draw = self.chance.random()
            if draw < self.plan.kill:
                self.node.kill()
            elif draw < self.plan.kill + self.plan.step_clock:
                self._step_clock()
            else:
                await asyncio.sleep(0.3)

    def _step_clock(self) -> None:
        self._steps += 1
        if not self.plan.is_within_margin:
            self.clock.step(self.chance.randint(-self.plan.step_ms, self.plan.step_ms))
            return
        ahead_ms = 0 if self._ahead_ms else self.chance.randint(0, self.plan.step_ms)
        self.clock.step(ahead_ms - self._ahead_ms)
        self._ahead_ms = ahead_ms

    # The end.

    async def _finish(self) -> None:
        """Heal, wait for what is late, and read the log as it ended."""
        self.node.kill()
        self.table.heal()
        deadline = self.loop.time() + LAST_WRITES_S
        while self.table.still_to_come:
            assert self.loop.time() < deadline, f"{self.table.still_to_come} late writes left"
            await asyncio.sleep(0.05)
        for number in range(2):
            if await self.publish("last", [f"last{number}"], NO_OPTIONS) == "ok":
                break
        entries = await self.browse("final")
        if entries is None:
            return  # The history shows it: a healed storage that does not answer is a violation.
        await self._check_pages(entries)
        for _ in range(2):
            await self.node.sweep()
        if await self.browse("final again") != entries:
            self.violations.append(Violation("wrong_page", "a sweep changed a log that lives"))

    async def _check_pages(self, entries: list[dict[str, Any]]) -> None:
        """Compare consumers of every width and several snapshots with the rows as they lie there."""
        pointers = sorted({e["write_pointer"] for e in entries if e["write_pointer"] is not None})
        some = self.chance.sample(pointers, min(len(pointers), 3))
        snapshots = [
            None,
            Snapshot(transaction_id=1 << 40, read_pointer=1 << 40),
            Snapshot(transaction_id=1 << 40, read_pointer=1 << 40, invalids=some),
            Snapshot(transaction_id=1 << 40, read_pointer=1 << 40, in_progress=some[:1]),
        ]
        for snapshot in snapshots:
            wanted = consumable(entries, snapshot)
            for width in (1, 3, None):
                got: list[Message] = []
                start: bytes | None = None
                while True:
                    poll = Poll(start, inclusive=False, limit=width, snapshot=snapshot)
                    page = await self.poll(LOG, poll)
                    if not page:
                        break
                    got += page
                    start = page[-1].id
                if [(m.id.hex(), m.payload.decode()) for m in got] != wanted:
                    detail = f"width {width}, {snapshot!r}: {len(got)} for {len(wanted)}"
                    self.violations.append(Violation("wrong_page", detail))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    seed: int
    plan: str
    verdict: Verdict
    calls: list[Operation]
    starts: int

    @property
    def command(self) -> str:
        """How to run it again."""
        return f"python -m tests.kit.one_node --seed {self.seed} --plan {self.plan}"


def simulate(seed: int, plan: str = "usual") -> Outcome:
    """Make one run and judge it."""
    with virtual_loop() as loop:
        own_tasks(loop)
        run = Run(loop, seed, PLANS[plan])
        loop.set_exception_handler(lambda _, about: run.unhandled(about))
        loop.run_until_complete(run.run())
    calls = run.history.calls()
    judged = checkers.check(calls)
    verdict = judged._replace(violations=(*judged.violations, *run.violations))
    return Outcome(seed, plan, verdict, calls, run.node.starts)


def main(arguments: list[str] | None = None) -> int:
    """Repeat runs by seed and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.one_node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plan", choices=sorted(PLANS), default="usual")
    parser.add_argument("--runs", type=int, default=1, help="this seed and the following ones")
    parser.add_argument("--mutant", choices=sorted(mutants.NAMES), help="without this guard")
    chosen = parser.parse_args(arguments)
    bad = 0
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        dropped = nullcontext() if chosen.mutant is None else mutants.in_force(chosen.mutant)
        with logs.writing(LogsConfig(log_level=LogLevel.ERROR)), dropped:
            outcome = simulate(seed, chosen.plan)
        if not outcome.verdict.is_valid:
            bad += 1
            names = sorted(outcome.verdict.names) or ["too little happened"]
            _print(f"{outcome.command}: {', '.join(names)}")
            for violation in outcome.verdict.violations[:5] if chosen.runs == 1 else ():
                _print(f"  {violation.name}: {violation.detail}")
    _print(f"{chosen.runs} runs, {bad} bad")
    return 1 if bad else 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""Several nodes, simulated: a cluster over hostile storage and a coordinator that fails, by seed.

The nodes are whole (handlers, topics, leaders, tenure, sweeper), each with a session of its own. Clients
ask any node and follow its 421 as another node would. A nemesis kills nodes, stops them in good order, cuts
them off from the coordinator or ends their sessions, takes the coordinator away or wipes it, moves pins,
drains nodes and steps clocks. In the end all heals, and the log is compared with what clients were told::

    python -m broker.testing.many_explored --seed 7 [--runs 100] [--without epoch-tag]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from broker import guards
from broker.coordination.ports import Contact
from broker.errors import BrokerError, NoLeader, NotLeader, Unavailable
from broker.leading import placement
from broker.model import PublishRequest, TopicId
from broker.testing import checkers
from broker.testing.adversary import AdversaryCells, Bias
from broker.testing.checkers import Verdict
from broker.testing.clients import LOG, Clients, path_of
from broker.testing.clock import VirtualLoop, virtual_loop
from broker.testing.history import Call
from broker.testing.many_mortal import LOOK_MS, HostileCluster, MortalMember
from broker.testing.node import Answered
from broker.testing.world import NodeDied, own_tasks
from broker.topics.settings import NO_OPTIONS, Published, PublishOptions

NODES = 3
LOOKS_MAX = 400
"""How often a client looks for the leader, with a pause each time."""
LAST_WRITES_S = 60.0

Result = TypeVar("Result")


class AnyNode:
    """Stands where one node would, for clients: asks any, and follows it to the leader."""

    def __init__(self, cluster: HostileCluster, chance: random.Random) -> None:
        """Ask the nodes of ``cluster``."""
        self.cluster = cluster
        self.chance = chance
        self.topics = self

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Work as the client."""
        return await work

    async def _look(self) -> MortalMember:
        return self.chance.choice(await self.cluster.some_living())

    async def publish(
        self, topic: TopicId, request: PublishRequest, options: PublishOptions
    ) -> Published:
        """Publish at the leader. Raises BrokerError, NodeDied."""

        async def attempt(member: MortalMember) -> Published:
            return await member.topics.publish(topic, request, options)

        for _ in range(LOOKS_MAX):
            member = await self._look()
            try:
                return await member.run(attempt(member))
            except NotLeader:
                await asyncio.sleep(LOOK_MS / 1000)
        raise NoLeader("The leader was not found.")

    async def call(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answered:
        """Return the leader's answer. Raises NodeDied."""
        for _ in range(LOOKS_MAX):
            member = await self._look()
            answer = await member.run(member.answer(method, target, body, headers or {}))
            if answer.status != NotLeader.http_status:
                return answer
            await asyncio.sleep(LOOK_MS / 1000)
        raise NodeDied("The leader was not found.")


class Run(Clients):
    """One run."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        """Set the world up; all chances come from ``seed``."""
        chance = random.Random(seed)
        self.cells = AdversaryCells(loop, random.Random(chance.random()), Bias(move=0.0))
        self.cluster = HostileCluster(self.cells)
        asked: Any = AnyNode(self.cluster, random.Random(chance.random()))
        super().__init__(loop, chance, asked)
        self._stopping = False
        self._restarts: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Let everybody act, then heal everything and read the log to its end."""
        for instance in range(NODES):
            await self.cluster.begin(instance)
        await self._create()
        readers = [asyncio.ensure_future(self._tail(f"tail{number}")) for number in range(2)]
        publishers = [self._publisher(f"p{number}") for number in range(4)]
        await asyncio.gather(*publishers, self._nemesis())
        self._stopping = True
        await asyncio.gather(*readers)
        await self._finish()

    async def _create(self) -> None:
        body = json.dumps({"ttl": str(1 << 30)}).encode()
        while (await self.call("PUT", path_of(LOG), body)).status not in (200, 409):
            await self.pause(10)

    async def _publisher(self, name: str) -> None:
        for _ in range(12):
            await self.pause(30)
            draw = self.chance.random()
            if draw < 0.25:
                await self.keyed(name)
            elif draw < 0.4:
                await self.transactional(name)
            elif draw < 0.5:
                await self.roll_back(name)
            elif draw < 0.6:
                await self.store_and_refer(name)
            else:
                await self.publish(name, self.payloads(name), NO_OPTIONS)

    async def _tail(self, name: str) -> None:
        """Follow the log in pages, from any node."""
        start: bytes | None = None
        while not self._stopping:
            await self.pause(20)
            try:
                page = await self.read(name, start, self.chance.choice([2, 5, None]))
            except NodeDied:
                continue
            if page:
                start = page[-1].id

    # The nemesis.

    async def _nemesis(self) -> None:
        steps: list[Callable[[MortalMember], Coroutine[Any, Any, None]]] = [
            self._kill,
            self._kill_leader,
            self._kill_leader,
            self._stop,
            self._cut_off,
            self._end_session,
            self._outage,
            self._wipe,
            self._pin,
            self._pin,
            self._drain,
            self._step_clock,
        ]
        for _ in range(12):
            await self.pause(50)
            living = self.cluster.living
            if living:
                await self.chance.choice(steps)(self.chance.choice(living))

    def _restart(self, member: MortalMember) -> None:
        self._restarts.append(asyncio.ensure_future(self.cluster.begin(member.me.instance)))

    async def _kill(self, member: MortalMember) -> None:
        await member.kill()
        self._restart(member)

    async def _kill_leader(self, member: MortalMember) -> None:
        leaders = [other for other in self.cluster.living if other.leads(LOG)]
        await self._kill(leaders[0] if leaders else member)

    async def _stop(self, member: MortalMember) -> None:
        with contextlib.suppress(BrokerError, NodeDied):
            await asyncio.wait_for(member.run(member.stop()), 15)
        await member.kill()
        self._restart(member)

    async def _cut_off(self, member: MortalMember) -> None:
        if member.coordinator.contact is not Contact.CONNECTED:
            return
        ends_after_s = self.chance.choice([0.05, 0.5, 5.0])
        self.cluster.coordination.suspend(member.coordinator, session_ends_after_s=ends_after_s)
        await asyncio.sleep(self.chance.uniform(0.1, 1.0))
        self.cluster.coordination.resume(member.coordinator)

    async def _end_session(self, member: MortalMember) -> None:
        self.cluster.coordination.expire(member.coordinator, noticed_after_s=0.3)

    async def _outage(self, _: MortalMember) -> None:
        self.cluster.coordination.outage()
        await asyncio.sleep(self.chance.uniform(0.1, 1.0))
        self.cluster.coordination.recover()

    async def _wipe(self, _: MortalMember) -> None:
        self.cluster.coordination.wipe()

    async def _pin(self, member: MortalMember) -> None:
        with contextlib.suppress(BrokerError):
            await placement.pin(self.cluster.records, LOG, member.me.instance)
        await self._hint(member)

    async def _drain(self, member: MortalMember) -> None:
        await placement.drain(self.cluster.records, member.me.instance)
        await self._hint(member)
        await asyncio.sleep(self.chance.uniform(0.1, 1.0))
        await placement.undrain(self.cluster.records, member.me.instance)
        await self._hint(member)

    async def _hint(self, member: MortalMember) -> None:
        # One that is lost is what the nodes must live with, too.
        if self.chance.random() < 0.7:
            with contextlib.suppress(Unavailable, TimeoutError):
                await asyncio.wait_for(member.coordinator.hint(placement.HINT), 1)

    async def _step_clock(self, member: MortalMember) -> None:
        member.clock.step(self.chance.randint(-4000, 4000))

    # The end.

    async def _finish(self) -> None:
        """Heal, wait for what is late, and read the log as it ended."""
        await asyncio.gather(*self._restarts)
        self.cells.heal()
        deadline = self.loop.time() + LAST_WRITES_S
        while self.cells.still_to_come:
            assert self.loop.time() < deadline, f"{self.cells.still_to_come} late writes left"
            await asyncio.sleep(0.05)
        for number in range(3):
            if await self.publish("last", [f"last{number}"], NO_OPTIONS) == "ok":
                break
        await self.browse("final")


class Outcome(NamedTuple):
    """What came of a run; ``lives`` is how many incarnations of nodes there were."""

    seed: int
    verdict: Verdict
    calls: list[Call]
    lives: int

    @property
    def command(self) -> str:
        """How to run it again."""
        return f"python -m broker.testing.many_explored --seed {self.seed}"


def simulate(seed: int) -> Outcome:
    """Make one run and judge it."""
    with virtual_loop() as loop:
        own_tasks(loop)

        async def main() -> Run:
            run = Run(loop, seed)
            await run.run()
            return run

        run = loop.run_until_complete(main())
    calls = run.history.calls()
    return Outcome(seed, checkers.check(calls), calls, run.cluster.lives)


def main(arguments: list[str] | None = None) -> int:
    """Repeat runs by seed and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m broker.testing.many_explored")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="this seed and the following ones")
    parser.add_argument("--without", action="append", default=[], metavar="GUARD")
    chosen = parser.parse_args(arguments)
    os.environ["BROKER_TESTING"] = "1"
    for name in chosen.without:
        guards.switch_off(name)
    bad = 0
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        outcome = simulate(seed)
        if not outcome.verdict.is_valid:
            bad += 1
            names = sorted(outcome.verdict.names) or ["too little happened"]
            sys.stdout.write(f"seed {seed}: {', '.join(names)}\n")
            for violation in outcome.verdict.violations[:5] if chosen.runs == 1 else ():
                sys.stdout.write(f"  {violation.name}: {violation.detail}\n")
    sys.stdout.write(f"{chosen.runs} runs, {bad} bad\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

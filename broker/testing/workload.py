"""What happens in an explored world: publishers, readers, and a nemesis.

Every client tells the history what it asked and what it was told; the workload itself knows nothing of
the protocol below. Its chances all come from one seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from broker.errors import BrokerError
from broker.model import (
    ROW_ID_MAX,
    ROW_ID_MIN,
    PublishRequest,
    RollbackRange,
    RowId,
)
from broker.storage.control import Deleted, StaleGeneration
from broker.storage.keys import LogId
from broker.testing.adversary import AdversaryCells, Bias
from broker.testing.clock import VirtualClock, VirtualLoop
from broker.testing.history import Ending, History
from broker.testing.workload_readers import ALL_ROWS, Readers
from broker.testing.world import TOPIC, Node, NodeDied
from broker.topics.keyed import request_hash
from broker.topics.settings import NO_OPTIONS, Published, PublishOptions
from broker.topics.writer import Write

LAST_WRITES_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in a run, and how often."""

    bias: Bias = field(default_factory=Bias)
    publishers: int = 3
    requests: int = 5
    """Requests of each publisher."""
    pause_ms: float = 6.0
    keyed: float = 0.15
    """The share of requests that are publishes under a key."""
    nemesis_steps: int = 6
    take_over: float = 0.35
    kill: float = 0.2
    hand_off: float = 0.15
    step_clock: float = 0.1
    step_ms: int = 3000
    clocks_wrong_ms: int = 3000
    delete: float = 0.02
    second_node: float = 0.5
    """How often clients go to the second node: each change of node is a takeover."""
    one_instance: bool = False
    """Whether both nodes have the same instance id, so that they may meet at the same key."""


class Workload:
    """One run."""

    def __init__(self, loop: VirtualLoop, seed: int, plan: Plan) -> None:
        """Set the world up; all chances come from ``seed``."""
        self.loop = loop
        self.plan = plan
        self.chance = random.Random(seed)
        self.cells = AdversaryCells(loop, random.Random(self.chance.random()), plan.bias)
        self.history = History(lambda: int(loop.time() * 1e9))
        self.nodes = [self._node(f"n{number}", number) for number in range(2)]
        self.generation = 1
        self.published: list[tuple[int, Published, int]] = []
        """Rows of transactions: (pointer, rows, generation)."""
        self.ids: list[RowId] = []
        self.pause_ms = plan.pause_ms
        self.readers = Readers(self)
        self._names = count(1)

    def _node(self, name: str, number: int) -> Node:
        clock = VirtualClock(self.loop)
        wrong = self.plan.clocks_wrong_ms
        clock.step(self.chance.randint(-wrong, wrong))
        instance = 0 if self.plan.one_instance else number
        return Node(name, self.cells, clock, random.Random(self.chance.random()), instance=instance)

    def any_node(self) -> Node:
        """Return one of the nodes."""
        return self.nodes[self.chance.random() < self.plan.second_node]

    async def pause(self, mean_ms: float) -> None:
        """Let about so long pass."""
        await asyncio.sleep(self.chance.expovariate(1 / mean_ms) / 1000)

    # The run.

    async def run(self) -> None:
        """Let everybody act, then heal everything and read the log to its end."""
        reading = self.readers
        publishers = [self._publisher(f"p{number}") for number in range(self.plan.publishers)]
        readers = [
            asyncio.ensure_future(reader)
            for reader in (reading.anything(), reading.consumer(), reading.cached())
        ]
        await asyncio.gather(*publishers, self._nemesis())
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await self._finish()

    async def _finish(self) -> None:
        """Heal, wait for what is late, and read the log as the next leader has it."""
        for node in self.nodes:
            node.kill()
        self.cells.heal()
        deadline = self.loop.time() + LAST_WRITES_S
        while self.cells.still_to_come:
            assert self.loop.time() < deadline, f"{self.cells.still_to_come} late writes left"
            await asyncio.sleep(0.05)
        node = self.nodes[0]
        for number in range(2):
            payloads = [f"last{number}.{place}" for place in range(3)]
            if await self._publish("last", node, payloads, None, None) == "ok":
                break
        after, more = ROW_ID_MIN, True
        while more:
            page = await self.readers.read("final", after, ROW_ID_MAX, rows_max=ALL_ROWS)
            if page is None:
                return  # The history shows it: a healed storage that does not answer is a violation.
            for row in page.rows:
                if row.payload is None:
                    await self.readers.read_payloads("final payloads", node, row)
            after, more = page.seen, page.more

    # Clients.

    async def _publisher(self, name: str) -> None:
        for _ in range(self.plan.requests):
            await self.pause(self.plan.pause_ms)
            draw = self.chance.random()
            if draw < self.plan.keyed:
                await self._publish_keyed(name)
            elif draw < self.plan.keyed + 0.16:
                await self._roll_back(name)
            elif draw < self.plan.keyed + 0.26:
                await self._store_and_refer(name)
            elif draw < self.plan.keyed + 0.30:
                await self._raise_floor(name)
            else:
                await self._publish_some(name)

    def _payloads(self) -> list[str]:
        return [f"m{next(self._names)}" for _ in range(self.chance.choice((1, 1, 2, 3)))]

    async def _publish_some(self, name: str) -> None:
        pointer = next(self._names) if self.chance.random() < 0.5 else None
        await self._publish(name, self.any_node(), self._payloads(), pointer, None)

    async def _publish_keyed(self, name: str) -> None:
        """Publish under a key, and again with it if nobody knows what became of it."""
        key, payloads = f"k{next(self._names)}", self._payloads()
        for _ in range(3):
            if await self._publish(name, self.any_node(), payloads, None, key) != "unknown":
                return
            await self.pause(self.plan.pause_ms)

    async def _publish(
        self, name: str, node: Node, payloads: list[str], pointer: int | None, key: str | None
    ) -> str:
        generation = self.generation
        asked = {"payloads": payloads, "pointer": pointer, "key": key, "generation": generation}

        async def work(ending: Ending) -> None:
            leader = await node.leader(generation)
            ending.node, ending.epoch = node.name, leader.epoch
            request = PublishRequest(pointer, [payload.encode() for payload in payloads])
            write = Write(self.loop.create_future(), request.payloads, pointer)
            if key is None:
                done = await leader.publish(write)
            else:
                body, options = request_hash(request, NO_OPTIONS), PublishOptions(key=key)
                done = await leader.messages.write_keyed(write, options, body)
            ending.ok({"last": done.last.hex(), "replayed": done.replayed}, done.first.hex())
            self.ids.append(done.last)
            if pointer is not None:
                self.published.append((pointer, done, generation))

        return await self._call(name, node, "publish", asked, work)

    async def _roll_back(self, name: str) -> None:
        if not self.published:
            return
        pointer, rows, generation = self.chance.choice(self.published)
        node = self.any_node()
        first, last = rows.first, rows.last
        asked = {"pointer": pointer, "first": first.hex(), "last": last.hex()}

        async def work(ending: Ending) -> None:
            leader = await node.leader(generation)
            ending.node, ending.epoch = node.name, leader.epoch
            done = await leader.rollback(RollbackRange(pointer, first, last))
            ending.ok({"rows": done})

        await self._call(name, node, "rollback", {**asked, "generation": generation}, work)

    async def _store_and_refer(self, name: str) -> None:
        number, generation = next(self._names), self.generation
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            await self._store(name, number, generation)
        for _ in range(self.chance.choice((1, 1, 2))):
            await self._refer(name, number, generation)
            if self.chance.random() < 0.3:
                await self._store(name, number, generation)

    async def _store(self, name: str, number: int, generation: int) -> None:
        node, payloads = self.any_node(), self._payloads()
        asked = {"payloads": payloads, "number": number, "generation": generation}

        async def work(ending: Ending) -> None:
            leader = await node.leader(generation)
            ending.node, ending.epoch = node.name, leader.epoch
            request = PublishRequest(number, [payload.encode() for payload in payloads])
            done = await leader.store(request, PublishOptions())
            ending.ok({"last": done.last.hex()}, done.first.hex())

        await self._call(name, node, "store", asked, work)

    async def _refer(self, name: str, number: int, generation: int) -> None:
        node = self.any_node()

        async def work(ending: Ending) -> None:
            leader = await node.leader(generation)
            ending.node, ending.epoch = node.name, leader.epoch
            done = await leader.publish_reference(number, None)
            ending.ok({"replayed": done.replayed}, done.first.hex())

        asked = {"number": number, "generation": generation}
        await self._call(name, node, "reference", asked, work)

    async def _raise_floor(self, name: str) -> None:
        if not self.ids:
            return
        floor, node, generation = self.chance.choice(self.ids), self.any_node(), self.generation

        async def work(ending: Ending) -> None:
            leader = await node.leader(generation)
            hold = leader.hold
            await node.store.raise_floor(hold, floor)
            ending.ok({"floor": hold.control.floor.hex()})
            while (await node.store.sweep_log(hold, 0, 10)).more:
                pass

        asked = {"floor": floor.hex(), "generation": generation}
        await self._call(name, node, "floor", asked, work)

    async def _call(
        self,
        name: str,
        node: Node,
        op: str,
        asked: dict[str, Any],
        work: Callable[[Ending], Coroutine[Any, Any, None]],
    ) -> str:
        """Ask a node for something, and write down what the client is told."""
        ending = self.history.invoke(name, op, str(TOPIC), asked)
        why: Exception
        try:
            await node.run(work(ending))
        except Deleted as error:
            # Whoever meets a tombstone finishes the delete.
            self.generation = max(self.generation, asked["generation"] + 1)
            why, outcome = error, "fail"
        except StaleGeneration as error:
            why, outcome = error, "fail"
        except NodeDied as error:
            why, outcome = error, "unknown"
        except BrokerError as error:
            why, outcome = error, "fail" if error.outcome == "refused" else "unknown"
        else:
            return "ok"
        if ending.is_open:
            (ending.fail if outcome == "fail" else ending.unknown)(f"{type(why).__name__}: {why}")
        return outcome

    # The nemesis.

    async def _nemesis(self) -> None:
        plan = self.plan
        for _ in range(plan.nemesis_steps):
            await self.pause(3 * plan.pause_ms)
            if self.chance.random() < plan.take_over:
                await self._quietly(self._take_over())
            if self.chance.random() < plan.hand_off:
                node = self.any_node()
                await self._quietly(node.run(node.hand_off()))
            if self.chance.random() < plan.kill:
                self.any_node().kill()
            if self.chance.random() < plan.step_clock:
                self.any_node().clock.step(self.chance.randint(-plan.step_ms, plan.step_ms))
            if self.chance.random() < plan.delete:
                await self._delete()

    async def _take_over(self) -> None:
        node = self.any_node()
        await node.run(node.take_over(self.generation))

    async def _delete(self) -> None:
        node, generation = self.any_node(), self.generation
        asked = {"generation": generation}

        async def work(ending: Ending) -> None:
            await node.store.tombstone(LogId(TOPIC, generation), node.around.owner)
            ending.ok({})

        if await self._call("nemesis", node, "delete", asked, work) == "ok":
            # The next generation is made a while later; until then the old one is just gone.
            await self.pause(4 * self.plan.pause_ms)
            self.generation = generation + 1
            await self._quietly(node.run(self._sweep_older(node, generation + 1)))

    @staticmethod
    async def _sweep_older(node: Node, generation: int) -> None:
        while (await node.store.sweep_generations(TOPIC, generation, 10)).more:
            pass

    @staticmethod
    async def _quietly(work: Awaitable[None]) -> None:
        """Let a step of the nemesis fail: that is no client's business."""
        with contextlib.suppress(BrokerError, NodeDied, Deleted, StaleGeneration):
            await work

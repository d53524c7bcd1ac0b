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
    Topic,
    TransactionUse,
    first_row_at,
    row_before,
)
from broker.storage.control import Control, Deleted, StaleGeneration, State
from broker.storage.keys import LogId
from broker.storage.ports import Row, Rows
from broker.testing.adversary import AdversaryCells, Bias
from broker.testing.clock import VirtualClock, VirtualLoop
from broker.testing.history import Ending, History
from broker.testing.world import TOPIC, TTL_S, Node, NodeDied
from broker.topics.keyed import request_hash
from broker.topics.reading import scan_payloads
from broker.topics.settings import NO_OPTIONS, Published, PublishOptions
from broker.topics.writer import Write

ALL_ROWS = 1 << 20
BYTES_MAX = 1 << 24
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
        self._names = count(1)

    def _node(self, name: str, number: int) -> Node:
        clock = VirtualClock(self.loop)
        wrong = self.plan.clocks_wrong_ms
        clock.step(self.chance.randint(-wrong, wrong))
        instance = 0 if self.plan.one_instance else number
        return Node(name, self.cells, clock, random.Random(self.chance.random()), instance=instance)

    def _any_node(self) -> Node:
        return self.nodes[self.chance.random() < self.plan.second_node]

    async def _pause(self, mean_ms: float) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / mean_ms) / 1000)

    # The run.

    async def run(self) -> None:
        """Let everybody act, then heal everything and read the log to its end."""
        publishers = [self._publisher(f"p{number}") for number in range(self.plan.publishers)]
        readers = [
            asyncio.ensure_future(reader)
            for reader in (self._reader(), self._consumer(), self._cached_reader())
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
            page = await self._read("final", after, ROW_ID_MAX, rows_max=ALL_ROWS)
            if page is None:
                return  # The history shows it: a healed storage that does not answer is a violation.
            for row in page.rows:
                if row.payload is None:
                    await self._read_payloads("final payloads", node, row)
            after, more = page.seen, page.more

    # Clients.

    async def _publisher(self, name: str) -> None:
        for _ in range(self.plan.requests):
            await self._pause(self.plan.pause_ms)
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
        await self._publish(name, self._any_node(), self._payloads(), pointer, None)

    async def _publish_keyed(self, name: str) -> None:
        """Publish under a key, and again with it if nobody knows what became of it."""
        key, payloads = f"k{next(self._names)}", self._payloads()
        for _ in range(3):
            if await self._publish(name, self._any_node(), payloads, None, key) != "unknown":
                return
            await self._pause(self.plan.pause_ms)

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
                body = request_hash(request, NO_OPTIONS)
                done = await leader.messages.write_keyed(write, key, body)
            ending.ok({"last": done.last.hex(), "replayed": done.replayed}, done.first.hex())
            self.ids.append(done.last)
            if pointer is not None:
                self.published.append((pointer, done, generation))

        return await self._call(name, node, "publish", asked, work)

    async def _roll_back(self, name: str) -> None:
        if not self.published:
            return
        pointer, rows, generation = self.chance.choice(self.published)
        node = self._any_node()
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
        node, payloads = self._any_node(), self._payloads()
        asked = {"payloads": payloads, "number": number, "generation": generation}

        async def work(ending: Ending) -> None:
            leader = await node.leader(generation)
            ending.node, ending.epoch = node.name, leader.epoch
            request = PublishRequest(number, [payload.encode() for payload in payloads])
            done = await leader.store(request, PublishOptions())
            ending.ok({"last": done.last.hex()}, done.first.hex())

        await self._call(name, node, "store", asked, work)

    async def _refer(self, name: str, number: int, generation: int) -> None:
        node = self._any_node()

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
        floor, node, generation = self.chance.choice(self.ids), self._any_node(), self.generation

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

    # Readers.

    async def _reader(self) -> None:
        """Read anything, in both directions, in pages of any width."""
        for number in count():
            await self._pause(3 * self.plan.pause_ms)
            after, through = ROW_ID_MIN, ROW_ID_MAX
            if self.ids and self.chance.random() < 0.5:
                after = row_before(self.chance.choice(self.ids))
            if self.ids and self.chance.random() < 0.3:
                through = self.chance.choice(self.ids)
            if self.chance.random() < 0.2:
                after = row_before(first_row_at(self._any_node().clock.now_ms() - 50))
            page = await self._read(
                f"reader {number}",
                after,
                through,
                rows_max=self.chance.choice((1, 2, 5, ALL_ROWS)),
                reverse=self.chance.random() < 0.3,
            )
            for row in page.rows if page is not None else []:
                if row.payload is None:
                    await self._read_payloads(f"reader {number}", self._any_node(), row)

    async def _consumer(self) -> None:
        """Follow the log by its ids."""
        after, generation = ROW_ID_MIN, self.generation
        while True:
            await self._pause(2 * self.plan.pause_ms)
            if generation != self.generation:
                after, generation = ROW_ID_MIN, self.generation
            width = self.chance.choice((1, 3, ALL_ROWS))
            page = await self._read("consumer", after, ROW_ID_MAX, rows_max=width)
            if page is not None and page.control is not None and page.rows:
                after = page.seen

    async def _cached_reader(self) -> None:
        """Keep what was read, and read again only if the control row shows that it must be."""
        shown: tuple[int, int, int] | None = None
        rows: list[Row] = []
        after = ROW_ID_MIN
        while True:
            await self._pause(3 * self.plan.pause_ms)
            node, generation = self.nodes[0], self.generation
            asked = _asked(ROW_ID_MIN, ROW_ID_MAX, generation)
            ending = self.history.invoke("cached reader", "read", str(TOPIC), asked)
            try:
                control = await node.run(node.store.head(LogId(TOPIC, generation)))
                if control is None or control.generation != generation:
                    ending.fail("nothing to read")
                    continue
                state = (control.generation, control.epoch, control.edits)
                if state != shown:
                    rows, after, shown = [], ROW_ID_MIN, None
                through = control.pointer
                page = await node.run(_scan(node, generation, after, through, ALL_ROWS))
                if not _is_same(page.control, state):
                    rows, after, shown = [], ROW_ID_MIN, None
                    ending.fail("changed meanwhile")
                    continue
            except (BrokerError, NodeDied) as error:
                ending.fail(str(error))
                continue
            rows = [row for row in rows + page.rows if row.id >= control.floor]
            after, shown = page.seen, state
            ending.ok(_told(rows, page, generation))

    async def _read(
        self, name: str, after: RowId, through: RowId, *, rows_max: int, reverse: bool = False
    ) -> Rows | None:
        """Read a page through some node. A name without a number is one consumer's."""
        generation, node = self.generation, self._any_node()
        asked = _asked(after, through, generation)
        asked.update(reverse=reverse, cursor=name if name == "consumer" else None)
        ending = self.history.invoke(name, "read", str(TOPIC), asked)
        try:
            page = await node.run(
                _scan(node, generation, after, through, rows_max, reverse=reverse)
            )
        except (BrokerError, NodeDied) as error:
            ending.fail(str(error))
            return None
        ending.ok(_told(page.rows, page, generation))
        return page

    async def _read_payloads(self, name: str, node: Node, row: Row) -> None:
        number = row.payload_log
        assert number is not None
        generation = self.generation
        asked = {"number": number, "generation": generation}
        ending = self.history.invoke(name, "payloads", str(TOPIC), asked)
        topic = Topic(TOPIC, generation, {}, TTL_S, TransactionUse.OPTIONAL)
        try:
            page = await node.run(scan_payloads(node.around, topic, number, ROW_ID_MIN, ALL_ROWS))
        except (BrokerError, NodeDied) as error:
            ending.fail(str(error))
            return
        ending.ok({"rows": [[row.id.hex(), (row.payload or b"").decode()] for row in page.rows]})

    # The nemesis.

    async def _nemesis(self) -> None:
        plan = self.plan
        for _ in range(plan.nemesis_steps):
            await self._pause(3 * plan.pause_ms)
            if self.chance.random() < plan.take_over:
                await self._quietly(self._take_over())
            if self.chance.random() < plan.kill:
                self._any_node().kill()
            if self.chance.random() < plan.step_clock:
                self._any_node().clock.step(self.chance.randint(-plan.step_ms, plan.step_ms))
            if self.chance.random() < plan.delete:
                await self._delete()

    async def _take_over(self) -> None:
        node = self._any_node()
        await node.run(node.take_over(self.generation))

    async def _delete(self) -> None:
        node, generation = self._any_node(), self.generation
        asked = {"generation": generation}

        async def work(ending: Ending) -> None:
            await node.store.tombstone(LogId(TOPIC, generation), node.around.owner)
            ending.ok({})

        if await self._call("nemesis", node, "delete", asked, work) == "ok":
            # The next generation is made a while later; until then the old one is just gone.
            await self._pause(4 * self.plan.pause_ms)
            self.generation = generation + 1

    @staticmethod
    async def _quietly(work: Awaitable[None]) -> None:
        """Let a step of the nemesis fail: that is no client's business."""
        with contextlib.suppress(BrokerError, NodeDied, Deleted, StaleGeneration):
            await work


async def _scan(
    node: Node,
    generation: int,
    after: RowId,
    through: RowId,
    rows_max: int,
    *,
    reverse: bool = False,
) -> Rows:
    log = LogId(TOPIC, generation)
    return await node.store.scan(
        log, after, through, rows_max=rows_max, bytes_max=BYTES_MAX, reverse=reverse
    )


def _asked(after: RowId, through: RowId, generation: int) -> dict[str, Any]:
    return {"after": after.hex(), "through": through.hex(), "generation": generation}


def _told(rows: list[Row], page: Rows, generation: int) -> dict[str, Any]:
    control = page.control
    is_there = (
        control is not None
        and control.generation == generation
        and control.state is not State.DELETED
    )
    return {
        "rows": [
            [row.id.hex(), None if row.payload is None else row.payload.decode(), row.pointer]
            for row in rows
        ],
        "seen": page.seen.hex(),
        "floor": control.floor.hex() if control is not None and is_there else "",
        "pointer": control.pointer.hex() if control is not None and is_there else "",
    }


def _is_same(control: Control | None, state: tuple[int, int, int]) -> bool:
    return control is not None and (control.generation, control.epoch, control.edits) == state

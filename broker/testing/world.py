"""A small world of nodes that share one storage, none of which can trust it, or the clocks.

The nodes run the shipped code (leaders, group commit, ids, the log store over tables); what is simulated
is below them (storage, time) and above (clients). A node can be killed at any step: all that it was doing
stops, what it had sent may still arrive. Two nodes may both believe that they lead; nothing here keeps
them from trying.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

from broker.errors import Fenced, NoLeader
from broker.model import Topic, TopicId, TransactionUse
from broker.storage.control import HOLD_NONCE_BYTES
from broker.storage.keys import LogId
from broker.storage.tables import TableLogStore
from broker.testing.adversary import AdversaryCells
from broker.testing.clock import VirtualClock, VirtualLoop
from broker.topics.leader import TopicLeader
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings

Result = TypeVar("Result")

TOPIC = TopicId("default", "explored")
TTL_S = 1 << 31
CALL_S = 0.25

_running: ContextVar[Mortal | None] = ContextVar("_running", default=None)


class NodeDied(Exception):
    """The node was killed while it worked for the caller."""


def own_tasks(loop: VirtualLoop) -> None:
    """Let every task of ``loop`` belong to the node that began it, so that it dies with it."""

    def make(
        in_loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=in_loop, **options)
        node = _running.get()
        if node is not None:
            node.tasks[task] = None
            task.add_done_callback(node.tasks.pop)
        return task

    loop.set_task_factory(make)


class Mortal:
    """Whoever works in tasks that die with it."""

    def __init__(self, name: str) -> None:
        """Begin without any."""
        self.name = name
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """A set in the order of its members: a run must not depend on where things lie in memory."""

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Work in this one's name. Raises NodeDied if it is killed meanwhile."""
        token = _running.set(self)
        try:
            task = asyncio.get_running_loop().create_task(work)
        finally:
            _running.reset(token)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and not caller.cancelling():
                raise NodeDied(f"{self.name} died") from None
            raise

    def die(self) -> None:
        """Stop all work where it is."""
        for task in list(self.tasks):
            task.cancel()


class Node(Mortal):
    """One node: a clock of its own, a store, and at times a leader of the topic."""

    def __init__(
        self,
        name: str,
        cells: AdversaryCells,
        clock: VirtualClock,
        chance: random.Random,
        *,
        instance: int | None,
    ) -> None:
        """Start the first incarnation."""
        super().__init__(name)
        self.clock = clock
        self.claims = 0
        self._cells = cells
        self._chance = chance
        self._instance = instance
        self._incarnation = 0
        self._settling: asyncio.Task[None] | None = None
        self._start()

    def _start(self) -> None:
        self._incarnation += 1
        self.store = TableLogStore(
            self._cells,
            self.clock,
            call_s=CALL_S,
            nonce=lambda: self._chance.randbytes(HOLD_NONCE_BYTES),
            chance=self._chance,
        )
        owner = f"{self.name}.{self._incarnation}"
        self._around = Surroundings(
            self.store, self.clock, TopicSettings(), owner=owner, instance=self._instance
        )
        self._leader: TopicLeader | None = None
        self._claiming = asyncio.Lock()

    @property
    def around(self) -> Surroundings:
        """What this incarnation's leaders share."""
        return self._around

    def kill(self) -> None:
        """Kill this incarnation and start the next: nothing but storage is kept."""
        self.die()
        self._start()

    async def leader(self, generation: int) -> TopicLeader:
        """Return this node's leader of a generation, claiming it if it has none."""
        known = self._leader
        if known is not None and known.topic.generation == generation and known.ended is None:
            return known
        return await self.take_over(generation)

    async def take_over(self, generation: int) -> TopicLeader:
        """Claim the topic, whoever leads it."""
        async with self._claiming:
            hold = await self.store.claim(LogId(TOPIC, generation), self._around.owner)
            self.claims += 1
            topic = Topic(TOPIC, generation, {}, TTL_S, TransactionUse.OPTIONAL)
            former = self._leader
            self._leader = TopicLeader(
                topic, hold, self._around, committed=lambda: None, lost=self._settle
            )
            if former is not None:
                former.end(Fenced("claimed again"))
            return self._leader

    async def hand_off(self) -> None:
        """Let go of the topic in good order, whatever else is asked of this node meanwhile."""
        leader, self._leader = self._leader, None
        if leader is None:
            return
        await leader.idle()
        await self.store.release(leader.hold)
        leader.end(NoLeader("handed off"))

    def _settle(self, leader: TopicLeader) -> None:
        token = _running.set(self)
        self._settling = asyncio.get_running_loop().create_task(_refuse(leader))
        _running.reset(token)


async def _refuse(leader: TopicLeader) -> None:
    """Answer what a leader certainly did not store, as a node without a next one to hand it to."""
    for write in await leader.settled():
        if not write.future.done():
            write.future.set_exception(Fenced(f"Not done: {leader.ended}"))

"""The topics workload: administrators create, change and delete topics while clients use them.

The first topic stays. It has a short ``ttl``, which its administrator changes: its messages expire, and
sweepers remove them. The other topics are deleted and created again. Each has one administrator, the only
process that knows the topic's generation::

    not there ──create──▶ there ──update──▶ there ──delete──▶ not there
                           unknown ──▶ get the topic, until there is an answer

Publishers and readers do not know of the changes. They are refused while there is no topic. No publisher
uses an idempotency key here, because a request repeated after a deletion would be published again, in
another log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from broker.client import BrokerError
from chaos.history import Value
from chaos.workloads import publishers, readers
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.finals import read_everywhere
from chaos.workloads.workload import WorkloadSurroundings

PUBLISHERS: Final = (
    publishers.single,
    publishers.pipelined,
    publishers.forwarded,
    publishers.together,
)
DELETE: Final = 0.4
PAUSES: Final = 5
"""The mean time between two changes of a topic, in pauses of the scale."""
LONGER: Final = (1, 2, 1000)
"""The lifetimes of a topic, in multiples of the scale's ``ttl_s``."""


class TopicsWorkload:
    """A topic whose messages expire, and topics that are deleted and created again."""

    name = "topics"

    def __init__(self) -> None:
        """Begin without topics."""
        self.targets: list[TopicTarget] = []

    async def prepare(self, around: WorkloadSurroundings) -> None:
        """Create the topics. Raises BrokerError."""
        count = max(2, around.scale.topics)
        names = [f"{self.name}-{around.chance.getrandbits(32):08x}-{n}" for n in range(count)]
        self.targets = [TopicTarget(name) for name in names]
        for target in self.targets:
            async with ClientProcess(around, _administrator(target)) as process:
                await process.create(target, ttl_s=around.scale.ttl_s)

    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        """Publish, consume, change and delete until ``stop`` is set."""
        expiring, *others = self.targets
        working: list[Awaitable[None]] = [_change(around, expiring, stop, delete=0.0)]
        working += [_change(around, target, stop, delete=DELETE) for target in others]
        reading = []
        for target in self.targets:
            working += [
                kind(around, f"{kind.__name__}-{number}-{target.name}", target, stop)
                for number, kind in readers.some(PUBLISHERS, around.scale.publishers)
            ]
            reading += [
                kind(around, f"{kind.__name__}-{number}-{target.name}", target)
                for number, kind in readers.some(readers.KINDS, around.scale.consumers)
            ]
        await readers.work(working, reading)

    async def finish(self, around: WorkloadSurroundings) -> None:
        """Create the missing topics, and read everything through every node."""
        targets = []
        for target in self.targets:
            async with ClientProcess(around, _administrator(target)) as process:
                generation = await _ensured(process, target)
            if generation:
                targets.append(target._replace(generation=generation))
        await read_everywhere(around, targets)


def _administrator(target: TopicTarget) -> str:
    return f"administrator-{target.name}"


async def _change(
    around: WorkloadSurroundings, target: TopicTarget, stop: asyncio.Event, *, delete: float
) -> None:
    """Run the administrator of a topic."""
    async with ClientProcess(around, _administrator(target)) as process:
        while not stop.is_set():
            await process.pause(PAUSES * around.scale.pause_s)
            with suppress(BrokerError):
                generation = await process.generation(target)
                if generation is None:
                    continue
                if generation == 0:
                    await process.create(target, ttl_s=_lifetime_s(around))
                elif around.chance.random() < delete:
                    await _delete(process, target._replace(generation=generation))
                else:
                    await _update(process, target._replace(generation=generation))


def _lifetime_s(around: WorkloadSurroundings) -> int:
    return around.scale.ttl_s * around.chance.choice(LONGER)


async def _delete(process: ClientProcess, target: TopicTarget) -> None:
    with process.asking("delete", target.id, {"generation": target.generation}) as ending:
        await process.client.delete_topic(target.id)
        ending.ok({})


async def _update(process: ClientProcess, target: TopicTarget) -> None:
    ttl_s = _lifetime_s(process.around)
    asked: Value = {"generation": target.generation, "ttl_s": ttl_s}
    with process.asking("update", target.id, asked) as ending:
        await process.client.set_topic(target.id, {"ttl": str(ttl_s)})
        ending.ok({})


async def _ensured(process: ClientProcess, target: TopicTarget) -> int:
    """Return a topic's generation; create the topic if needed. Return 0 if that fails for ``final_s``."""
    around = process.around
    deadline = around.clock.monotonic() + around.scale.final_s
    while around.clock.monotonic() < deadline:
        with suppress(BrokerError):
            generation = await process.generation(target)
            if generation:
                return generation
            if generation == 0:
                await process.create(target, ttl_s=around.scale.ttl_s)
                continue
        await around.clock.sleep(around.scale.again_s)
    return 0

"""The metadata workload: registers with compare-and-set, built from the creation of topics.

The interface has no compare-and-set of a topic's properties. It has ``create``, which keeps properties, and
which is refused if the topic exists. So each version of a register is a topic. A client that creates the
next version has set the register::

    register-0    {"owner": a}      ◀── cas none -> a
    register-1    {"owner": b}      ◀── cas a -> b, by a client that had seen a
    register-2    404               ◀── get: the version before is the last one

No client deletes a version. So if a get finds a version, and then does not find the next one, the found
version *was* the last one at a moment of the get.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple

from broker.client import BrokerError, TopicId, TopicNotFound
from chaos.history import Value
from chaos.workloads import readers
from chaos.workloads.client_process import ClientProcess, TopicTarget, until_answered
from chaos.workloads.workload import WorkloadSurroundings

OWNER: Final = "owner"
SET: Final = 0.3
REGISTERS_MIN: Final = 2


class Register(NamedTuple):
    """The content of a register: its value, and the number of its versions."""

    value: str | None = None
    versions: int = 0


class MetadataWorkload:
    """Processes that compete for a few registers."""

    name = "metadata"

    def __init__(self) -> None:
        """Begin without registers."""
        self.registers: list[str] = []

    async def prepare(self, around: WorkloadSurroundings) -> None:
        """Choose the registers' names; they are empty."""
        count = max(REGISTERS_MIN, around.scale.topics)
        self.registers = [
            f"{self.name}-{around.chance.getrandbits(32):08x}-{number}" for number in range(count)
        ]

    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        """Compare, set and get until ``stop`` is set."""
        processes = 2 * around.scale.publishers
        await readers.work([self._compete(around, number, stop) for number in range(processes)], [])

    async def finish(self, around: WorkloadSurroundings) -> None:
        """Get every register through every node."""
        for node in around.nodes:
            async with ClientProcess(around, f"final@{node}", node=node) as process:
                for register in self.registers:
                    await _finally(process, register)

    async def _compete(
        self, around: WorkloadSurroundings, number: int, stop: asyncio.Event
    ) -> None:
        chance = around.chance
        known = dict.fromkeys(self.registers, Register())
        node = chance.choice([None, *around.nodes])
        async with ClientProcess(around, f"client-{number}", node=node) as process:
            while not stop.is_set():
                register = chance.choice(self.registers)
                with suppress(BrokerError):
                    if chance.random() < SET:
                        known[register] = await _set(process, register, known[register])
                    else:
                        known[register] = await _get(process, register, known[register])
                await process.pause(2 * around.scale.pause_s)


async def _set(process: ClientProcess, register: str, known: Register) -> Register:
    """Set a new value if the register still has the content seen last. Raises BrokerError."""
    (value,) = process.labels(1)
    asked: Value = {"key": register, "expected": known.value, "value": value}
    with process.asking("cas", None, asked) as ending:
        await process.client.create_topic(_version(register, known.versions), {OWNER: value})
        ending.ok({"version": known.versions + 1})
    return Register(value, known.versions + 1)


async def _get(process: ClientProcess, register: str, known: Register) -> Register:
    """Return the content of a register; begin at the content seen last. Raises BrokerError."""
    with process.asking("get", None, {"key": register}) as ending:
        known = await _found(process, register, known)
        ending.ok({"value": known.value, "version": known.versions})
    return known


async def _found(process: ClientProcess, register: str, known: Register) -> Register:
    """Follow a register's versions to the last one. Raises BrokerError."""
    while True:
        try:
            info = await process.client.topic(_version(register, known.versions))
        except TopicNotFound:
            return known
        known = Register(info.properties[OWNER], known.versions + 1)


def _version(register: str, number: int) -> TopicId:
    return TopicTarget(f"{register}-{number}").id


async def _finally(process: ClientProcess, register: str) -> None:
    """Get a register's final content. All attempts are one call in the history."""
    around = process.around
    deadline = around.clock.monotonic() + around.scale.final_s
    with suppress(BrokerError), process.asking("get", None, {"key": register}) as ending:
        known = await until_answered(
            around, deadline, lambda: _found(process, register, Register())
        )
        ending.ok({"value": known.value, "version": known.versions})

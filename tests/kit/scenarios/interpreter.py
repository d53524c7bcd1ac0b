"""Run the commands of a scenario on a simulated cluster.

A command is a coroutine function with a ``Story`` as first argument. The words of the line are its arguments in
order; ``name=value`` is an argument by name. It returns the lines that it prints. ``command`` registers it::

    @command("kill")
    async def kill(story: Story, node: str) -> Lines: ...

A last word ``&name`` starts the command in the background. ``join name`` waits for it, and prints its lines.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.client import Client
from broker.client.transaction_publisher import TransactionPublisher
from broker.errors import BrokerError
from broker.model import MessageId, TopicId
from broker.testing.simulation.cluster import SimCluster
from broker.testing.simulation.node import Machine
from broker.testing.simulation.trace import Trace
from broker.testing.simulation.world import in_world
from tests.kit.scenarios.script import Block

Lines = Sequence[str]
Command = Callable[..., Awaitable[Lines]]

SEED: Final = 1
DEADLINE_S: Final = 10.0
"""The default deadline of a client's call."""
CLIENTS: Final = "clients"
"""The machine of all clients."""
JOIN_S: Final = 120.0
"""The limit of a command in the background."""

COMMANDS: Final[dict[str, Command]] = {}


class ScenarioError(Exception):
    """A scenario has a command that can't be executed."""


def command(name: str) -> Callable[[Command], Command]:
    """Register a command."""

    def register(function: Command) -> Command:
        assert name not in COMMANDS, name
        COMMANDS[name] = function
        return function

    return register


@dataclass
class Story:
    """The shared state of one scenario's commands."""

    trace: Trace
    _cluster: SimCluster | None = None
    transactions: dict[str, TransactionPublisher] = field(default_factory=dict)
    last_seen: dict[str, MessageId] = field(default_factory=dict)
    """The last message id that a poll has shown, by topic."""
    mends: list[Callable[[], None]] = field(default_factory=list)
    """Functions that ``heal`` calls to end faults."""
    _clients: dict[tuple[str | None, float], Client] = field(default_factory=dict)
    _begun: dict[str, asyncio.Task[Lines]] = field(default_factory=dict)

    @property
    def cluster(self) -> SimCluster:
        """The cluster."""
        if self._cluster is None:
            raise ScenarioError("the first command is: cluster")
        return self._cluster

    @cluster.setter
    def cluster(self, made: SimCluster) -> None:
        if self._cluster is not None:
            raise ScenarioError("there is a cluster already")
        self._cluster = made

    def machine(self, node: str) -> Machine:
        """Return a node's machine by its number."""
        machines = self.cluster.machines
        if not node.isdigit() or int(node) >= len(machines):
            raise ScenarioError(f"there is no node {node}")
        return machines[int(node)]

    def client(self, via: str | None, deadline: str | None = None) -> Client:
        """Return a client; ``via``: it sends all requests to this node; default: to the leaders."""
        deadline_s = DEADLINE_S if deadline is None else seconds(deadline)
        client = self._clients.get((via, deadline_s))
        if client is None:
            url = None if via is None else self.machine(via).url
            client = self.cluster.client(CLIENTS, node=url, deadline_s=deadline_s)
            self._clients[via, deadline_s] = client
        return client

    def begin(self, name: str, work: Awaitable[Lines]) -> None:
        """Start a command in the background."""
        if name in self._begun:
            raise ScenarioError(f"&{name} has not been joined yet")
        self._begun[name] = asyncio.ensure_future(work)

    async def join(self, name: str) -> Lines:
        """Wait for a command in the background."""
        if name not in self._begun:
            raise ScenarioError(f"no command was started as &{name}")
        return await asyncio.wait_for(self._begun.pop(name), JOIN_S)

    async def end(self) -> None:
        """End all faults and stop all nodes. Raises ScenarioError: a command in the background was not joined."""
        for task in self._begun.values():
            task.cancel()
        if self._cluster is not None:
            self._cluster.heal()
            for client in self._clients.values():
                await client.close()
            for machine in self._cluster.machines:
                machine.kill()
        if self._begun:
            raise ScenarioError(f"not joined: {', '.join(self._begun)}")


def seconds(text: str) -> float:
    """Return a time such as ``10s``, ``200ms``, ``-1h``. Raises ScenarioError."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        number = text.removesuffix(unit)
        if number != text:
            try:
                return float(number) * factor
            except ValueError:
                break
    raise ScenarioError(f"{text} is no time such as 10s or 200ms")


def topic_id(name: str) -> TopicId:
    """Return a topic's id from its name; ``*name`` is one of the broker's own."""
    return TopicId("*", name[1:]) if name.startswith("*") else TopicId("default", name)


async def _carry_out(story: Story, line: str) -> Lines:
    words = shlex.split(line)
    background = words.pop()[1:] if words[-1].startswith("&") else None
    name = words.pop(0)
    if name not in COMMANDS:
        raise ScenarioError(f"there is no command {name}; there are {', '.join(sorted(COMMANDS))}")
    named = dict(word.split("=", 1) for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    function = COMMANDS[name]
    try:
        inspect.signature(function).bind(story, *plain, **named)
    except TypeError as error:
        raise ScenarioError(f"{line}: {error}") from None
    work = _answered(function(story, *plain, **named))
    if background is None:
        return await work
    story.begin(background, work)
    await asyncio.sleep(0)  # Start it before the next command.
    return ()


async def _answered(work: Awaitable[Lines]) -> Lines:
    """Return a command's lines; for an error its outcome and code."""
    try:
        return await work
    except BrokerError as error:
        return [f"{error.outcome}: {error.code}"]


@command("join")
async def join(story: Story, name: str, within: str | None = None) -> Lines:
    """Wait for a command in the background, and print its lines; ``within``: it must end in this time."""
    began_s = story.cluster.loop.time()
    lines = await story.join(name)
    took_s = story.cluster.loop.time() - began_s
    if within is not None and took_s > seconds(within):
        return [*lines, f"not within {within}"]
    return lines


async def tell(trace: Trace, blocks: Sequence[Block]) -> list[Block]:
    """Run a scenario; return its blocks with the printed lines."""
    story = Story(trace)
    finished = []
    try:
        for block in blocks:
            printed: list[str] = []
            for line in block.commands:
                try:
                    printed += await _carry_out(story, line)
                except ScenarioError as error:
                    raise ScenarioError(f"line {block.line}: {error}") from None
            finished.append(block._replace(expected=printed))
    finally:
        await story.end()
    return finished


def run(blocks: Sequence[Block]) -> list[Block]:
    """Run a scenario in a new simulated world; return its blocks with the printed lines. Raises ScenarioError."""
    return in_world(SEED, lambda _, trace: tell(trace, blocks))

"""A cluster in memory for tests of applications: it fails on command, and in virtual time.

::

    from broker.testing import Cluster, simulated

    @simulated(seed=1)
    async def test_that_nothing_is_missed():
        async with Cluster(nodes=3) as cluster:
            client = cluster.client()
            await client.create_topic("orders")
            leader = await cluster.leader("orders")
            cluster.kill(leader)
            await client.publish("orders", "one", idempotency_key="1")

Nodes and clients are the shipped ones. Network, storage, coordinator and time are simulated. ``simulated`` runs a test
in its own world, in which time passes only when all tasks wait. So a test that waits ten minutes takes almost no real
time. The same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, Unpack
from unittest import mock

from broker.client import Client
from broker.client.values import SettingOptions, TopicName
from broker.testing.simulation.cluster import SimCluster
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.network import CLIENTS
from broker.testing.simulation.node import Machine
from broker.testing.simulation.trace import Trace
from broker.testing.simulation.world import in_world

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

SETTLED_S: Final = 60.0
LASTS_S_MAX: Final = 7_200.0
ADVICE: Final = (
    "Use cluster.client() in place of a SyncClient, and replace the parts of the application that use threads or "
    "sockets; or test against a real broker, with the fixture broker_client."
)

Member = int | str


def simulated(
    seed: int = 1, *, lasts_s_max: float = LASTS_S_MAX
) -> Callable[[Callable[Parameters, Coroutine[Any, Any, Result]]], Callable[Parameters, Result]]:
    """Make an asynchronous test an ordinary function, which runs it in a simulated world of its own.

    Args:
        seed: The seed of the world. Runs with the same seed are the same.
        lasts_s_max: How much virtual time the test may take, seconds. Nodes have timers, so time alone would never end.

    Raises:
        Hang: the test waits for an event that can never come, or takes more virtual time. The text has the place.
        OutsideWorld: the test starts a thread or connects a socket. Both would go on in real time.
        TypeError: the test is not asynchronous, or ``simulated`` is without parentheses.
    """
    _check_no_test(seed)

    def decorate(
        test: Callable[Parameters, Coroutine[Any, Any, Result]],
    ) -> Callable[Parameters, Result]:
        @functools.wraps(test)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            async def main(_: SimLoop, __: Trace) -> Result:
                running = test(*args, **kwargs)
                _check_awaitable(running, test)
                return await running

            with _closed_world():
                return in_world(seed, main, lasts_s_max=lasts_s_max)

        return run

    return decorate


def _check_no_test(seed: object) -> None:
    if callable(seed):
        raise TypeError("Write the decorator with parentheses: @simulated()")


def _check_awaitable(running: object, test: object) -> None:
    if not inspect.isawaitable(running):
        name = getattr(test, "__qualname__", repr(test))
        raise TypeError(f"A simulated test is asynchronous: write async def {name}.")


@contextlib.contextmanager
def _closed_world() -> Iterator[None]:
    """Refuse what would leave the simulation. Threads that run already are not disturbed."""
    mine = threading.get_ident()

    def refused(real: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == mine:
                raise OutsideWorld(f"{what} leaves the simulated world. {ADVICE}")
            return real(*args, **kwargs)

        return call

    with contextlib.ExitStack() as patches:
        for owner, name, what in (
            (threading.Thread, "start", "A thread"),
            (socket.socket, "connect", "A real connection"),
            (socket.socket, "connect_ex", "A real connection"),
        ):
            call = refused(getattr(owner, name), what)
            patches.enter_context(mock.patch.object(owner, name, call))
        yield


class OutsideWorld(RuntimeError):
    """A simulated test did something in real time: started a thread, or connected a socket."""


class Cluster:
    """A cluster with nodes numbered from 0. Use it inside ``simulated``."""

    def __init__(self, nodes: int = 3, *, seed: int = 1) -> None:
        """Make a cluster of ``nodes`` nodes. There are no faults until you ask for them. ``seed`` sets the delays."""
        if not isinstance(asyncio.get_running_loop(), SimLoop):
            raise RuntimeError("A Cluster lives in virtual time: decorate with @simulated().")  # noqa: TRY004
        if nodes < 1:
            raise ValueError(f"A cluster has at least one node, not {nodes}.")
        self._cluster = SimCluster(nodes=nodes, seed=seed)
        self._clients: list[Client] = []

    async def __aenter__(self) -> Self:
        await self._cluster.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.heal()
        for client in self._clients:
            await client.close()
        for machine in self._cluster.machines:
            machine.kill()

    @property
    def urls(self) -> Sequence[str]:
        """The addresses of the nodes, for applications that make their own client."""
        return self._cluster.nodes

    def client(self, **settings: Unpack[SettingOptions]) -> Client:
        """Return a client that knows all nodes. The cluster closes it. ``settings`` are client settings by name."""
        client = self._cluster.client(f"client-{len(self._clients)}", **settings)
        self._clients.append(client)
        return client

    async def leader(self, topic: TopicName) -> int:
        """Return the number of the node that leads a topic. Raises BrokerError."""
        async with self._cluster.client("leader-query") as client:
            return self._cluster.nodes.index((await client.leader(topic)).url)

    # Faults.

    def kill(self, node: int) -> None:
        """End a node's process at once, in the middle of its work."""
        self._machine(node).kill()

    def start(self, node: int) -> None:
        """Start a node that was killed or stopped. ``settled`` waits until it serves."""
        self._machine(node).start()

    def stop(self, node: int) -> None:
        """Tell a node to stop: it hands its topics over, and finishes the requests in flight."""
        self._machine(node).terminate(again=False)

    def pause(self, node: int) -> None:
        """Pause a node: it answers nothing, and does not notice the pause."""
        self._machine(node).pause()

    def resume(self, node: int) -> None:
        """Resume a paused node."""
        self._machine(node).resume()

    def partition(self, *groups: Sequence[Member]) -> None:
        """Cut the network between all groups until ``heal``.

        A group has numbers of nodes, or the word ``"clients"``: all clients, also those of the application, and those
        that you make later. A node or client in no group still reaches all others.

        Raises:
            ValueError: there are fewer than two groups, a member is in two of them, or is no node.
        """
        names = [[self._name(member) for member in group] for group in groups]
        if len(groups) < 2:  # One group would cut nothing.
            raise ValueError("Name two groups or more: the network is cut between them.")
        every = [name for group in names for name in set(group)]
        if len(every) != len(set(every)):
            raise ValueError("A node, or the clients, can be in one group only.")
        for number, group in enumerate(names):
            for other in names[number + 1 :]:
                for one in group:
                    for two in other:
                        self._cluster.network.cut(one, two)
                        self._cluster.network.cut(two, one)

    def _name(self, member: Member) -> str:
        if member == CLIENTS:
            return CLIENTS
        return self._machine(member).name

    def _machine(self, node: Member) -> Machine:
        """Return a node by its number. Raises ValueError: there is none."""
        count = len(self._cluster.machines)
        if node not in range(count):
            raise ValueError(
                f"There is no node {node!r}. The nodes are numbered from 0 to {count - 1}."
            )
        return self._cluster.machines[int(node)]

    def lose_coordinator(self) -> None:
        """Stop the simulated ZooKeeper until ``heal``: leaders go on, and takeovers wait."""
        if not self._cluster.is_out:
            self._cluster.is_out = True
            self._cluster.coordination.outage()

    def heal(self) -> None:
        """End all faults; every node starts again, or resumes."""
        self._cluster.heal()

    async def settled(self) -> None:
        """Wait until every node serves. Raises TimeoutError after a minute of virtual time."""
        async with asyncio.timeout(SETTLED_S):
            for machine in self._cluster.machines:
                await machine.served(SETTLED_S)

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time pass. Raises ValueError: ``seconds`` is negative, or no number."""
        if not seconds >= 0:
            raise ValueError(f"seconds is a number of at least 0, not {seconds!r}.")
        await asyncio.sleep(seconds)

"""The network between simulated machines: addresses, listeners, delays and faults.

Each machine has a name and an address. A **cut** stops the bytes from one machine to another, in one direction. A
partition is several cuts. A **slow** way has more delay, and loses segments, which are sent again later::

    network.cut("node-0", "node-1")          cut one way
    network.cut(CLIENTS, "node-1")           cut the ways of all clients, also of those that come later
    network.strand("node-0", "node-1")       cut one way, but only on the present connections
    network.heal()                           end all faults

A machine that is ``down`` answers nothing. A machine whose process is dead refuses connections and resets old ones.
Each connection has its own generator of random numbers. So its draws do not depend on other connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextvars import Context, ContextVar
from random import Random
from typing import Final

from broker.testing.simulation.connection_end import End
from broker.testing.simulation.hosts import RUNNING, HostLoop, SimulatedProcess
from broker.testing.simulation.layers import Layers
from broker.testing.simulation.sockets import Address, ListeningSocket

LATENCY_S: Final = 0.0005
JITTER_S: Final = 0.001
RETRANSMIT_S: Final = 0.2
SYN_AGAIN_S: Final = 1.0
PORT_FIRST: Final = 32_768

Machine = str
Way = tuple[Machine, Machine]

CLIENTS: Final = "clients"
"""All machines that have no address of their own."""

CALLER: ContextVar[Machine] = ContextVar("CALLER", default="outside")
"""The machine of a caller that is no simulated process, such as a client."""


class Network:
    """The machines by their addresses, and the faults between them."""

    def __init__(self, loop: HostLoop, seed: int | str) -> None:
        """Begin without machines and faults."""
        self.loop = loop
        self.context = Context()
        self.happened: Counter[str] = Counter()
        self._seed = seed
        self._connections = 0
        self._addresses: dict[str, Machine] = {}
        self._nodes: set[Machine] = set()
        self._listening: dict[Address, ListeningSocket] = {}
        self._ends: dict[End, None] = {}
        self._cuts: Counter[Way] = Counter()
        self._slow: dict[Way, Layers[tuple[float, float]]] = {}
        self._down: dict[Machine, None] = {}
        self._stalled: dict[End, None] = {}
        self._stranded: dict[End, None] = {}

    def name(self, address: str, machine: Machine) -> None:
        """Give a machine its address. A machine without one is a client."""
        self._addresses[address] = machine
        self._nodes.add(machine)

    def machine_of(self, address: str) -> Machine:
        """Return the machine of an address. An address without a machine stands for a machine of that name."""
        return self._addresses.get(address, address)

    @contextlib.contextmanager
    def calling_from(self, machine: Machine) -> Generator[None]:
        """Let connections that are opened inside the block come from ``machine``."""
        token = CALLER.set(machine)
        try:
            yield
        finally:
            CALLER.reset(token)

    # Faults.

    def cut(self, source: Machine, target: Machine) -> None:
        """Stop all bytes from ``source`` to ``target``. Cuts add up."""
        self._cuts[source, target] += 1

    def mend(self, source: Machine, target: Machine) -> None:
        """Take one cut from ``source`` to ``target`` back."""
        self._cuts[source, target] -= 1
        if self._cuts[source, target] <= 0:
            del self._cuts[source, target]
        self._try_again()

    def slow(
        self, source: Machine, target: Machine, delay_s: float, loss: float
    ) -> Callable[[], None]:
        """Add a mean delay to one way, and lose segments with probability ``loss``. They are sent again.

        It lasts until the caller calls the returned function. A later call for the same way overrides it.
        """
        return self._slow.setdefault((source, target), Layers()).add((delay_s, loss))

    def slowness(self, source: Machine, target: Machine) -> tuple[float, float] | None:
        """Return the mean delay and the loss on one way; None: the way is not slow."""
        layers = self._slow.get((source, target))
        return None if layers is None else layers.top

    def heal(self) -> None:
        """Take all cuts and slowness back, and deliver the stranded bytes."""
        self._cuts.clear()
        self._slow.clear()
        self._stranded.clear()
        self._try_again()

    def strand(self, source: Machine, target: Machine) -> list[End]:
        """Stop all bytes from ``source`` to ``target`` on the present connections.

        Later connections are not affected. Return the ends at ``target``, for ``break_off`` and ``land``.
        """
        ends = [
            end
            for end in self._ends
            if (self._of(end.peer), self._of(end)) == (source, target) and not end.is_lost
        ]
        self._stranded.update(dict.fromkeys(ends))
        return ends

    def break_off(self, ends: Iterable[End]) -> None:
        """Reset the other side of stranded connections; these ends don't notice it."""
        for end in ends:
            end.peer.reset_here()

    def land(self, ends: Iterable[End]) -> None:
        """Deliver stranded bytes, even if their sender has gone."""
        for end in ends:
            self._stranded.pop(end, None)
        self._try_again()

    def cut_ways(self) -> list[Way]:
        """Return the ways that are cut."""
        return list(self._cuts)

    def reset_some(self, machine: Machine, chance: Random) -> int:
        """Reset about half of a machine's connections; return their number."""
        ends = [end for end in self._ends if self._of(end) == machine and not end.is_lost]
        chosen = [end for end in ends if chance.random() < 0.5]
        for end in chosen:
            end.reset_here()
            end.peer.reset_here()
        return len(chosen)

    def stop_process(self, process: SimulatedProcess, *, silently: bool = False) -> None:
        """Close all listeners and connections of a process, as the kernel does when a process dies.

        ``silently``: the machine is down, too, and answers nothing until ``start_machine``.
        """
        for address, listening in list(self._listening.items()):
            if listening.context.get(RUNNING) is process:
                del self._listening[address]
                while listening.queue:
                    listening.queue.popleft().go(silently=silently)
                listening.close()
        for end in [end for end in self._ends if end.context.get(RUNNING) is process]:
            end.go(silently=silently)
        if silently:
            self._down[process.machine] = None

    def start_machine(self, machine: Machine) -> None:
        """Let a machine that was down answer again."""
        self._down.pop(machine, None)

    def close(self) -> None:
        """Close the real descriptors of the listeners."""
        for listening in self._listening.values():
            listening.close()

    # Calls from connections.

    def _of(self, end: End) -> Machine:
        return self.machine_of(end.own_address[0])

    def is_cut(self, source: End, target: End) -> bool:
        """Return whether bytes can't get from one end to the other."""
        if not self._cuts and not self._down and not self._stranded:
            return False
        return target in self._stranded or self._is_cut(self._of(source), self._of(target))

    def _is_cut(self, source: Machine, target: Machine) -> bool:
        if source in self._down or target in self._down:
            return True
        ways = ((source, target), (self._kind(source), target), (source, self._kind(target)))
        return any(way in self._cuts for way in ways)

    def _kind(self, machine: Machine) -> Machine:
        """Return the name that stands for a machine in a cut."""
        return machine if machine in self._nodes else CLIENTS

    def delay_s(self, source: End, target: End, chance: Random) -> float:
        """Return the delay of a segment."""
        delay_s = LATENCY_S + chance.random() * JITTER_S
        slow = self.slowness(self._of(source), self._of(target)) if self._slow else None
        if slow is not None:
            mean_s, loss = slow
            delay_s += chance.expovariate(1 / mean_s) if mean_s else 0.0
            again_s = RETRANSMIT_S
            while chance.random() < loss and again_s < 5:
                self.happened["segments_lost"] += 1
                delay_s += again_s
                again_s *= 2
        return delay_s

    def stall(self, end: End) -> None:
        """Hold the bytes that have arrived at ``end`` until the cut has healed."""
        self._stalled[end] = None
        self.happened["stalled"] += 1

    def _try_again(self) -> None:
        stalled, self._stalled = self._stalled, {}
        for number, end in enumerate(stalled):
            delay_s = RETRANSMIT_S * (1 + number % 7 / 7)
            self.loop.call_later(delay_s, end.look, context=end.context)

    def forget(self, end: End) -> None:
        """Forget an end that has closed."""
        self._ends.pop(end, None)
        self._stranded.pop(end, None)

    # Connecting.

    def listen(self, host: str, port: int) -> ListeningSocket:
        """Listen at an address for the calling process. Raises OSError."""
        if (host, port) in self._listening:
            raise OSError(98, f"the address {host}:{port} is in use")
        process = RUNNING.get()
        context = self.context if process is None else process.context
        listening = ListeningSocket((host, port), context.copy())
        self._listening[host, port] = listening
        return listening

    def unlisten(self, listening: ListeningSocket) -> None:
        """Stop listening at an address."""
        if self._listening.get(listening.getsockname()) is listening:
            del self._listening[listening.getsockname()]
        listening.close()

    def unname(self, descriptor: int) -> bool:
        """Hide a listener from its server; return whether there was one."""
        for listening in self._listening.values():
            if listening.fileno() == descriptor:
                listening.is_named = False
                return True
        return False

    async def connect(self, target: Address) -> End:
        """Connect from the caller's machine, and return an end without a protocol. Raises OSError."""
        process = RUNNING.get()
        source = CALLER.get() if process is None else process.machine
        self._connections += 1
        number = self._connections
        chance = Random(f"{self._seed}/{number}/dial")
        again_s = SYN_AGAIN_S
        machine = self.machine_of(target[0])
        while self._is_cut(source, machine) or self._is_cut(machine, source):
            await asyncio.sleep(again_s)
            again_s *= 2
        await asyncio.sleep(2 * (LATENCY_S + chance.random() * JITTER_S))
        listening = self._listening.get(target)
        if listening is None:
            raise ConnectionRefusedError(111, f"no process listens at {target[0]}:{target[1]}")
        context = self.context if process is None else process.context
        own = (self._address_of(source), PORT_FIRST + number % 28_000)
        here = End(self, own, target, context.copy(), f"{self._seed}/{number}/here")
        there = End(self, target, own, listening.context, f"{self._seed}/{number}/there")
        here.peer, there.peer = there, here
        self._ends[here] = self._ends[there] = None
        listening.connected(there)
        return here

    def _address_of(self, machine: Machine) -> str:
        for address, known in self._addresses.items():
            if known == machine:
                return address
        self._addresses[machine] = machine
        return machine

"""The port to coordination: which nodes live, and locks that end with a session.

Nothing here decides whose writes count; the head of a log's last page does that, in storage. Coordination says who
*should* lead, so that two nodes do not take a log from each other in turns. Whatever it says may be late
or wrong, and no message is lost by that::

    Membership   the nodes that live, this one among them, as last heard of
    Lease        a lock on a resource (slot/17, pin/ns:topic); ends with its session, never re-used
    hint         "read these records again", told to all; may be lost, so they are read now and then anyway

Everything that is told (changes, hints, the end of a lease) is told on the event loop.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

INSTANCES_MAX = 256


class NodeInfo(NamedTuple):
    """What a node tells the others. ``incarnation`` is fresh with every start and owns its holds."""

    instance: int
    incarnation: str
    url: str
    version: str
    protocol: int
    draining: bool = False


class Members(NamedTuple):
    """The nodes that live, by instance id. ``version`` rises with each change that this node sees."""

    version: int
    nodes: Mapping[int, NodeInfo]


class Contact(enum.Enum):
    """Whether the coordinator can be asked just now."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No contact; the session may live. Nothing new is taken, what is held goes on."""
    LOST = "lost"
    """The session is over, and with it every lease."""


class InstanceTaken(Exception):
    """Another live node has the instance id. ``holder`` says which."""

    def __init__(self, holder: NodeInfo) -> None:
        """Keep who has it."""
        super().__init__(
            f"Instance id {holder.instance} is held by the node at {holder.url}, which lives."
        )
        self.holder = holder


class Lease(Protocol):
    """A lock that was acquired once, under one session. A new one is made for every attempt."""

    @property
    def resource(self) -> str:
        """What is held."""

    @property
    def session(self) -> int:
        """The session that holds it."""

    @property
    def taken_at(self) -> float:
        """When it was acquired, in monotonic seconds."""

    @property
    def valid(self) -> bool:
        """Whether nothing is known against it: not released, its session not known to be over."""

    @property
    def lost(self) -> asyncio.Future[None]:
        """Done once it is not valid any more."""

    async def verify(self) -> bool:
        """Ask the coordinator whether this session still holds it.

        Raises:
            Unavailable: it can't be asked just now.
        """

    async def release(self) -> None:
        """Let go; whoever waits for it gets it. Without contact it goes with the session."""


class Membership(Protocol):
    """This node among the others. A session that was lost is replaced, under the same incarnation."""

    @property
    def me(self) -> NodeInfo:
        """This node as it was announced last."""

    @property
    def members(self) -> Members:
        """The nodes that live, as last heard of; without contact those of before."""

    @property
    def session(self) -> int:
        """The session by which this node is a member, as last heard of; 0: it is none."""

    @property
    def stopped(self) -> asyncio.Future[str]:
        """Done, with the reason, once another incarnation has this node's instance id."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever ``members`` has changed."""

    async def announce(self, *, draining: bool) -> None:
        """Tell the others whether this node lets its topics go."""

    async def leave(self) -> None:
        """Leave: the others see this node go at once. Without contact it goes with the session."""


class Coordinator(Protocol):
    """One session with the coordinator. Implementations: memory, ZooKeeper."""

    @property
    def contact(self) -> Contact:
        """Whether it can be asked just now."""

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of ``contact``."""

    async def nodes(self) -> Mapping[int, NodeInfo]:
        """Return the nodes that live, asked now.

        Raises:
            Unavailable: the coordinator can't be asked.
        """

    async def join(self, me: NodeInfo) -> Membership:
        """Become a member under ``me.instance``.

        An earlier self, one with the same URL, is put aside: this process listens there now.

        Raises:
            InstanceTaken: another node has the id and lives.
            Unavailable: the coordinator can't be asked.
        """

    async def hold(self, resource: str, deadline: float) -> Lease:
        """Wait for a lock, fairly, and return it.

        Raises:
            NoLeader: the deadline (monotonic seconds) passed, or there is no contact until then.
        """

    async def hint(self, what: str) -> None:
        """Tell all nodes to read ``what`` again. One that can't be told is left out in silence."""

    def on_hint(self, what: str, told: Callable[[], None]) -> None:
        """Call ``told`` after each hint, after contact was lost and found, and when listening begins."""

    async def close(self) -> None:
        """End the session: leases and membership end with it, at once if there is contact."""

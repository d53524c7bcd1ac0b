"""Define the port to coordination: the live nodes, and locks that end with a session.

Coordination does not decide which node's writes count: the head of a log's last page does, in storage. Coordination
says which node *should* lead, so that two nodes do not take a log from each other in turns. Its answers may be late or
wrong, and that loses no message::

    Membership   the live nodes, with this one, as last known
    Lease        a lock on a resource (slot/17, pin/ns:topic); it ends with its session, and is never re-used
    hint         "read these records again", sent to all nodes; it may be lost, so nodes also read them regularly

All notices (changes, hints, the end of a lease) arrive on the event loop.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

INSTANCES_MAX = 256


class NodeInfo(NamedTuple):
    """The information that a node gives to the others.

    ``incarnation`` is new with every start. A log's head names the incarnation that holds the log.
    """

    instance: int
    incarnation: str
    url: str
    version: str
    protocol: int
    draining: bool = False


class Members(NamedTuple):
    """The live nodes, by instance id. ``version`` rises with each change that this node sees."""

    version: int
    nodes: Mapping[int, NodeInfo]


class Contact(enum.Enum):
    """The state of contact with the coordinator."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """There is no contact, but the session may live. The node takes no new leases, and keeps its leases."""
    LOST = "lost"
    """The session is over, and so is every lease."""


class InstanceTaken(Exception):
    """Another live node, ``holder``, has the instance id."""

    def __init__(self, holder: NodeInfo) -> None:
        """Keep the node that has the id."""
        super().__init__(f"Instance id {holder.instance} is held by the live node at {holder.url}.")
        self.holder = holder


class Lease(Protocol):
    """A lock that was acquired once, under one session. Every attempt makes a new one."""

    @property
    def resource(self) -> str:
        """Return the name of the locked resource."""

    @property
    def session(self) -> int:
        """Return the session that holds the lock."""

    @property
    def valid(self) -> bool:
        """Return whether the lock was not released, and its session is not known to be over."""

    @property
    def lost(self) -> asyncio.Future[None]:
        """Return a future that is done once the lock is not valid any more."""

    async def verify(self) -> bool:
        """Ask the coordinator whether this session still holds the lock.

        Raises:
            Unavailable: the coordinator does not answer now.
        """

    async def release(self) -> None:
        """Release the lock; the next waiting node gets it. Without contact, it ends with the session."""


class Membership(Protocol):
    """This node among the others. A lost session is replaced, under the same incarnation."""

    @property
    def me(self) -> NodeInfo:
        """Return this node's information, as announced last."""

    @property
    def members(self) -> Members:
        """Return the live nodes, as last known; without contact they stay the same."""

    @property
    def session(self) -> int:
        """Return the session under which this node is a member, as last known; 0 if it is not a member."""

    @property
    def stopped(self) -> asyncio.Future[str]:
        """Return a future that is done, with the reason, once another incarnation has this node's instance id."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever ``members`` has changed."""

    async def announce(self, *, draining: bool) -> None:
        """Tell the others whether this node is draining."""

    async def leave(self) -> None:
        """Leave: the others see that at once. Without contact, membership ends with the session."""


class Coordinator(Protocol):
    """One session with the coordinator. Implementations: memory, ZooKeeper."""

    @property
    def contact(self) -> Contact:
        """Return the state of contact."""

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of ``contact``."""

    async def nodes(self) -> Mapping[int, NodeInfo]:
        """Read and return the live nodes.

        Raises:
            Unavailable: the coordinator does not answer.
        """

    async def join(self, me: NodeInfo) -> Membership:
        """Become a member under ``me.instance``.

        This replaces an earlier incarnation with the same URL: this process listens at that address now.

        Raises:
            InstanceTaken: another live node has the id.
            Unavailable: the coordinator does not answer.
        """

    async def acquire(self, resource: str, deadline: float) -> Lease:
        """Wait for a lock, fairly, and return it.

        Raises:
            NoLeader: the deadline (monotonic seconds) passed, perhaps without contact until then.
        """

    async def hint(self, name: str) -> None:
        """Tell all nodes to read the records of the hint ``name`` again. A node without contact does not get the hint.

        Without contact on this side, the hint is sent when contact is back.
        """

    def on_hint(self, name: str, hinted: Callable[[], None]) -> None:
        """Call ``hinted`` after each hint, when contact is back after a loss, and when listening begins."""

    async def close(self) -> None:
        """End the session: leases and membership end with it, at once if there is contact."""

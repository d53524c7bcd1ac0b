"""Coordinate over a tree of nodes: members, locks and hints under one session.

The tree replaces a lost session by a new one. When this module learns that a session is over, it ends the session's
leases. Under the next session it renews the node's membership and the watches. Meanwhile ``acquire`` waits for contact,
``nodes`` and ``join`` raise Unavailable, and ``hint`` returns at once: the hint is kept, and sent when contact is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from broker.clock import Clock
from broker.coordination.locks import Locks
from broker.coordination.members import TreeMembership, encode, live_nodes
from broker.coordination.ports import Contact, Lease, Membership, NodeInfo
from broker.coordination.tree import NoNode, Reach, Tree, Unanswered
from broker.errors import Unavailable


class TreeCoordinator:
    """One node's session with a tree. Use MemoryCoordination.session or ``zookeeper.connect``."""

    def __init__(self, tree: Tree, clock: Clock, *, root: str, name: str) -> None:
        """Keep all tree nodes below ``root``. No other session has this ``name``."""
        self.tree = tree
        self._reach = Reach(tree, clock, root)
        self._locks = Locks(self._reach, name)
        self._membership: TreeMembership | None = None
        self._listeners: list[Callable[[Contact], None]] = []
        self._unsent: set[str] = set()
        tree.on_contact(self._contact_changed)

    @property
    def contact(self) -> Contact:
        """Return the state of contact with the coordinator."""
        return self.tree.contact

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of ``contact``."""
        self._listeners.append(changed)

    def _contact_changed(self, contact: Contact) -> None:
        if contact is not Contact.SUSPENDED:
            self._locks.end_sessions(but=self.tree.session)
        if contact is Contact.CONNECTED:
            if self._membership is not None:
                self._membership.look_again()
            for name in sorted(self._unsent):
                self._reach.begin(self.hint(name))
        for changed in self._listeners:
            changed(contact)

    async def nodes(self) -> Mapping[int, NodeInfo]:
        """Read and return the live nodes."""
        return await live_nodes(self._reach)

    async def join(self, me: NodeInfo) -> Membership:
        """Become a member, and replace an earlier incarnation with the same URL."""
        assert self._membership is None or self._membership.over, "one session has one member"
        membership = TreeMembership(self._reach, me)
        try:
            await membership.enter()
        except (NoNode, Unanswered) as error:
            raise Unavailable(
                "The coordinator does not answer, so this node has not joined."
            ) from error
        self._locks.holder = encode(me)
        self._membership = membership
        return membership

    async def acquire(self, resource: str, deadline: float) -> Lease:
        """Wait for a lock, fairly, and return it."""
        return await self._locks.acquire(resource, deadline)

    async def hint(self, name: str) -> None:
        """Send the hint ``name`` to all nodes; without contact, send it when contact is back."""
        self._unsent.discard(name)
        try:
            await self._touch(name)
        except (NoNode, Unanswered):
            self._unsent.add(name)

    async def _touch(self, name: str) -> None:
        path = self._hint_path(name)
        try:
            await self.tree.put(path, b"")
        except NoNode:
            await self._reach.make_folder(path)

    def on_hint(self, name: str, hinted: Callable[[], None]) -> None:
        """Call ``hinted`` after each hint, when contact is back, and when listening begins."""
        self._reach.begin(self._listen(self._hint_path(name), hinted))

    async def _listen(self, path: str, hinted: Callable[[], None]) -> None:
        while True:
            await self._reach.contact()
            changed = asyncio.Event()
            try:
                if await self.tree.get(path, changed.set) is None:
                    await self._reach.make_folder(path)
                    continue
            except Unanswered:
                await self._reach.pause()
                continue
            hinted()
            await changed.wait()

    def _hint_path(self, name: str) -> str:
        return f"{self._reach.root}/hints/{name}"

    async def close(self) -> None:
        """End the session."""
        await self._reach.close()
        await self.tree.close()
        self._locks.end_sessions(but=0)

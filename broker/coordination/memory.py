"""Coordinate in one process: the tree of a node alone, or of many simulated brokers, with faults.

A node alone has the only session. No fault ever comes, so its locks are free and its calls are answered in the next
rounds of the event loop.

The tree behaves like ZooKeeper's. Sessions own ephemeral nodes. A session ends by the *servers'* clock, and the client
learns of it late. Watches fire once. An answer can be lost after the request was done. The recipes above the tree are
those of production. All time comes from the injected clock and the running loop, and names and numbers are counted. So
under a virtual clock, each run with one seed is the same::

    world = MemoryCoordination(clock)
    a, b = world.session(), world.session()       each a Coordinator, one per node
    world.suspend(a)                              a gets no answers; its session ends after the time-out
    world.resume(a)                               ... and a learns of that only now
    world.expire(a, noticed_after_s=1.0)          a's session ends early, and a believes in it for 1 s
    world.crash(a)                                a is gone; its session lives until its time-out
    world.deafen(a); world.listen(a)              a is paused: it gets no notices until it continues
    world.vanish(a)                               as crash, but a does no step of its own
    world.outage(); world.recover()               no node is served; sessions wait, as without a quorum
    world.wipe()                                  all data is lost, with all sessions
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from broker.clock import Clock
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory_nodes import TreeNodes, Watched
from broker.coordination.ports import Contact
from broker.coordination.tree import Changed, Created, Stat, Unanswered, Watch

Result = TypeVar("Result")

SESSION_TIMEOUT_S = 4.0


class MemoryTree:
    """One node's connection to the tree in memory."""

    def __init__(self, world: MemoryCoordination) -> None:
        """Begin with contact and a session."""
        self._world = world
        self._listeners: list[Callable[[Contact], None]] = []
        self.contact = Contact.CONNECTED
        self.session = world.nodes.begin_session()
        self.losses = 0
        """The number of losses of contact: a request sent before a loss gets no answer after it."""
        self.is_deaf = False
        """True if its node is paused."""
        self.is_cut = False
        """True if only this node was cut off, not all of them."""
        self.context = copy_context()
        """The context of the task that began the session. Notices to this node run in it."""

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of contact."""
        self._listeners.append(changed)

    def move(self, contact: Contact) -> None:
        """Change the state of contact, and call every watch."""
        if contact is self.contact or self.is_deaf:
            return
        if contact is Contact.LOST:
            self.session = 0
        self.contact = contact
        if contact is not Contact.CONNECTED:
            self.losses += 1
        self.context.copy().run(self._tell, contact)

    def _tell(self, contact: Contact) -> None:
        for watched in self._world.nodes.forget_watches(self):
            watched.fire()
        for changed in list(self._listeners):
            changed(contact)

    def lose_session(self) -> None:
        """Tell the node that its session is over, and begin another session."""
        self.move(Contact.SUSPENDED)
        self.move(Contact.LOST)
        self.session = self._world.nodes.begin_session()
        self.move(Contact.CONNECTED)

    async def _ask(self, do: Callable[[], Result]) -> Result:
        losses = self.losses
        self._must_be_in_contact(losses)
        await self._world.travel()
        self._must_be_in_contact(losses)
        if self.session not in self._world.nodes.sessions:
            self.lose_session()
            raise Unanswered("the session was over")
        result = do()
        await self._world.travel()
        self._must_be_in_contact(losses)
        return result

    def _must_be_in_contact(self, losses: int) -> None:
        if self.contact is not Contact.CONNECTED or self.losses != losses:
            raise Unanswered("no contact")

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        """Make a node."""

        def do() -> Created:
            owner = self.session if ephemeral else 0
            made = self._world.nodes.create(path, data, owner, sequential=sequential)
            return Created(made, owner)

        return await self._ask(do)

    async def replace(self, path: str, version: int, data: bytes) -> None:
        """Remove a node and make an ephemeral one there."""

        def do() -> None:
            if self._world.nodes.at(path).version != version:
                raise Changed(path)
            self._world.nodes.delete(path)
            self._world.nodes.create(path, data, self.session, sequential=False)

        await self._ask(do)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
        """Return a node and watch it."""
        watched = None if watch is None else Watched(self, watch)

        def do() -> tuple[bytes, Stat] | None:
            node = self._world.nodes.get(path)
            if node is None:
                return None
            self._world.nodes.watch("data", path, watched)
            return node.data, node.stat

        return await self._ask(do)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of a node's children and watch them."""
        watched = None if watch is None else Watched(self, watch)

        def do() -> list[str]:
            names = list(self._world.nodes.at(path).children)
            self._world.nodes.watch("children", path, watched)
            return names

        return await self._ask(do)

    async def put(self, path: str, data: bytes) -> None:
        """Set a node's data."""
        await self._ask(lambda: self._world.nodes.put(path, data))

    async def delete(self, path: str) -> None:
        """Remove a node."""
        await self._ask(lambda: self._world.nodes.delete(path))

    async def sync(self) -> None:
        """Make one round trip: there is only one server, so its answers are never stale."""
        await self._ask(lambda: None)

    async def close(self) -> None:
        """End the session; without contact, it ends by the servers' clock."""
        if self.contact is Contact.CONNECTED:
            self._world.nodes.end_session(self.session)
        else:
            self._world.end_in_time(self.session)
        self._world.forget(self)
        self.move(Contact.LOST)


class MemoryCoordination:
    """The servers that the sessions share, with their faults. All times are in seconds of the loop.

    ``delay_s`` is the travel time of a request, and of its answer. ``notification_delay_s`` is the delay of a watch. A
    session ends after ``session_timeout_s`` without contact.
    """

    def __init__(self, clock: Clock, *, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        """Start empty."""
        self.clock = clock
        self.session_timeout_s = session_timeout_s
        self.delay_s = 0.0
        self.notification_delay_s = 0.0
        self.nodes = TreeNodes(self._notify)
        self._trees: list[MemoryTree] = []
        self._sessions = 0
        self._ends: dict[int, asyncio.TimerHandle] = {}
        self._out: list[MemoryTree] | None = None
        self._context = copy_context()
        """The servers' context: their later steps don't depend on the node that caused them."""

    def session(self) -> TreeCoordinator:
        """Return a new node's session, in contact."""
        tree = MemoryTree(self)
        self._trees.append(tree)
        self._sessions += 1
        node = TreeCoordinator(tree, self.clock, root="/broker", name=f"m{self._sessions}")
        if self._out is not None:
            tree.move(Contact.SUSPENDED)
            self._out.append(tree)
        return node

    # Faults of one node.

    def suspend(self, node: TreeCoordinator, *, session_ends_after_s: float | None = None) -> None:
        """Cut a node off. Its session ends after the time-out, or after ``session_ends_after_s``."""
        tree = self._tree_of(node)
        tree.is_cut = True
        tree.move(Contact.SUSPENDED)
        self._end_later(tree.session, session_ends_after_s)

    def resume(self, node: TreeCoordinator) -> None:
        """Give a node contact again. If its session is over, it learns that now."""
        tree = self._tree_of(node)
        tree.is_cut = False
        if not tree.is_deaf:  # Else it learns that when it continues.
            self._reconnect(tree)

    def expire(self, node: TreeCoordinator, *, noticed_after_s: float = 0.0) -> None:
        """End a node's session now. The node learns that later, or with its next request."""
        tree = self._tree_of(node)
        session = tree.session
        self.nodes.end_session(session)
        asyncio.get_running_loop().call_later(noticed_after_s, self._notice, tree, session)

    async def crash(
        self, node: TreeCoordinator, *, session_ends_after_s: float | None = None
    ) -> None:
        """Remove a node without a notice to the servers. Its session ends as in ``suspend``."""
        tree = self._tree_of(node)
        self.forget(tree)
        self._end_later(tree.session, session_ends_after_s)
        tree.move(Contact.SUSPENDED)
        await node.close()

    def deafen(self, node: TreeCoordinator) -> None:
        """Pause a node. It gets no notices, and its session ends after the time-out."""
        tree = self._tree_of(node)
        tree.is_deaf = True
        if tree.contact is Contact.CONNECTED:
            self._end_later(tree.session, None)

    def listen(self, node: TreeCoordinator) -> None:
        """Continue a paused node. It gets the missed notices now."""
        tree = self._tree_of(node)
        tree.is_deaf = False
        if tree.is_cut or self._out is not None:
            tree.move(Contact.SUSPENDED)
        if not tree.is_cut and (self._out is None or tree not in self._out):
            self._reconnect(tree)

    def vanish(self, node: TreeCoordinator, *, session_ends_after_s: float | None = None) -> None:
        """Remove a node without a step of its own. Its session ends as in ``suspend``."""
        tree = self._tree_of(node)
        self.forget(tree)
        self._end_later(tree.session, session_ends_after_s)
        self.nodes.forget_watches(tree)
        tree.is_deaf = True

    # Faults of all nodes.

    def outage(self) -> None:
        """Serve no node. The sessions of these nodes don't end meanwhile: there is no server to end them."""
        self._out = [
            tree for tree in self._trees if tree.contact is Contact.CONNECTED and not tree.is_deaf
        ]
        for tree in self._out:
            tree.move(Contact.SUSPENDED)

    def recover(self) -> None:
        """Serve the nodes again that the outage cut off."""
        out, self._out = self._out or [], None
        for tree in out:
            if tree in self._trees and not tree.is_deaf:
                self._reconnect(tree)
            elif tree in self._trees:
                self._end_later(tree.session, None)

    def wipe(self) -> None:
        """Lose all data. Nodes in contact learn at once that their sessions are over."""
        self.nodes.wipe()
        for tree in list(self._trees):
            if tree.contact is Contact.CONNECTED and not tree.is_deaf:
                tree.lose_session()

    # Calls from the trees.

    async def travel(self) -> None:
        """Wait for the travel time of a request or an answer."""
        await self.clock.sleep(self.delay_s)

    def forget(self, tree: MemoryTree) -> None:
        """Remove a tree from the world."""
        if tree in self._trees:
            self._trees.remove(tree)

    def end_in_time(self, session: int) -> None:
        """End a session after the time-out, if its end is not scheduled already."""
        if session not in self._ends:
            self._end_later(session, None)

    def _tree_of(self, node: TreeCoordinator) -> MemoryTree:
        assert isinstance(node.tree, MemoryTree)
        return node.tree

    def _notify(self, watched: Watched) -> None:
        # The watch runs in the context of the watching node, not of the node that made the change.
        loop = asyncio.get_running_loop()
        loop.call_later(self.notification_delay_s, watched.fire, context=watched.tree.context)

    def _end_later(self, session: int, after_s: float | None) -> None:
        if not session:
            return  # The node knows already that it has no session.
        after_s = self.session_timeout_s if after_s is None else after_s
        loop = asyncio.get_running_loop()
        self._ends[session] = loop.call_later(
            after_s, self.nodes.end_session, session, context=self._context
        )

    def _reconnect(self, tree: MemoryTree) -> None:
        if self._out is not None:
            self._out.append(tree)
            return
        ending = self._ends.pop(tree.session, None)
        if ending is not None:
            ending.cancel()
        if tree.session in self.nodes.sessions:
            tree.move(Contact.CONNECTED)
        else:
            tree.lose_session()

    def _notice(self, tree: MemoryTree, session: int) -> None:
        is_told = tree.contact is Contact.CONNECTED and not tree.is_deaf
        if tree.session == session and is_told:
            tree.lose_session()

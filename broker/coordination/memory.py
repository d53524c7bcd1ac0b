"""Coordination in one process: a tree of nodes for many simulated brokers, and what can go wrong with it.

The tree behaves as ZooKeeper's does: sessions own ephemeral nodes, a session ends by the *servers'* clock
and the client hears of it late, watches fire once, an answer can be lost after it was done. The recipes
above it are those of production. Time is the injected clock's and the running loop's alone, names and
numbers are counted, so under a virtual clock a run with one seed is the same every time::

    world = MemoryCoordination(clock)
    a, b = world.session(), world.session()       each a Coordinator, one per node
    world.suspend(a)                              a hears nothing; its session ends after the time-out
    world.resume(a)                               ... and only now does it learn that
    world.expire(a, noticed_after_s=1.0)          its session ends early, and it believes in it for 1 s
    world.crash(a)                                the node is gone; its session lives on for a while
    world.deafen(a); world.listen(a)              a stands still: it is told nothing until it goes on
    world.vanish(a)                               as crash, but not a step of a's own is done
    world.outage(); world.recover()               nobody is served; sessions wait, as without a quorum
    world.wipe()                                  everything is forgotten, all sessions with it
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
        """How often contact was lost: a question asked before a loss is not answered after it."""
        self.is_deaf = False
        """Whether its node stands still."""
        self.is_cut = False
        """Whether it was cut off by itself, rather than with all others."""
        self.context = copy_context()
        """In whose name this node is told of things: in that of whoever began the session."""

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of contact."""
        self._listeners.append(changed)

    def move(self, contact: Contact) -> None:
        """Have contact, or lose it: then every watch is called."""
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
        """Learn that the session is over, and begin another."""
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
        """Ask: there is only one server."""
        await self._ask(lambda: None)

    async def close(self) -> None:
        """End the session; without contact it ends by the servers' clock."""
        if self.contact is Contact.CONNECTED:
            self._world.nodes.end_session(self.session)
        else:
            self._world.end_in_time(self.session)
        self._world.forget(self)
        self.move(Contact.LOST)


class MemoryCoordination:
    """The world that the sessions share, with its faults. All times in seconds of the loop.

    ``delay_s`` is how long a question and its answer each travel, ``notification_delay_s`` how late a
    watch is called, ``session_timeout_s`` after how long without contact a session ends.
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
        """The servers': what they do later does not depend on who asked being alive by then."""

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

    # What happens to one node.

    def suspend(self, node: TreeCoordinator, *, session_ends_after_s: float | None = None) -> None:
        """Cut a node off. Its session ends after the time-out, or when the argument says."""
        tree = self._tree_of(node)
        tree.is_cut = True
        tree.move(Contact.SUSPENDED)
        self._end_later(tree.session, session_ends_after_s)

    def resume(self, node: TreeCoordinator) -> None:
        """Let a node have contact again; it learns now whether its session is over."""
        tree = self._tree_of(node)
        tree.is_cut = False
        if not tree.is_deaf:  # Else it learns of it when it goes on.
            self._reconnect(tree)

    def expire(self, node: TreeCoordinator, *, noticed_after_s: float = 0.0) -> None:
        """End a node's session now. It learns that later, or when it asks for anything."""
        tree = self._tree_of(node)
        session = tree.session
        self.nodes.end_session(session)
        asyncio.get_running_loop().call_later(noticed_after_s, self._notice, tree, session)

    async def crash(
        self, node: TreeCoordinator, *, session_ends_after_s: float | None = None
    ) -> None:
        """Let a node be gone without a word. Its session ends after the time-out, as above."""
        tree = self._tree_of(node)
        self.forget(tree)
        self._end_later(tree.session, session_ends_after_s)
        tree.move(Contact.SUSPENDED)
        await node.close()

    def deafen(self, node: TreeCoordinator) -> None:
        """Let a node stand still. Nothing is told to it, and its session ends after the time-out."""
        tree = self._tree_of(node)
        tree.is_deaf = True
        if tree.contact is Contact.CONNECTED:
            self._end_later(tree.session, None)

    def listen(self, node: TreeCoordinator) -> None:
        """Let it go on. It learns now what it would have been told."""
        tree = self._tree_of(node)
        tree.is_deaf = False
        if tree.is_cut or self._out is not None:
            tree.move(Contact.SUSPENDED)
        if not tree.is_cut and (self._out is None or tree not in self._out):
            self._reconnect(tree)

    def vanish(self, node: TreeCoordinator, *, session_ends_after_s: float | None = None) -> None:
        """Let a node be gone, without a step of its own. Its session ends after the time-out."""
        tree = self._tree_of(node)
        self.forget(tree)
        self._end_later(tree.session, session_ends_after_s)
        self.nodes.forget_watches(tree)
        tree.is_deaf = True

    # What happens to all.

    def outage(self) -> None:
        """Serve nobody. No session ends meanwhile: there is nobody to say so."""
        self._out = [
            tree for tree in self._trees if tree.contact is Contact.CONNECTED and not tree.is_deaf
        ]
        for tree in self._out:
            tree.move(Contact.SUSPENDED)

    def recover(self) -> None:
        """Serve again those whom the outage cut off."""
        out, self._out = self._out or [], None
        for tree in out:
            if tree in self._trees and not tree.is_deaf:
                self._reconnect(tree)
            elif tree in self._trees:
                self._end_later(tree.session, None)

    def wipe(self) -> None:
        """Forget everything. Those in contact learn at once that their sessions are over."""
        self.nodes.wipe()
        for tree in list(self._trees):
            if tree.contact is Contact.CONNECTED and not tree.is_deaf:
                tree.lose_session()

    # What the parts call.

    async def travel(self) -> None:
        """Let a question or an answer be on its way."""
        await self.clock.sleep(self.delay_s)

    def forget(self, tree: MemoryTree) -> None:
        """Reach a tree no more."""
        if tree in self._trees:
            self._trees.remove(tree)

    def end_in_time(self, session: int) -> None:
        """Let a session end after the time-out, if its end has not been set already."""
        if session not in self._ends:
            self._end_later(session, None)

    def _tree_of(self, node: TreeCoordinator) -> MemoryTree:
        assert isinstance(node.tree, MemoryTree)
        return node.tree

    def _notify(self, watched: Watched) -> None:
        # In the watching node's name: who made the change has no part in what follows from it.
        loop = asyncio.get_running_loop()
        loop.call_later(self.notification_delay_s, watched.fire, context=watched.tree.context)

    def _end_later(self, session: int, after_s: float | None) -> None:
        if not session:
            return  # It has learned already that it has none.
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

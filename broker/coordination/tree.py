"""Define the port below coordination: a tree of nodes like ZooKeeper's, with sessions and watches.

Membership, locks and hints are recipes over this port, written once. Memory and ZooKeeper each implement a tree. So the
recipes that run under simulated faults are the same that run against real servers::

    ports.Coordinator ◀── recipes (coordinator, members, locks, hints) ──▶ Tree ◀── memory | ZooKeeper

The recipes rely on these properties:

* An *ephemeral* node ends with the session that made it. A session ends some time after a loss of contact, by the
  servers' clock: later or earlier than the client expects.
* Calls of one session take effect in the order in which they were made, even if the caller stopped waiting for them.
* A watch is called once, after the node has changed or contact was lost. Then it is removed.
* After the tree has reported contact again, no answer is older than an earlier one.
* After ``Unanswered`` the call may or may not have been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from broker.clock import Clock
from broker.coordination.ports import Contact

RETRY_S = 0.05
"""The pause before an unanswered call is repeated."""

Watch = Callable[[], None]


class NoNode(Exception):
    """There is no such node, or no parent for a new one."""


class NodeExists(Exception):
    """The node exists already."""


class Changed(Exception):
    """The node has another version than the expected one."""


class Unanswered(Exception):
    """There was no contact, or no answer in time. The call may have been done."""


class Stat(NamedTuple):
    """The tree's facts about a node. ``owner`` is the session of an ephemeral node, else 0.

    ``version`` is 0 in a new node, also if an earlier node had the same path.
    """

    owner: int
    version: int


class Created(NamedTuple):
    """A new node: its whole path, and the session that owns it."""

    path: str
    owner: int


class Tree(Protocol):
    """One session with a tree. Every call may raise Unanswered, beside the named errors."""

    @property
    def contact(self) -> Contact:
        """Return the state of contact."""

    @property
    def session(self) -> int:
        """Return the session, as last known; 0 if there is none."""

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of contact, after ``session`` was updated."""

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        """Make a node. The name of a sequential one gets a suffix: a rising number of 10 digits.

        Raises:
            NodeExists: the node exists already.
            NoNode: the parent is missing.
        """

    async def replace(self, path: str, version: int, data: bytes) -> None:
        """In one step, remove the node if it has this version, and make an ephemeral one of the same path.

        Raises:
            NoNode, Changed: the node is missing, or has another version.
        """

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
        """Return a node and watch it. If there is none, return None and watch nothing."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of a node's children, in any order, and watch them.

        Raises:
            NoNode: there is no such node; nothing is watched.
        """

    async def put(self, path: str, data: bytes) -> None:
        """Set a node's data. This changes its version even if the data is the same.

        Raises:
            NoNode: there is no such node.
        """

    async def delete(self, path: str) -> None:
        """Remove a node. Do nothing if it is gone already."""

    async def sync(self) -> None:
        """Return once later reads show at least the state at the time of this call."""

    async def close(self) -> None:
        """End the session."""


class Reach:
    """A tree with the waits for contact that every recipe needs."""

    def __init__(self, tree: Tree, clock: Clock, root: str) -> None:
        """Follow the contact of ``tree``."""
        self.tree = tree
        self.clock = clock
        self.root = root
        self._connected = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        tree.on_contact(self._contact_changed)
        self._contact_changed(tree.contact)

    def _contact_changed(self, contact: Contact) -> None:
        if contact is Contact.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task, at most until ``close``."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel all tasks that were begun."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def contact(self) -> None:
        """Wait until there is contact."""
        await self._connected.wait()

    async def pause(self) -> None:
        """Wait for a short time, then for contact."""
        await self.clock.sleep(RETRY_S)
        await self._connected.wait()

    async def make_folder(self, path: str) -> None:
        """Make a persistent node, with its missing parents."""
        try:
            await self.tree.create(path, b"")
        except NodeExists:
            return
        except NoNode:
            await self.make_folder(path.rpartition("/")[0])
            await self.make_folder(path)

    async def remove(self, folder: str, wanted: Callable[[str], bool]) -> None:
        """Remove the children of ``folder`` that are ``wanted``, as soon as there is contact."""
        while True:
            await self.contact()
            try:
                for name in await self.tree.children(folder):
                    if wanted(name):
                        await self.tree.delete(f"{folder}/{name}")
            except NoNode:
                return
            except Unanswered:
                await self.pause()
            else:
                return

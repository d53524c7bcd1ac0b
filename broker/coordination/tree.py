"""The port below coordination: a tree of nodes as ZooKeeper keeps it, with sessions and watches.

Membership, locks and hints are recipes over this port, written once; memory and ZooKeeper each give a
tree, so the recipes that run under simulated faults are the ones that run against real servers::

    ports.Coordinator ◀── recipes (coordinator, members, locks, hints) ──▶ Tree ◀── memory | ZooKeeper

What the recipes rely on:

* An *ephemeral* node ends with the session that made it. A session ends some time after contact was lost,
  by the servers' clock: later than one thinks, or earlier.
* Calls of one session take effect in the order in which they were made, also those given up on.
* A watch is called once: after the node has changed, or when contact was lost; then it is gone.
* Once contact is told to be back, no answer is older than what was seen before.
* ``Unanswered`` says nothing about whether it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from broker.clock import Clock
from broker.coordination.ports import Contact

RETRY_S = 0.05
"""The pause before a question without an answer is asked again."""

Watch = Callable[[], None]


class NoNode(Exception):
    """There is no such node, or no parent to make one in."""


class NodeExists(Exception):
    """There is such a node already."""


class Changed(Exception):
    """The node is not the version that was named."""


class Unanswered(Exception):
    """No contact, or none for long enough to be answered. It may have been done."""


class Stat(NamedTuple):
    """What the tree knows of a node. ``owner`` is the session of an ephemeral node, else 0."""

    owner: int
    version: int
    made: int
    """Of two nodes that had one name at different times, the later one's is higher."""


class Created(NamedTuple):
    """A node that was made: its whole path, and the session it belongs to."""

    path: str
    owner: int


class Tree(Protocol):
    """One session with a tree. Every call raises Unanswered beside what it names."""

    @property
    def contact(self) -> Contact:
        """Whether it can be asked just now."""

    @property
    def session(self) -> int:
        """The session as last heard of; 0 if there is none."""

    def on_contact(self, changed: Callable[[Contact], None]) -> None:
        """Call ``changed`` with every change of contact; ``session`` is up to date by then."""

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        """Make a node; a sequential one's name is followed by a number of 10 digits that rises.

        Raises:
            NodeExists: there is one.
            NoNode: the parent is missing.
        """

    async def replace(self, path: str, version: int, data: bytes) -> None:
        """In one step: remove the node if it is this version, and make an ephemeral one there.

        Raises:
            NoNode, Changed: it is not what was seen.
        """

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
        """Return a node; None if there is none, and then nothing is watched."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of a node's children, in no order.

        Raises:
            NoNode: there is no such node, and nothing is watched.
        """

    async def put(self, path: str, data: bytes) -> None:
        """Set a node's data, which changes its version also if it is equal.

        Raises:
            NoNode: there is no such node.
        """

    async def delete(self, path: str) -> None:
        """Remove a node; it may be gone already."""

    async def sync(self) -> None:
        """Return once what is read next is as new as this call."""

    async def close(self) -> None:
        """End the session."""


class Reach:
    """A tree together with waiting for contact: what every recipe needs."""

    def __init__(self, tree: Tree, clock: Clock, root: str) -> None:
        """Follow the contact of ``tree``."""
        self.tree = tree
        self.clock = clock
        self.root = root
        self._connected = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        tree.on_contact(self._moved)
        self._moved(tree.contact)

    def _moved(self, contact: Contact) -> None:
        if contact is Contact.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside, at most until ``close``."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what was begun."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def contact(self) -> None:
        """Wait until the tree can be asked."""
        await self._connected.wait()

    async def pause(self) -> None:
        """Wait a little, then for contact."""
        await self.clock.sleep(RETRY_S)
        await self._connected.wait()

    async def make_folder(self, path: str) -> None:
        """Make a node that lasts, and the parents that it lacks."""
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

"""The part of this process in a rowlog's nodes: it serves its listeners to them, and is a candidate for processing."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any

from broker.coordination.memory import MemoryCoordination
from broker.coordination.ports import (
    INSTANCES_MAX,
    Coordinator,
    InstanceTaken,
    Membership,
    NodeInfo,
)
from broker.errors import BadRequest, Unavailable
from broker.rowlog.attempt import Tools
from broker.rowlog.candidacy import Processing
from broker.rowlog.election import Elections
from broker.rowlog.entries import Entries
from broker.rowlog.listeners import LocalListeners, Offers
from broker.rowlog.processor import Means
from broker.rowlog.upkeep import Upkeep
from broker.rowlog.wakeups import Wakeups

if TYPE_CHECKING:
    from broker.rowlog.remote import ListenerNode


class Host:
    """Serves listeners and processes once ``serve`` or ``start`` is called."""

    def __init__(
        self,
        tools: Tools,
        wakeups: Wakeups,
        listeners: LocalListeners,
        upkeep: Upkeep,
        coordinator: Coordinator | None,
        entries: Entries,
    ) -> None:
        """Use the parts of a rowlog. Without a coordinator this process is the only one that processes."""
        self._tools = tools
        self._entries = entries
        self._wakeups = wakeups
        self._listeners = listeners
        self._upkeep = upkeep
        self._coordinator = coordinator
        self._membership: Membership | None = None
        self._node: ListenerNode | None = None
        self._starting = False
        self._processing: Processing | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self._url = ""
        """The URL under which other nodes reach this one's listeners (remote.py); empty: none are served."""

    async def serve(self, host: str, port: int, url: str) -> str:
        """Serve the listeners over HTTP, join the rowlog's nodes, and return the URL.

        After an error nothing is served, and it may be called again.

        Raises:
            BadRequest: this process is already a member, or other nodes can't use its URL.
            OSError: the address can't be had.
            Unavailable: there is no coordinator, it does not answer, or the rowlog has 256 nodes already.
        """
        if self._coordinator is None:
            raise Unavailable("Remote listeners need ZooKeeper: RowLog(..., zookeeper=[...]).")
        if self._membership is not None:
            raise BadRequest(
                "Call serve_listeners once, and before start: a member can't change its URL."
            )
        await _load_remote()
        from broker.rowlog.remote import ListenerNode, announced_url  # noqa: PLC0415 - See _load_remote.

        tools = self._tools
        most = (await tools.meta.setup()).settings.payload_bytes_max
        node = ListenerNode(tools.rowlog, self._listeners, tools.figures.text, tools.clock, most)
        try:
            taken = await node.start(host, port)
            self._url = announced_url(host, taken, url)
            await self._join(self._coordinator)
        except BaseException:
            self._url = ""
            await node.close()
            raise
        self._node = node
        return self._url

    async def start(self, *, remote: bool) -> None:
        """Be a candidate for processing, until ``end``. ``remote``: offer messages to the listeners of other nodes, too.

        Raises:
            BadRequest: it was started before.
            Unavailable: the coordinator does not answer. This call began nothing; the caller may repeat it.
        """
        if self._starting or self._processing is not None:
            raise BadRequest("This rowlog was started before. Call start once.")
        self._starting = True
        try:
            await self._start(remote=remote)
        finally:
            self._starting = False

    async def _start(self, *, remote: bool) -> None:
        tools = self._tools
        coordinator = self._coordinator or MemoryCoordination(tools.clock).session()
        # First: if that fails, nothing has begun, and the caller may try again.
        if remote or (await tools.meta.setup()).settings.spread:
            await self._join(coordinator)
        offers: Offers = self._listeners
        if remote:
            await _load_remote()
            from broker.rowlog.remote import RemoteListeners  # noqa: PLC0415 - See _load_remote.

            nodes = RemoteListeners(
                tools.rowlog, self._listeners, lambda: self._membership, tools.clock
            )
            self.tasks.append(asyncio.create_task(nodes.run()))
            offers = nodes
        elections = Elections(coordinator, tools.meta, tools.clock)
        means = Means(tools, self._entries, offers, self._wakeups, self._settled)
        self._processing = Processing(
            means, elections, tools.clock, lambda: self._membership, self._upkeep.run
        )
        self.tasks.append(asyncio.create_task(self._processing.run()))

    async def _join(self, coordinator: Coordinator) -> None:
        """Join the rowlog's nodes, under the lowest free instance id. Do nothing if this process is a member.

        Raises Unavailable.
        """
        url = self._url or f"local:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        taken: set[int] = set()
        while self._membership is None:
            taken |= set(await coordinator.nodes())
            free = next((each for each in range(INSTANCES_MAX) if each not in taken), None)
            if free is None:
                raise Unavailable(
                    f"The rowlog has {INSTANCES_MAX} nodes already; it can have no more."
                )
            me = NodeInfo(free, secrets.token_hex(8), url, "1", 1)
            try:
                self._membership = await coordinator.join(me)
            except InstanceTaken:
                taken.add(free)
                continue
            self._membership.on_change(self._members_changed)

    def _members_changed(self) -> None:
        if self._processing is not None:
            self._processing.look_again()

    def _settled(self, name: str, row: bytes) -> None:
        """Let later subscriptions look at a row that may have waited for this one."""
        if self._processing is not None:
            for other, processor in self._processing.processors.items():
                if other != name:
                    processor.look(row)

    async def end(self) -> None:
        """End the processing."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    async def leave(self) -> None:
        """Leave the rowlog's nodes, and stop serving the listeners."""
        if self._membership is not None:
            await self._membership.leave()
        if self._node is not None:
            await self._node.close()


async def _load_remote() -> None:
    """Import the HTTP server and client in a thread: that takes a quarter of a second, and would stop the event loop."""
    await asyncio.to_thread(import_module, "broker.rowlog.remote")

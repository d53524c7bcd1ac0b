"""This process among the processes of a rowlog: a member, a host of listeners, a candidate for processing."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

from broker.coordination.memory import MemoryCoordination
from broker.coordination.ports import (
    INSTANCES_MAX,
    Coordinator,
    InstanceTaken,
    Membership,
    NodeInfo,
)
from broker.errors import Unavailable
from broker.rowlog.attempt import Tools
from broker.rowlog.candidacy import Processing
from broker.rowlog.election import Elections
from broker.rowlog.index import Index, TableIndex
from broker.rowlog.listeners import LocalListeners, Offers
from broker.rowlog.processor import Means
from broker.rowlog.upkeep import Upkeep
from broker.rowlog.wakeups import Wakeups

if TYPE_CHECKING:
    from broker.rowlog.remote import ListenerNode


class Host:
    """Begins nothing by itself: see ``serve`` and ``start``."""

    def __init__(  # noqa: PLR0913, PLR0917 - The parts of a rowlog.
        self,
        tools: Tools,
        index: Index,
        table: TableIndex,
        wakeups: Wakeups,
        listeners: LocalListeners,
        upkeep: Upkeep,
        coordinator: Coordinator | None,
    ) -> None:
        """Use the parts of a rowlog. Without a coordinator this process is the only one that processes."""
        self._tools = tools
        self._index = index
        self._table = table
        self._wakeups = wakeups
        self._listeners = listeners
        self._upkeep = upkeep
        self._coordinator = coordinator
        self._membership: Membership | None = None
        self._node: ListenerNode | None = None
        self._processing: Processing | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.url = ""
        """Where other nodes reach this one's listeners (remote.py); empty: nowhere."""

    async def serve(self, host: str, port: int, url: str) -> str:
        """Serve the listeners over HTTP, join the rowlog's nodes, and return the URL.

        After an error nothing is served, and it may be called again.

        Raises:
            OSError: the address can't be had.
            Unavailable: there is no coordinator, or it can't be asked.
        """
        from broker.rowlog.remote import ListenerNode  # noqa: PLC0415 - It needs a server.

        if self._coordinator is None:
            raise Unavailable("Remote listeners need ZooKeeper: RowLog(..., zookeeper=[...]).")
        tools = self._tools
        most = (await tools.meta.setup()).settings.payload_bytes_max
        node = ListenerNode(tools.rowlog, self._listeners, tools.figures.text, tools.clock, most)
        try:
            taken = await node.start(host, port)
            self.url = url or f"http://{host}:{taken}"
            await self._join(self._coordinator)
        except BaseException:
            await node.close()
            raise
        self._node = node
        return self.url

    async def start(self, *, remote: bool) -> None:
        """Be a candidate for processing, until closed; ``remote``: offer to the listeners of other nodes, too.

        Raises Unavailable: the coordinator can't be asked. Nothing has begun, and it may be called again.
        """
        tools = self._tools
        coordinator = self._coordinator or MemoryCoordination(tools.clock).session()
        # First: if that fails, nothing has begun, and the caller may try again.
        if remote or (await tools.meta.setup()).settings.spread:
            await self._join(coordinator)
        offers: Offers = self._listeners
        if remote:
            from broker.rowlog.remote import RemoteListeners  # noqa: PLC0415

            nodes = RemoteListeners(
                tools.rowlog, self._listeners, lambda: self._membership, tools.clock
            )
            self.tasks.append(asyncio.create_task(nodes.run()))
            offers = nodes
        elections = Elections(coordinator, tools.meta, tools.clock)
        means = Means(tools, self._index, self._table, offers, self._wakeups, self._settled)
        self._processing = Processing(
            means, elections, tools.clock, lambda: self._membership, self._upkeep.run
        )
        self.tasks.append(asyncio.create_task(self._processing.run()))

    async def _join(self, coordinator: Coordinator) -> None:
        """Be a member of the rowlog's nodes, under the lowest number that is free."""
        url = self.url or f"local:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        taken: set[int] = set()
        while self._membership is None:
            taken |= set(await coordinator.nodes())
            free = next(each for each in range(INSTANCES_MAX) if each not in taken)
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
        """Leave the rowlog's nodes, and serve the listeners no more."""
        if self._membership is not None:
            await self._membership.leave()
        if self._node is not None:
            await self._node.close()

"""Parts of a node in a random run: its connection to the table, and its memory while it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from broker.model import LogKey, timestamp_of
from broker.storage import sweep
from broker.storage.entry import Entry
from broker.storage.hold import LogHold
from broker.storage.memory.adversary import AdversaryTable
from broker.testing.virtual_time import VirtualClock
from broker.topics.log_keys import LogKeys, first_timestamp_ms


class NodeTable:
    """The connection of one node to the table; no call passes while the node is paused."""

    def __init__(self, table: AdversaryTable) -> None:
        """Begin without a pause."""
        self._table = table
        self.going = asyncio.Event()
        self.going.set()
        self.is_alone = self.keeps_order = self.checks_values = False
        self.cell_bytes_max = table.cell_bytes_max
        self.change_bytes_max = table.change_bytes_max

    async def _passed(self, call: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        if not self.going.is_set():
            await self.going.wait()
        try:
            return await call(*args, **more)
        finally:
            if not self.going.is_set():
                await self.going.wait()

    async def change(self, *args: Any, **more: Any) -> Any:
        """As Table."""
        return await self._passed(self._table.change, *args, **more)

    async def get(self, *args: Any, **more: Any) -> Any:
        """As Table."""
        return await self._passed(self._table.get, *args, **more)

    async def cells(self, *args: Any, **more: Any) -> Any:
        """As Table."""
        return await self._passed(self._table.cells, *args, **more)

    async def columns(self, *args: Any, **more: Any) -> Any:
        """As Table."""
        return await self._passed(self._table.columns, *args, **more)

    async def scan(self, *args: Any, **more: Any) -> Any:
        """As Table."""
        return await self._passed(self._table.scan, *args, **more)

    async def put(self, *args: Any, **more: Any) -> Any:
        """As Table."""
        return await self._passed(self._table.put, *args, **more)

    async def delete(self, *args: Any, **more: Any) -> Any:
        """As Table."""
        return await self._passed(self._table.delete, *args, **more)

    async def close(self) -> None:
        """As Table."""


class Cached(NamedTuple):
    """A message in a leader's memory."""

    id: LogKey
    label: str
    pointer: int | None
    is_hidden: bool


class Lead:
    """A node's memory while it leads."""

    def __init__(self, hold: LogHold, clock: VirtualClock, instance: int) -> None:
        """Begin after the claim."""
        self.hold = hold
        self.cache: list[Cached] = []
        self.turn = asyncio.Lock()
        self.parts: dict[int, Part] = {}
        self.publishing: dict[int, asyncio.Lock] = {}
        self.ids = _ids(hold, clock, instance)
        self.ends = sweep.LifetimeEnds(hold.log.generation)

    def take(self, added: Sequence[Entry]) -> None:
        """Add entries to memory."""
        for entry in added:
            if entry.is_stub:
                continue
            for place in range(entry.count):
                key = entry.id(place)
                label = entry.payload(place).decode()
                self.cache.append(Cached(key, label, entry.pointer, entry.is_rolled_back(key)))


class Part:
    """A payload log that a leader has open."""

    def __init__(self, hold: LogHold, clock: VirtualClock, instance: int) -> None:
        """Begin after the claim."""
        self.hold = hold
        self.turn = asyncio.Lock()
        self.ids = _ids(hold, clock, instance)


def _ids(hold: LogHold, clock: VirtualClock, instance: int) -> LogKeys:
    first_ms = first_timestamp_ms(clock.now_ms(), timestamp_of(hold.pointer))
    return LogKeys(
        first_ms=first_ms,
        monotonic_ms=clock.monotonic() * 1000,
        lead_ms_max=1 << 50,
        instance=instance,
    )

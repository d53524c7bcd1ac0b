"""Records in memory, for tests of what needs nothing else of a store."""

from __future__ import annotations

from broker.clock import SystemClock
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.storage.resolve import Resolver


class MemoryRecords(Records):
    """Records in a table of their own."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__(Resolver(MemoryTable(), SystemClock()))

"""Records in memory, for tests of code that needs no other part of a store."""

from __future__ import annotations

from broker.clock import SystemClock
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.storage.resolve import Resolver


class MemoryRecords(Records):
    """Records in their own table in memory."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__(Resolver(MemoryTable(), SystemClock()))

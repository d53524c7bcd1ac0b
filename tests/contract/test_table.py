import itertools

import pytest

from broker.storage.memory.table import MemoryTable
from broker.testing.contract.table import TableContract


class Harness:
    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    async def open(self) -> MemoryTable:
        self.table.reopen()
        return self.table


class TestMemory(TableContract):
    @pytest.fixture
    def harness(self):
        return Harness(MemoryTable())


class TestMemoryOfServers(TableContract):
    """Small limits, and a clock that steps back again and again."""

    @pytest.fixture
    def harness(self):
        clock = itertools.cycle((1000, 2000, 1500))
        table = MemoryTable(
            server_ms=lambda: next(clock),
            is_alone=False,
            cell_bytes_max=70_000,
            change_bytes_max=100_000,
        )
        return Harness(table)

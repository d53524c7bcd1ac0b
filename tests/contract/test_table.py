import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from broker.storage.memory.adversary import CALM, AdversaryTable
from broker.storage.memory.table import MemoryTable
from broker.testing.simulation.storage_way import LinkedTable, StorageWay
from tests.kit.contract.table import TableContract


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
    """Small limits, and a clock that often steps back."""

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


class AdversaryHarness:
    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    async def open(self) -> AdversaryTable:
        self.table.reopen()
        chance = random.Random(1)
        calm = replace(CALM, delay_ms=0.0)
        return AdversaryTable(asyncio.get_running_loop(), chance, calm, self.table)


class TestAdversaryWithoutFaults(TableContract):
    @pytest.fixture
    def harness(self):
        return AdversaryHarness(MemoryTable(is_alone=False, server_ms=itertools.count().__next__))


class LinkedHarness:
    def __init__(self, behind: AdversaryHarness) -> None:
        self._behind = behind

    async def open(self) -> LinkedTable:
        return LinkedTable(await self._behind.open(), StorageWay(), lambda _: None)


class TestLinked(TableContract):
    @pytest.fixture
    def harness(self):
        return LinkedHarness(AdversaryHarness(MemoryTable(is_alone=False)))

import asyncio
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import LevelDBTable, open_table
from broker.storage.memory.adversary import CALM, AdversaryTable
from broker.storage.memory.table import MemoryTable
from tests.kit.contract.log import LogContract


class MemoryHarness:
    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    async def open(self) -> MemoryTable:
        self.table.reopen()
        return self.table


class TestMemory(LogContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness(MemoryTable())


class TestMemoryOfServers(LogContract):
    """Small limits, several processes, and a clock that often steps back."""

    @pytest.fixture
    def harness(self):
        clock = itertools.cycle((1000, 2000, 1500))
        return MemoryHarness(
            MemoryTable(
                server_ms=lambda: next(clock),
                is_alone=False,
                cell_bytes_max=400_000,
                change_bytes_max=1_000_000,
            )
        )


class CalmHarness:
    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    async def open(self) -> AdversaryTable:
        self.table.reopen()
        calm = replace(CALM, delay_ms=0.0, short=0.3)
        return AdversaryTable(asyncio.get_running_loop(), random.Random(1), calm, self.table)


class TestAdversaryThatReadsInPieces(LogContract):
    @pytest.fixture
    def harness(self):
        return CalmHarness(MemoryTable(is_alone=False))


class LevelDBHarness:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def open(self) -> LevelDBTable:
        return await open_table(self._directory, Options())


class TestLevelDB(LogContract):
    @pytest.fixture
    def harness(self, tmp_path):
        return LevelDBHarness(tmp_path / "data")

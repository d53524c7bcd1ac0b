from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.storage.leveldb.table import LevelDBTable, open_table
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from broker.storage.resolve import Resolver
from tests.kit.contract.cursors import CursorsContract
from tests.kit.contract.record_store import RecordStoreContract


class MemoryHarness:
    def __init__(self) -> None:
        self.table = MemoryTable()

    async def open(self) -> Records:
        return Records(Resolver(self.table, SystemClock()))

    async def close(self) -> None:
        pass


class LevelDBHarness:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.table: LevelDBTable | None = None

    async def open(self) -> Records:
        self.table = await open_table(self.directory)
        return Records(Resolver(self.table, SystemClock()))

    async def close(self) -> None:
        if self.table is not None:
            await self.table.close()


class TestMemory(RecordStoreContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness()


class TestLevelDB(RecordStoreContract):
    @pytest.fixture
    def harness(self, tmp_path: Path):
        return LevelDBHarness(tmp_path)


class TestCursorsInMemory(CursorsContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness()


class TestCursorsInLevelDB(CursorsContract):
    @pytest.fixture
    def harness(self, tmp_path: Path):
        return LevelDBHarness(tmp_path)

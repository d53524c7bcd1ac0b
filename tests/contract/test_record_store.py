import pytest

from broker.storage.memory_cells import MemoryRecordStore
from broker.testing.contract.record_store import RecordStoreContract


class MemoryHarness:
    def __init__(self) -> None:
        self.records = MemoryRecordStore()

    async def open(self) -> MemoryRecordStore:
        return self.records

    async def close(self) -> None:
        pass


class TestMemory(RecordStoreContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness()

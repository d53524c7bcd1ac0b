import pytest

from broker.clock import SystemClock
from broker.storage.memory_cells import MemoryCells
from broker.storage.tables import TableLogStore
from broker.testing.contract.log_lifecycle import LogStoreContract


class MemoryHarness:
    def __init__(self, cells: MemoryCells) -> None:
        self.cells = cells

    async def open(self) -> TableLogStore:
        return TableLogStore(self.cells, SystemClock())


class TestMemory(LogStoreContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness(MemoryCells())


class TestMemoryInSmallPuts(LogStoreContract):
    """A store that takes only some rows at once, as a gateway's frame does."""

    @pytest.fixture
    def harness(self):
        return MemoryHarness(MemoryCells(put_bytes_max=200))

import pytest

from broker.rowlog.memory import MemoryRows
from tests.kit.contract.rowtable import (
    MemoryRowsOfOneCell,
    Opened,
    RowLocksContract,
    RowTableContract,
)


class TestMemory(RowTableContract, RowLocksContract):
    @pytest.fixture
    def opened(self) -> Opened:
        return Opened(MemoryRows({b"t": {}}), b"t")


class TestLocksOfOneCell(RowLocksContract):
    @pytest.fixture
    def opened(self) -> Opened:
        return Opened(MemoryRowsOfOneCell({b"t": {}}), b"t")

import pytest

from broker.rowlog.memory import MemoryRows
from tests.kit.contract.rowtable import Opened, RowTableContract


class TestMemory(RowTableContract):
    @pytest.fixture
    def opened(self) -> Opened:
        return Opened(MemoryRows({b"t": {}}), b"t")

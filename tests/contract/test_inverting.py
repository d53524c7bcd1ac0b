from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import open_table
from broker.storage.memory.table import MemoryTable
from broker.storage.table import Table
from tests.kit.contract.inverting import InvertingContract


class TestMemory(InvertingContract):
    @pytest.fixture(params=[True, False])
    def table(self, request: pytest.FixtureRequest) -> Table:
        return MemoryTable(is_alone=request.param)


class TestLevelDB(InvertingContract):
    @pytest.fixture
    async def table(self, tmp_path: Path) -> AsyncIterator[Table]:
        table = await open_table(tmp_path / "data", Options())
        yield table
        await table.close()

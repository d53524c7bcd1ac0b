from pathlib import Path

import pytest

from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import LevelDBTable, open_table
from tests.kit.contract.table import TableContract


class Harness:
    def __init__(self, directory: Path, options: Options) -> None:
        self._directory = directory
        self._options = options

    async def open(self) -> LevelDBTable:
        return await open_table(self._directory, self._options)


class TestLevelDB(TableContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return Harness(tmp_path / "data", Options())


class TestLevelDBInSmallFiles(TableContract):
    """LevelDB writes and merges its tables often."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        options = Options(write_buffer_bytes=64 << 10, cache_bytes=1 << 16, file_bytes_max=1 << 20)
        return Harness(tmp_path / "data", options)

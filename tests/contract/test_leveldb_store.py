from pathlib import Path

import pytest

from broker.storage.leveldb_store import LevelDBStore
from broker.testing.contract.log_lifecycle import LogStoreContract
from broker.testing.contract.record_store import RecordStoreContract


class Harness:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store: LevelDBStore | None = None

    async def open(self) -> LevelDBStore:
        self._store = await LevelDBStore.open(self._directory)
        return self._store

    async def close(self) -> None:
        assert self._store is not None
        await self._store.close()


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "data")


class TestLogs(LogStoreContract):
    pass


class TestRecords(RecordStoreContract):
    pass

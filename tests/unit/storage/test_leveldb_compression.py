"""What the configured compression does to the files of a store."""

from pathlib import Path

import pytest

from broker.config import Compression, Config, StorageConfig
from broker.node_alone import open_store
from broker.storage.leveldb_database import Database, Options

_ROWS, _TEXT = 4_000, b"the same words again and again, " * 8


def _bytes(folder: Path, options: Options) -> int:
    database = Database(folder, options, create=True)
    with database.batch(synced=True) as batch:
        for row in range(_ROWS):
            batch.put(b"m%08d" % row, _TEXT)
    database.compact(b"m", b"n")
    database.close()
    return sum(file.stat().st_size for file in folder.glob("*.ldb"))


def test_blocks_are_written_as_they_are_unless_asked_for(tmp_path: Path) -> None:
    plain = _bytes(tmp_path / "plain", Options())
    assert plain >= _ROWS * len(_TEXT)
    assert _bytes(tmp_path / "snappy", Options(compression="snappy")) < plain / 2


@pytest.mark.parametrize("compression", Compression)
async def test_a_store_opens_with_either_and_with_the_other_after_it(
    tmp_path: Path, compression: Compression
) -> None:
    for one in (compression, *Compression):
        config = Config(storage=StorageConfig(data_dir=tmp_path / "data", compression=one))
        store = await open_store(config)
        await store.close()

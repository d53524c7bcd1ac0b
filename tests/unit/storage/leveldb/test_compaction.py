import asyncio
import os
import threading
from pathlib import Path

from broker.errors import Unavailable
from broker.storage.leveldb.compaction import BYTES_MIN, LINGER_S, PAGES_MAX, Compaction, stretches
from broker.storage.leveldb.database import Database, Options
from tests.kit.bench import settle
from tests.kit.serving import eventually


class FakeDatabase:
    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)
        self.compacted: list[tuple[bytes, bytes]] = []
        self.is_last = threading.Event()

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        return self.sizes.pop(0)

    def compact(self, start: bytes, stop: bytes) -> None:
        self.compacted.append((start, stop))
        if not self.sizes:
            self.is_last.set()
            raise Unavailable("the disk is gone")


def page(log: bytes, number: int) -> bytes:
    return log + number.to_bytes(10, "big")


def test_a_stretch_has_pages_of_one_log_and_a_limited_length() -> None:
    one, other = ([page(log, n) for n in range(PAGES_MAX + 1)] for log in (b"log", b"other"))
    assert list(stretches(one + other)) == [
        (one[0], one[-2]),
        (one[-1], one[-1]),
        (other[0], other[-2]),
        (other[-1], other[-1]),
    ]
    assert list(stretches([])) == []


async def test_a_pause_follows_each_merge_and_small_stretches_are_not_merged() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    database = FakeDatabase(BYTES_MIN, BYTES_MIN - 1, BYTES_MIN)
    compaction = Compaction(database, pause)
    compaction.gone([])
    await settle()
    assert pauses == [], "there is nothing to merge"
    pages = [page(log, 1) for log in (b"a", b"b", b"c")]
    compaction.gone(pages)
    assert await asyncio.to_thread(database.is_last.wait, 20)
    await compaction.close()
    merged = [(start, stop) for start, stop in database.compacted if start != stop]
    assert merged == [(pages[0], pages[0] + b"\xff"), (pages[2], pages[2] + b"\xff")]
    assert pauses[0] == LINGER_S
    assert len(pauses) == 2  # The last merge failed.


async def test_a_close_ends_the_pause() -> None:
    database, pausing = FakeDatabase(), asyncio.Event()

    async def pause(_: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    compaction = Compaction(database, pause)
    compaction.gone([b"a"])
    await pausing.wait()
    await compaction.close()
    assert database.compacted == []


async def test_the_space_is_freed_although_a_read_is_open_when_the_merge_ends(
    tmp_path: Path,
) -> None:
    """LevelDB keeps the merged files while a read uses them. No write follows that would let it look again."""
    options = Options(write_buffer_bytes=1 << 16)
    database = Database(tmp_path / "db", options, create=True, was_clean=True)
    keys = [page(b"log", 1) + bytes([number]) for number in range(20)]
    for key in keys:
        batch = database.batch()
        batch.put(key, os.urandom(BYTES_MIN // 10))
        batch.write()
    batch = database.batch()
    for key in keys:
        batch.delete(key)
    batch.write()

    def files() -> int:
        return len(list((tmp_path / "db").glob("*.ldb")))

    with database.reading() as opened:
        read = opened.iterator(prefix=b"log")

    async def pause(seconds: float) -> None:
        if seconds != LINGER_S:
            assert files(), "the read uses them"
            read.close()

    compaction = Compaction(database, pause)
    compaction.gone([page(b"log", 1)])
    await eventually(lambda: not files(), files)
    await compaction.close()
    database.close()

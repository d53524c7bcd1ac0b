import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker import guards
from broker.errors import Fenced, StorageCorrupt, StorageFull, Unavailable
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_id
from broker.storage.control import RANGES_MAX
from broker.storage.keys import LogId
from broker.storage.leveldb_database import Options
from broker.storage.leveldb_changes import append
from broker.storage.leveldb_store import LevelDBStore
from broker.storage.ports import Batch, Hold, Rows, Segment

LOG = LogId(TopicId("default", "notes"), 1)
OTHER = LogId(TopicId("default", "others"), 1)
NEVER_S = 3600.0


class Faults:
    """Fails chosen writes, before or after they are done."""

    def __init__(self) -> None:
        self.writes = 0
        self.fail: dict[int, str] = {}

    def __call__(self, number: int, stage: str) -> None:
        self.writes = number
        if self.fail.get(number) == stage:
            raise OSError(28, "No space left on device")

    def next_write(self, stage: str = "before") -> None:
        self.fail[self.writes + 1] = stage


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def store(tmp_path: Path, faults: Faults) -> AsyncIterator[LevelDBStore]:
    options = Options(probe_interval_s=NEVER_S)
    opened = await LevelDBStore.open(tmp_path / "data", options, fault=faults)
    yield opened
    await opened.close()


def batch(first_ms: int, count: int = 1, payload: bytes = b"x") -> Batch:
    ids = [row_id(first_ms + number, 0) for number in range(count)]
    return Batch([Segment(ids, [payload] * count)], ids[-1])


async def read(store: LevelDBStore, log: LogId = LOG) -> Rows:
    return await store.scan(log, ROW_ID_MIN, ROW_ID_MAX, rows_max=10_000, bytes_max=1 << 20)


async def ids(store: LevelDBStore, log: LogId = LOG) -> list[RowId]:
    return [row.id for row in (await read(store, log)).rows]


async def test_what_waits_together_is_one_write(store: LevelDBStore, faults: Faults) -> None:
    holds = [await store.claim(LogId(TopicId("default", f"t{n}"), 1), "a") for n in range(20)]
    before = faults.writes
    await asyncio.gather(
        *(store.append(hold, batch(ms)) for ms in (1000, 2000, 3000) for hold in holds)
    )
    # The first may go alone; all others have come while it was being written.
    assert faults.writes - before <= 2
    for hold in holds:
        assert len(await ids(store, hold.log)) == 3


async def test_batches_of_one_log_move_the_pointer_in_order(store: LevelDBStore) -> None:
    hold = await store.claim(LOG, "a")
    batches = [batch(1000 + 10 * number, 3) for number in range(20)]
    await asyncio.gather(*(store.append(hold, each) for each in batches))
    assert hold.control.pointer == batches[-1].last
    assert await ids(store) == [row for each in batches for row in each.segments[0].ids]


async def test_a_claim_fences_what_waits_behind_it(store: LevelDBStore) -> None:
    hold = await store.claim(LOG, "a")
    before, claim, after = await asyncio.gather(
        store.append(hold, batch(1000)),
        store.claim(LOG, "b"),
        store.append(hold, batch(2000)),
        return_exceptions=True,
    )
    assert before is None
    assert isinstance(after, Fenced)
    assert not isinstance(claim, BaseException)
    assert claim.control.pointer == row_id(1000, 0)
    assert await ids(store) == [row_id(1000, 0)]


async def test_a_batch_that_cannot_be_built_harms_no_other(store: LevelDBStore) -> None:
    hold, other = await store.claim(LOG, "a"), await store.claim(OTHER, "a")
    broken = Batch([Segment([row_id(1000, 0), row_id(1001, 0)], [b"one"])], row_id(1001, 0))
    results = await asyncio.gather(
        store.append(other, batch(1000)),
        store.append(hold, broken),
        store.append(hold, batch(2000)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), ValueError, type(None)]
    assert await ids(store) == [row_id(2000, 0)]
    assert await ids(store, OTHER) == [row_id(1000, 0)]


@pytest.mark.parametrize("stage", ["before", "after"])
async def test_a_write_error_ends_all_holds(
    store: LevelDBStore, faults: Faults, stage: str
) -> None:
    hold, other = await store.claim(LOG, "a"), await store.claim(OTHER, "a")
    await store.append(hold, batch(1000))
    faults.next_write(stage)
    with pytest.raises(StorageFull) as failed:
        await store.append(hold, batch(2000))
    assert (failed.value.outcome, failed.value.retriable) == ("unknown", False)
    assert hold.done
    assert other.done
    assert isinstance(store.failure, OSError)
    with pytest.raises(StorageFull) as refused:
        await store.append(other, batch(2000))
    assert (refused.value.outcome, refused.value.retriable) == ("refused", True)
    assert await ids(store) == [row_id(1000, 0)]  # Reads go on, up to what was confirmed.
    head = await store.head(LOG)
    assert head is not None
    assert head.pointer == row_id(1000, 0)


@pytest.mark.parametrize(("stage", "kept"), [("before", 1), ("after", 2)])
async def test_after_opening_anew_logs_are_claimed_again(
    store: LevelDBStore, faults: Faults, stage: str, kept: int
) -> None:
    hold = await store.claim(LOG, "a")
    await store.append(hold, batch(1000))
    faults.next_write(stage)
    with pytest.raises(StorageFull):
        await store.append(hold, batch(2000))
    assert await store.probe()
    assert store.failure is None
    with pytest.raises(Fenced):
        await store.append(hold, batch(3000))
    again = await store.claim(LOG, "a")
    assert again.epoch == hold.epoch + 1
    await store.append(again, batch(3000))
    assert len(await ids(store)) == kept + 1


async def test_the_disk_decides_when_writing_goes_on(
    store: LevelDBStore, faults: Faults, tmp_path: Path
) -> None:
    hold = await store.claim(LOG, "a")
    faults.next_write()
    with pytest.raises(StorageFull):
        await store.append(hold, batch(1000))
    in_the_way = tmp_path / "data" / "probe" / "x"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    assert not await store.probe()
    assert await ids(store) == []
    with pytest.raises(StorageFull):
        await store.claim(LOG, "a")
    in_the_way.unlink()
    in_the_way.parent.rmdir()
    assert await store.probe()
    await store.claim(LOG, "a")


async def test_the_writer_probes_by_itself(tmp_path: Path, faults: Faults) -> None:
    store = await LevelDBStore.open(tmp_path, Options(probe_interval_s=0.001), fault=faults)
    faults.next_write()
    with pytest.raises(StorageFull):
        await store.claim(LOG, "a")
    async with asyncio.timeout(20):
        while True:
            try:
                await store.claim(LOG, "a")
                break
            except StorageFull:
                await store.head(OTHER)  # Not open anew yet: let the writer thread go on.
    await store.close()


async def test_without_opening_anew_the_same_object_goes_on(
    store: LevelDBStore, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")
    hold = await store.claim(LOG, "a")
    faults.next_write()
    with guards.without("leveldb-reopen"):
        with pytest.raises(StorageFull):
            await store.append(hold, batch(1000))
        assert store.failure is None
        await store.append(hold, batch(2000))


async def test_a_second_opening_is_refused(store: LevelDBStore) -> None:
    with pytest.raises(Unavailable, match="in use by another process"):
        await LevelDBStore.open(store.directory)


async def test_many_takeovers_move_old_ranges_to_a_side_row(store: LevelDBStore) -> None:
    kept, hold = [], None
    for number in range(2 * RANGES_MAX + 10):
        hold = await store.claim(LOG, "ab"[number % 2])
        written = batch(1000 + number)
        await store.append(hold, written)
        kept.append(written.last)
    assert hold is not None
    assert hold.control.older
    assert len(hold.control.ranges) <= RANGES_MAX
    assert await ids(store) == kept
    backwards = await store.scan(
        LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=10_000, bytes_max=1 << 20, reverse=True
    )
    assert [row.id for row in backwards.rows] == kept[::-1]


async def test_a_lost_row_at_the_pointer_is_corrupt(store: LevelDBStore) -> None:
    hold = await store.claim(LOG, "a")
    await store.append(hold, batch(1000, 3))
    store._database._db.delete(hold.prefix + row_id(1002, 0))
    for reverse in (False, True):
        with pytest.raises(StorageCorrupt, match="row at the commit pointer"):
            await store.scan(LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=9, bytes_max=99, reverse=reverse)
    # A page that ends before the pointer can be trusted.
    page = await store.scan(LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=2, bytes_max=99)
    assert len(page.rows) == 2


async def test_a_cancelled_caller_disturbs_nobody(store: LevelDBStore) -> None:
    hold = await store.claim(LOG, "a")
    cancelled = store._writer.submit(append(hold, batch(1000)))
    cancelled.cancel()
    await store.append(hold, batch(2000))
    assert (await ids(store))[-1] == row_id(2000, 0)


async def test_a_clean_close_is_noted_and_checked(tmp_path: Path) -> None:
    store = await LevelDBStore.open(tmp_path)
    await fill(await store.claim(LOG, "a"), store)
    await store.close()
    [log] = (tmp_path / "db").glob("*.log")
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(StorageCorrupt, match=f"{log.name} has .* bytes; it was closed with"):
        await LevelDBStore.open(tmp_path)


async def fill(hold: Hold, store: LevelDBStore, count: int = 200) -> None:
    await store.append(hold, batch(1000, count, b"x" * 300))


async def test_an_estimate_knows_of_what_is_in_memory_and_on_disk(tmp_path: Path) -> None:
    store = await LevelDBStore.open(tmp_path)
    hold = await store.claim(LOG, "a")
    for number in range(6):
        ids = [row_id(1000 + number, seq) for seq in range(1000)]
        payloads = [row * 30 for row in ids]
        await store.append(hold, Batch([Segment(ids, payloads)], ids[-1]))
    assert (await store.estimate(LOG)).rows == 6000
    await store.close()
    store = await LevelDBStore.open(tmp_path)
    estimate = await store.estimate(LOG)
    assert 1000 <= estimate.rows <= 9000  # LevelDB compresses, and nobody holds the log yet.
    await store.close()


async def test_syncs_are_reported(tmp_path: Path) -> None:
    seen: list[tuple[float, int]] = []
    store = await LevelDBStore.open(tmp_path, observe=lambda s, n: seen.append((s, n)))
    hold = await store.claim(LOG, "a")
    await store.append(hold, batch(1000))
    await store.close()
    assert sum(count for _, count in seen) == 2
    assert all(seconds > 0 for seconds, _ in seen)

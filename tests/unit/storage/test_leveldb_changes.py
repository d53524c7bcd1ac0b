import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.errors import PayloadsSealed, TransactionTooOld
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_id
from broker.storage.control import State
from broker.storage.keys import LogId
from broker.storage.leveldb_changes import expiry_prefix
from broker.storage.leveldb_store import LevelDBStore
from broker.storage.ports import Batch, Hold, Segment

LOG = LogId(TopicId("default", "notes"), 1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LevelDBStore]:
    opened = await LevelDBStore.open(tmp_path / "data")
    yield opened
    await opened.close()


@pytest.fixture
async def hold(store: LevelDBStore) -> Hold:
    return await store.claim(LOG, "a")


def batch(*milliseconds: int, lifetime_ms: int | None = None) -> Batch:
    ids = [row_id(each, 0) for each in milliseconds]
    return Batch([Segment(ids, [b"x"] * len(ids), lifetime_ms=lifetime_ms)], ids[-1])


async def ids(store: LevelDBStore, log: LogId) -> list[RowId]:
    page = await store.scan(log, ROW_ID_MIN, ROW_ID_MAX, rows_max=100, bytes_max=1 << 20)
    return [row.id for row in page.rows]


async def test_what_waits_behind_a_seal_is_refused(store: LevelDBStore, hold: Hold) -> None:
    payloads = await store.open_payloads(hold, 7)
    before, _, after, published = await asyncio.gather(
        store.append(payloads, batch(1)),
        store.seal(payloads, row_id(5, 0)),
        store.append(payloads, batch(2)),
        store.mark_published(payloads, row_id(6, 0)),
        return_exceptions=True,
    )
    assert (before, published) == (None, None)
    assert isinstance(after, PayloadsSealed)
    assert payloads.control.state is State.PUBLISHED
    assert payloads.control.published == row_id(6, 0)
    assert await ids(store, payloads.log) == [row_id(1, 0)]


async def test_a_later_seal_or_reference_changes_nothing(store: LevelDBStore, hold: Hold) -> None:
    payloads = await store.open_payloads(hold, 7)
    await store.seal(payloads, row_id(5, 0))
    await store.mark_published(payloads, row_id(6, 0))
    before = payloads.control
    await store.seal(payloads, row_id(7, 0))
    await store.mark_published(payloads, row_id(8, 0))
    assert payloads.control == before


async def test_a_dropped_log_is_neither_added_to_nor_sealed(
    store: LevelDBStore, hold: Hold
) -> None:
    payloads = await store.open_payloads(hold, 7)
    await store.drop(payloads)
    with pytest.raises(TransactionTooOld):
        await store.append(payloads, batch(1))
    with pytest.raises(TransactionTooOld):
        await store.seal(payloads, row_id(5, 0))


async def test_two_holders_of_one_payload_log_share_a_hold(store: LevelDBStore, hold: Hold) -> None:
    first, second = await asyncio.gather(store.open_payloads(hold, 7), store.open_payloads(hold, 7))
    assert first is second
    await asyncio.gather(store.append(first, batch(1)), store.append(second, batch(2)))
    assert len(await ids(store, first.log)) == 2


async def test_own_lifetimes_are_noted_for_the_sweeper(store: LevelDBStore, hold: Hold) -> None:
    await store.append(hold, batch(1000, 1001, lifetime_ms=50))
    await store.append(hold, batch(1002))
    noted = store._database.items(expiry_prefix(LOG))
    assert [key for key, _ in noted] == [
        (1050).to_bytes(8, "big") + row_id(1000, 0),
        (1051).to_bytes(8, "big") + row_id(1001, 0),
    ]


async def test_of_records_put_at_the_same_time_one_wins(store: LevelDBStore) -> None:
    versions = await asyncio.gather(*(store.put_if(b"k", None, b"%d" % n) for n in range(5)))
    assert versions == [(1).to_bytes(8, "big"), None, None, None, None]
    version = versions[0]
    again = await asyncio.gather(*(store.put_if(b"k", version, b"%d" % n) for n in range(5)))
    assert again == [(2).to_bytes(8, "big"), None, None, None, None]


async def test_a_log_handed_off_extends_its_range(store: LevelDBStore, hold: Hold) -> None:
    await store.append(hold, batch(1))
    assert await store.release(hold)
    assert hold.done
    head = await store.head(LOG)
    assert head is not None
    assert (head.owner, head.epoch) == ("", 2)
    again = await store.claim(LOG, "b")
    assert [(entry.first, entry.last) for entry in again.control.ranges] == [(1, 3)]
    assert not await store.release(hold)


async def test_rollback_in_slices_finds_everything(
    store: LevelDBStore, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.storage.leveldb_read.NEGATE_ROWS_MAX", 7)
    rows = [row_id(each, 0) for each in range(1, 31)]
    mine, other = Segment(rows[::2], [b"x"] * 15, 5), Segment(rows[1::2], [b"y"] * 15, 6)
    await store.append(hold, Batch([mine, other], rows[-1]))
    assert await store.negate(hold, rows[0], rows[-1], 5) == 15
    assert await store.negate(hold, ROW_ID_MIN, ROW_ID_MAX, 5) == 15  # A redo finds them again.
    page = await store.scan(LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=100, bytes_max=1 << 20)
    assert [row.pointer for row in page.rows] == [-5, 6] * 15
    assert [row.payload for row in page.rows] == [b"x", b"y"] * 15

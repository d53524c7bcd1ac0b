import bisect
from collections.abc import Iterable
from pathlib import Path

from broker.model import ROW_ID_MIN, RowId, TopicId, row_id
from broker.storage import leveldb_sweep as sweep
from broker.storage.control import Control
from broker.storage.keys import CONTROL, IDEMPOTENCY, OLDER_RANGES, LogId
from broker.storage.leveldb_database import Options
from broker.storage.leveldb_changes import expiry_prefix, side_row_prefix
from broker.storage.leveldb_holds import HeldLog, database_control_key, database_prefix
from broker.storage.leveldb_store import LevelDBStore
from broker.storage.ports import Batch, Segment

TOPIC = TopicId("default", "notes")
LOG = LogId(TopicId("default", "notes"), 2)


class SortedKeys:
    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = sorted(keys)

    def keys(self, start: bytes, stop: bytes, limit: int) -> list[bytes]:
        first = bisect.bisect_left(self._keys, start)
        end = bisect.bisect_left(self._keys, stop)
        return self._keys[first : min(end, first + limit)]


def rows(log: LogId, *milliseconds: int) -> list[bytes]:
    return [database_prefix(log) + row_id(each, 0) for each in milliseconds]


def hold_at(pointer: int, floor: int) -> HeldLog:
    control = Control(1, "a", 2, pointer=row_id(pointer, 0), floor=row_id(floor, 0))
    return HeldLog(LOG, control, control, None)


def expiry(end_ms: int, milliseconds: int) -> bytes:
    return expiry_prefix(LOG) + end_ms.to_bytes(8, "big") + row_id(milliseconds, 0)


def idempotency(hashed: int, milliseconds: int) -> bytes:
    return side_row_prefix(LOG, IDEMPOTENCY, bytes([hashed]) * 16) + row_id(milliseconds, 0)


def test_rows_below_the_floor_go_first_and_the_row_at_the_pointer_never() -> None:
    keys = SortedKeys(rows(LOG, 1, 2, 3, 4))
    found = sweep.log_slice(keys, hold_at(4, 9), 0, ROW_ID_MIN, 10)
    assert (found.keys, found.rows, found.more) == (rows(LOG, 1, 2, 3), 3, False)
    found = sweep.log_slice(keys, hold_at(4, 3), 0, ROW_ID_MIN, 1)
    assert (found.keys, found.more) == (rows(LOG, 1), True)


def test_rows_whose_own_life_ended_go_with_their_entries() -> None:
    lives = [expiry(50, 1), expiry(51, 2), expiry(40, 9)]
    keys = SortedKeys([*rows(LOG, 1, 2, 9), *lives])
    found = sweep.log_slice(keys, hold_at(9, 0), 51, ROW_ID_MIN, 10)
    assert set(found.keys) == {*rows(LOG, 1), expiry(50, 1)}
    assert (found.rows, found.more) == (1, False)


def test_a_search_goes_on_behind_what_is_gone() -> None:
    keys = SortedKeys([*rows(LOG, *range(1, 30)), *(expiry(100 + n, n) for n in range(40, 60))])
    hold = hold_at(50, 30)
    asked: list[bytes] = []
    gone: list[bytes] = []

    class Watched:
        def keys(self, start: bytes, stop: bytes, limit: int) -> list[bytes]:
            asked.append(start)
            return keys.keys(start, stop, limit)

    more = True
    while more:
        found = sweep.log_slice(Watched(), hold, 500, ROW_ID_MIN, 4)
        hold.cursor, more = found.cursor, found.more
        gone += found.keys
    entries = {expiry(100 + n, n) for n in range(40, 50)}
    assert set(gone) == {*rows(LOG, *range(1, 30)), *rows(LOG, *range(40, 50)), *entries}
    assert len(gone) == len(set(gone))
    for prefix in (database_prefix(LOG), expiry_prefix(LOG)):
        starts = [start for start in asked if start.startswith(prefix)]
        # Never back to where everything is gone already.
        assert starts == sorted(starts)
        assert starts.count(prefix) == 1


def test_old_idempotency_rows_are_found_a_stretch_at_a_time() -> None:
    per_slice = sweep.SIDE_LOOKED_AT_PER_ROW
    everything = [idempotency(number, number) for number in range(3 * per_slice)]
    keys = SortedKeys(everything)
    hold = hold_at(1000, 0)
    gone: list[bytes] = []
    slices, more = 0, True
    while more:
        found = sweep.log_slice(keys, hold, 0, row_id(7, 0), 1)
        hold.cursor, more = found.cursor, found.more
        gone += found.keys
        slices += 1
    assert gone == everything[:7]
    assert slices == 4


def test_idempotency_rows_above_the_pointer_stay() -> None:
    keys = SortedKeys([idempotency(1, 5)])
    found = sweep.log_slice(keys, hold_at(4, 0), 0, row_id(99, 0), 10)
    assert found.keys == []


def test_of_older_generations_all_goes_and_of_others_nothing() -> None:
    old, payloads = LogId(TOPIC, 1), LogId(TOPIC, 1, -5)
    going = [
        *rows(old, 1, 2),
        *rows(payloads, 3),
        side_row_prefix(old, IDEMPOTENCY, b"k" * 16) + row_id(1, 0),
        side_row_prefix(old, OLDER_RANGES, b"t" * 16),
        side_row_prefix(payloads, IDEMPOTENCY, b"k" * 16) + row_id(1, 0),
        database_control_key(payloads),
    ]
    present = LOG._replace(number=9)
    staying = [
        database_control_key(old),  # One row for all generations.
        *rows(LOG, 1, 2),
        *rows(present, 3),
        idempotency(1, 1),
        database_control_key(present),
        *rows(LogId(TopicId("default", "note"), 1), 1),
        *rows(LogId(TopicId("default", "notes2"), 1), 1),
    ]
    found = sweep.older_generations(SortedKeys(going + staying), TOPIC, 2, 100)
    assert sorted(found) == sorted(going)
    assert sweep.older_generations(SortedKeys(going + staying), TOPIC, 1, 100) == []
    assert len(sweep.older_generations(SortedKeys(going + staying), TOPIC, 2, 4)) == 4


def test_a_payload_logs_slice_has_its_rows_and_side_rows() -> None:
    log = LOG._replace(number=7)
    side = side_row_prefix(log, IDEMPOTENCY, b"k" * 16) + row_id(1, 0)
    other = LOG._replace(number=8)
    keys = SortedKeys([*rows(log, 1, 2), side, *rows(other, 1), database_control_key(log)])
    assert set(sweep.payload_rows(keys, log, 10)) == {*rows(log, 1, 2), side}
    [first] = sweep.payload_rows(keys, log, 1)
    assert set(sweep.payload_rows(keys, log, 10, first + b"\0")) == {*rows(log, 1, 2)}
    assert side_row_prefix(log, CONTROL) not in sweep.payload_rows(keys, log, 10)


async def test_bytes_on_disk_fall_while_others_read_and_append(tmp_path: Path) -> None:
    store = await LevelDBStore.open(tmp_path, Options(write_buffer_bytes=256 << 10))
    hold = await store.claim(LOG, "a")
    last: RowId = ROW_ID_MIN
    for number in range(100):
        ids = [row_id(1000 + number, seq) for seq in range(20)]
        payloads = [row * 200 + number.to_bytes(4, "big") for row in ids]
        await store.append(hold, Batch([Segment(ids, payloads)], ids[-1]))
        last = ids[-1]
    await store.compact(LOG)
    full = disk_bytes(tmp_path)
    await store.raise_floor(hold, row_id(1090, 0))
    while (await store.sweep_log(hold, 0, 300)).more:
        next_id = row_id(2000 + int.from_bytes(last[:8], "big"), 0)
        await store.append(hold, Batch([Segment([next_id], [b"x"])], next_id))
        last = next_id
    await store.compact(LOG)
    assert disk_bytes(tmp_path) < full / 2
    page = await store.scan(LOG, ROW_ID_MIN, last, rows_max=1000, bytes_max=1 << 24)
    assert page.rows[0].id == row_id(1090, 0)
    assert page.rows[-1].id == last
    await store.close()


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "db").glob("*.ldb"))

"""Mending real logs and manifests of LevelDB after simulated power cuts and disk faults."""

import itertools
import random
import shutil
from pathlib import Path

import plyvel
import pytest

from broker.storage.leveldb import torn_tail
from chaos.synced import scrambled

BLOCK, HEADER = 32 << 10, 7
SIZES = {
    "small": [10, 300, 40, 500, 20],
    "across blocks": [20_000, 20_000, 50_000, 100, 40_000],
    "large": [100, 300_000, 200_000],
    "to a block's end": [BLOCK - HEADER - 30, 200, 5000],
    "only one": [70_000],
}


def write(path: Path, sizes: list[int], **options: int) -> Path:
    """Make a database with one write of each size; return its log."""
    chance = random.Random(1)
    database = plyvel.DB(str(path), create_if_missing=True, **options)
    for number, size in enumerate(sizes):
        database.put(b"%04d" % number, chance.randbytes(size), sync=True)
    database.close()
    return max(path.glob("*.log"))


def numbers_in(path: Path) -> list[int]:
    database = plyvel.DB(str(path), paranoid_checks=True)
    found = [int(key) for key in database.iterator(include_value=False)]
    database.close()
    return found


def ends(log: Path) -> list[int]:
    return [0, *(write.end for write in torn_tail.writes(log.read_bytes()))]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_log_that_leveldb_wrote_is_sound(tmp_path: Path, sizes: list[int]) -> None:
    log = write(tmp_path / "db", sizes)
    assert len(ends(log)) == len(sizes) + 1
    assert all(
        torn_tail.is_sound(log.read_bytes(), one) for one in torn_tail.writes(log.read_bytes())
    )
    assert torn_tail.mend(tmp_path / "db", may_cut=False) == []
    assert numbers_in(tmp_path / "db") == list(range(len(sizes)))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_scrambled_end_is_cut_after_the_last_synced_write(
    tmp_path: Path, sizes: list[int]
) -> None:
    data = write(tmp_path / "db", sizes).read_bytes()
    *_, synced, end = [0, *(one.end for one in torn_tail.writes(data))]
    for seed in range(60):
        after = scrambled(data, synced, random.Random(seed))
        assert torn_tail.sound_end(after, is_log=True) == (end if after == data else synced), seed


@pytest.mark.parametrize("seed", range(12))
def test_leveldb_opens_a_mended_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([50, 3000, 30_000, 90_000]) for _ in range(6)]
    log = write(tmp_path / "db", sizes)
    synced = ends(log)[-2]
    before = log.read_bytes()
    log.write_bytes(scrambled(before, synced, chance))
    is_whole = log.read_bytes() == before
    cut = torn_tail.mend(tmp_path / "db", may_cut=True)
    assert log.stat().st_size == (len(before) if is_whole else synced)
    assert cut in ([], [log.name])
    assert numbers_in(tmp_path / "db") == list(range(len(sizes) - (not is_whole)))


def test_leveldb_itself_refuses_zeros_at_an_end(tmp_path: Path) -> None:
    log = write(tmp_path / "db", [100, 50_000])
    data, synced = log.read_bytes(), ends(log)[-2]
    log.write_bytes(data[:synced] + bytes(4096) + data[synced + 4096 :])
    with pytest.raises(plyvel.CorruptionError):
        plyvel.DB(str(tmp_path / "db"), paranoid_checks=True)


@pytest.mark.parametrize("sizes", [SIZES["small"], SIZES["across blocks"], SIZES["large"]])
@pytest.mark.parametrize("damage", ["zeros", "garbage", "a bit", "the header"])
def test_damage_before_the_last_write_is_refused(
    tmp_path: Path, sizes: list[int], damage: str
) -> None:
    log = write(tmp_path / "db", sizes)
    data = log.read_bytes()
    first, second = list(itertools.pairwise(ends(log)))[-2]
    if damage == "zeros":
        changed = data[:first] + bytes(second - first) + data[second:]
    elif damage == "garbage":
        changed = data[:first] + random.Random(2).randbytes(second - first) + data[second:]
    else:
        at = first + (HEADER + 20 if damage == "a bit" else 5)
        changed = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
    log.write_bytes(changed)
    try:
        assert torn_tail.mend(tmp_path / "db", may_cut=True) == []
    except torn_tail.Damaged as error:
        assert log.name in str(error)  # noqa: PT017 - Either this or LevelDB finds it.
    else:
        with pytest.raises(plyvel.CorruptionError):
            plyvel.DB(str(tmp_path / "db"), paranoid_checks=True)
    assert log.read_bytes() == changed


def test_a_hole_that_leveldb_does_not_notice_is_refused(tmp_path: Path) -> None:
    # LevelDB takes zeros up to a block's end for space that was never written.
    at_the_end = BLOCK - HEADER - 12 - 10
    log = write(tmp_path / "db", [at_the_end - 4000, 3900, 100, 100])
    data = log.read_bytes()
    _, first, *_ = ends(log)
    assert ends(log)[2] <= BLOCK < ends(log)[-1]
    log.write_bytes(data[:first] + bytes(BLOCK - first) + data[BLOCK:])
    with pytest.raises(torn_tail.Damaged, match="writes follow"):
        torn_tail.mend(tmp_path / "db", may_cut=True)


def test_a_write_that_begins_in_the_last_bytes_of_a_block_is_found() -> None:
    # Its first record has no room for a sequence number.
    for room in range(12):
        one = record(1, bytes(BLOCK - 2 * HEADER - room))
        begun = record(2, bytes(room))
        data = one + begun + record(4, bytes(100))
        assert torn_tail.sound_end(data, is_log=True) == len(data)
        damaged = b"\x00" * len(one) + data[len(one) :]
        with pytest.raises(torn_tail.Damaged):
            torn_tail.sound_end(damaged, is_log=True)


def record(kind: int, body: bytes) -> bytes:
    checksum = torn_tail.masked_crc32c(bytes([kind]) + body)
    return checksum.to_bytes(4, "little") + len(body).to_bytes(2, "little") + bytes([kind]) + body


def test_after_a_clean_close_nothing_is_cut(tmp_path: Path) -> None:
    log = write(tmp_path / "db", [100, 100])
    log.write_bytes(log.read_bytes() + bytes(4096))
    before = log.read_bytes()
    with pytest.raises(torn_tail.Damaged, match="closed cleanly"):
        torn_tail.mend(tmp_path / "db", may_cut=False)
    assert log.read_bytes() == before


def test_the_last_log_with_writes_is_mended_although_a_new_one_is_empty(tmp_path: Path) -> None:
    log = write(tmp_path / "db", [100, 5000])
    synced = ends(log)[-2]
    log.write_bytes(log.read_bytes()[:synced] + bytes(5000))
    log.with_name("999999.log").touch()
    assert torn_tail.mend(tmp_path / "db", may_cut=True) == [log.name]


def test_a_log_of_garbage_is_cut_to_an_empty_log(tmp_path: Path) -> None:
    log = write(tmp_path / "db", [100])
    log.write_bytes(random.Random(3).randbytes(100_000))
    assert torn_tail.mend(tmp_path / "db", may_cut=True) == [log.name]
    assert numbers_in(tmp_path / "db") == []


# --- The manifest ---------------------------------------------------------------------------------


def manifest_of(path: Path) -> Path:
    return path / (path / "CURRENT").read_text().strip()


@pytest.mark.parametrize("seed", range(8))
def test_an_edit_that_was_never_synced_is_cut(tmp_path: Path, seed: int) -> None:
    write(tmp_path / "db", [30_000] * 20, write_buffer_size=100_000)
    manifest = manifest_of(tmp_path / "db")
    data = manifest.read_bytes()
    chance = random.Random(seed)
    edit = record(1, chance.randbytes(5000))
    manifest.write_bytes(scrambled(data + edit, len(data), chance))
    torn_tail.mend(tmp_path / "db", may_cut=True)
    assert manifest.read_bytes()[: len(data)] == data
    assert manifest.stat().st_size in {len(data), len(data + edit)}
    if manifest.stat().st_size == len(data):
        assert numbers_in(tmp_path / "db") == list(range(20))


def test_the_last_edit_may_be_unsynced_while_its_log_is_there(tmp_path: Path) -> None:
    path, copy = tmp_path / "db", tmp_path / "copy"
    write(path, [1000] * 3)
    plyvel.DB(str(path)).close()  # Its log becomes a table; the manifest is new.
    database = plyvel.DB(str(path), write_buffer_size=1 << 20)
    database.put(b"0003", b"x", sync=True)
    shutil.copytree(path, copy)
    database.compact_range()  # An edit: the log becomes a table.
    edited = manifest_of(path).read_bytes()
    database.close()
    manifest = manifest_of(copy)
    synced = manifest.stat().st_size
    assert edited[:synced] == manifest.read_bytes()
    assert len(edited) > synced
    manifest.write_bytes(edited[:synced] + bytes(len(edited) - synced))
    assert torn_tail.mend(copy, may_cut=True) == [manifest.name]
    assert numbers_in(copy) == [0, 1, 2, 3]


def test_a_damaged_edit_whose_log_is_gone_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "db", [30_000] * 20, write_buffer_size=100_000)
    manifest = manifest_of(tmp_path / "db")
    data = manifest.read_bytes()
    *_, last = torn_tail.writes(data)
    manifest.write_bytes(data[: last.records[0]] + bytes(len(data) - last.records[0]))
    with pytest.raises(torn_tail.Damaged, match=r"log \d+ is gone"):
        torn_tail.mend(tmp_path / "db", may_cut=True)
    assert manifest.stat().st_size == len(data)


def test_a_damaged_edit_before_others_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "db", [30_000] * 20, write_buffer_size=100_000)
    manifest = manifest_of(tmp_path / "db")
    data = bytearray(manifest.read_bytes())
    middle = list(torn_tail.writes(bytes(data)))[-2].records[0]
    data[middle : middle + HEADER] = bytes(HEADER)
    manifest.write_bytes(data)
    with pytest.raises(torn_tail.Damaged, match="writes follow"):
        torn_tail.mend(tmp_path / "db", may_cut=True)


def test_a_missing_database_needs_no_mending(tmp_path: Path) -> None:
    assert torn_tail.mend(tmp_path / "db", may_cut=True) == []

"""Checking a store does not change it, and repairing it makes a copy."""

import asyncio
import errno
import json
import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import plyvel
import pytest
from structlog.testing import capture_logs

from broker.clock import SystemClock
from broker.errors import StorageCorrupt, Unavailable
from broker.model import Message, Poll, PublishRequest, TopicId, id_after
from broker.storage import head as heads
from broker.storage.entry import checked
from broker.storage.keys import LogId, page_key, root_key
from broker.storage.leveldb import files, stand_in
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.directory_repair import opened_copy, repair, verify_directory
from broker.storage.leveldb.layout import FORMAT_KEY, cells_prefix, head_key
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.ownpage import PageBounds
from broker.storage.records import Records
from broker.storage.table import HEAD, Space
from broker.topics.browse import BrowseQuery
from broker.topics.ranges import RangeQuery
from broker.topics.settings import PublishOptions, TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from tests.kit.full_store import BOUNDS, FULL, Filler, StillClock

LOG = LogId(FULL, 1)
PUBLISHED = TopicId("ns", "t")


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    table = await open_table(directory, Options(write_buffer_bytes=1 << 16))
    await Filler(Logs(table, StillClock(), bounds=BOUNDS)).fill()
    await table.close()
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    found = [path for path in directory.rglob("*") if path.is_file() and path.name != "LOCK"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def changed(directory: Path, key: bytes, value: bytes | None) -> None:
    """Change a key behind the broker's back."""
    (directory / "CLEAN").unlink(missing_ok=True)
    database = plyvel.DB(str(directory / "db"))
    if value is None:
        database.delete(key)
    else:
        database.put(key, value)
    database.close()


async def test_a_check_of_a_healthy_store_finds_no_problem_and_changes_no_file(
    directory: Path,
) -> None:
    before = contents(directory)
    report = await verify_directory(directory)
    assert report.problems == []
    assert report.topics == 8
    assert contents(directory) == before


async def test_a_copy_has_the_contents_of_the_store(directory: Path) -> None:
    before = contents(directory)
    async with opened_copy(directory) as table:
        root = await Logs(table, StillClock()).root(LOG)
    assert root is not None
    assert root.generation == 1
    assert contents(directory) == before


async def test_a_store_is_checked_while_a_broker_serves_it(directory: Path) -> None:
    closed = await verify_directory(directory)
    table = await open_table(directory)
    await table.put(Space.RECORDS, {b"another": checked(b"record")})
    report = await verify_directory(directory)
    assert report.problems == []
    assert (report.topics, report.records) == (closed.topics, closed.records + 1)
    async with opened_copy(directory) as copy:
        assert await copy.get(Space.RECORDS, b"another", [HEAD])
    await table.close()
    assert not [name for name in contents(directory) if name.startswith("check-")]


async def test_a_missing_manifest_of_a_served_store_is_reported(directory: Path) -> None:
    lock = files.DirectoryLock(directory)
    (directory / "db" / "CURRENT").unlink()
    [problem] = (await verify_directory(directory)).problems
    assert "db/CURRENT is missing" in problem
    with pytest.raises(StorageCorrupt, match="db/CURRENT is missing"):
        async with opened_copy(directory):
            pass
    lock.close()


async def test_a_store_in_use_is_not_repaired(directory: Path) -> None:
    lock = files.DirectoryLock(directory)
    with pytest.raises(Unavailable, match="in use"):
        await repair(directory, directory / "copy")
    lock.close()


async def test_a_directory_without_a_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        await verify_directory(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        await repair(tmp_path, tmp_path / "copy")


async def test_a_store_of_another_format_is_reported_with_advice(directory: Path) -> None:
    identity = json.loads((directory / "IDENTITY").read_text())
    (directory / "IDENTITY").write_text(json.dumps({**identity, "format": 1}))
    [problem] = (await verify_directory(directory)).problems
    assert "Start the release that wrote it" in problem
    with pytest.raises(StorageCorrupt, match="Start the release that wrote it"):
        await repair(directory, directory / "copy")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        (FORMAT_KEY, None, "the format row of the database is missing"),
        (b"zzz", b"?", "an unknown key"),
        (b"a", b"?", "an unknown key"),
        (b"f1", b"?", "an unknown key"),
        (b"M\0\0", b"?", "an unknown key"),
        (b"mxyz", b"?", "a row whose key names no topic"),
        (
            head_key(Space.MESSAGES, b"no:record:" + bytes(14)),
            b"?",
            "it has messages but no record",
        ),
        (
            head_key(Space.RECORDS, b"topic/check:full:"),
            None,
            "check:full: it has payloads but no record",
        ),
        (
            cells_prefix(Space.MESSAGES, page_key(LOG, b"\0" * 9 + b"\7")) + b"e",
            b"?",
            "has entries but no head",
        ),
        (head_key(Space.MESSAGES, root_key(LOG)), None, "a topic without a root"),
    ],
)
async def test_rows_without_their_record_root_or_head_are_found(
    directory: Path, key: bytes, value: bytes | None, wanted: str
) -> None:
    changed(directory, key, value)
    report = await verify_directory(directory)
    assert any(wanted in line for line in report.problems), report.problems


async def test_the_report_of_a_repaired_copy_names_the_losses(
    directory: Path, tmp_path: Path, drawn_seed: int
) -> None:
    database = plyvel.DB(str(directory / "db"))
    database.compact_range()
    database.close()
    (directory / "CLEAN").unlink()
    table = max((directory / "db").glob("*.ldb"), key=lambda path: path.stat().st_size)
    damaged = bytearray(table.read_bytes())
    damaged[random.Random(drawn_seed).randrange(len(damaged) // 4, len(damaged) // 2)] ^= 0x10
    table.write_bytes(damaged)
    before = contents(directory)
    assert not (await verify_directory(directory)).is_sound
    report = await repair(directory, tmp_path / "mended")
    assert report.lost or not report.is_sound
    assert not any("can't be read" in line for line in report.problems), report.problems
    assert contents(directory) == before
    opened = await open_table(tmp_path / "mended")
    await opened.close()


async def test_the_repaired_copy_of_a_healthy_store_is_sound(
    directory: Path, tmp_path: Path
) -> None:
    report = await repair(directory, tmp_path / "mended")
    assert report.problems == []
    assert report.topics == 8
    with pytest.raises(FileExistsError):
        await repair(directory, tmp_path / "mended")


async def test_files_that_changed_after_the_last_close_are_reported(directory: Path) -> None:
    [log] = (directory / "db").glob("*.log")
    log.write_bytes(log.read_bytes()[:-3])
    report = await verify_directory(directory)
    assert any("at the last close it had" in line for line in report.problems)
    assert report.topics > 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
async def test_a_store_on_a_full_or_read_only_disk_is_verified_elsewhere(
    directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    memory = tmp_path_factory.mktemp("memory")
    made = tempfile.mkdtemp

    def mkdtemp(suffix: Any = None, prefix: Any = None, dir: Any = None) -> str:  # noqa: A002 - The name of tempfile's.
        if Path(dir) == directory:
            raise OSError(number, os.strerror(number), str(directory))
        return made(suffix, prefix, dir)

    expected = await verify_directory(directory)
    there = contents(directory)
    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(stand_in, "IN_MEMORY", memory)
    assert await verify_directory(directory) == expected
    assert contents(directory) == there
    assert list(memory.iterdir()) == []


@asynccontextmanager
async def topics_in(directory: Path, bounds: PageBounds | None = None) -> AsyncIterator[Topics]:
    table = await open_table(directory, Options(write_buffer_bytes=1 << 16))
    logs = Logs(table, SystemClock(), bounds=bounds or PageBounds())
    around = Surroundings(logs, SystemClock(), TopicSettings(), owner="test")
    topics = Topics(around, Records(logs.resolver))
    try:
        yield topics
    finally:
        await topics.close()
        await table.close()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, bytes]]:
    """Return a store of one topic, whose pages fill several files, and its messages by row."""
    directory = tmp_path_factory.mktemp("published") / "data"

    async def publish() -> dict[bytes, bytes]:
        async with topics_in(directory) as topics:
            await topics.create(PUBLISHED, {"ttl": "100000"})
            for number in range(1200):
                pointer = 10**6 * SystemClock().now_ms() if number % 7 == 0 else None
                payload = random.Random(number).randbytes(300)
                options = PublishOptions(key=str(number) if number % 3 == 0 else None)
                await topics.publish(PUBLISHED, PublishRequest(pointer, [payload]), options)
            return await messages_of(topics)

    return directory, asyncio.run(publish())


async def page_of(topics: Topics, poll: Poll) -> list[Message]:
    stream = await topics.poll(PUBLISHED, poll)
    return [message async for messages in stream.messages() for message in messages]


async def messages_of(topics: Topics) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    poll = Poll()
    while page := await page_of(topics, poll):
        found |= {bytes(message.id[:10]): bytes(message.payload) for message in page}
        poll = Poll(start=id_after(page[-1].id))
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_a_repaired_copy_of_a_flipped_byte_verifies_and_lists_the_ids_that_are_gone(
    published: tuple[Path, dict[bytes, bytes]],
    tmp_path: Path,
    seed: int,
) -> None:
    store, before = published
    chance = random.Random(seed)
    directory = tmp_path / "data"
    shutil.copytree(store, directory)
    tables = (directory / "db").glob("*.ldb")
    damaged = max(tables, key=lambda path: (path.stat().st_size, path.name))
    content = bytearray(damaged.read_bytes())
    content[chance.randrange(len(content) * 3 // 4)] ^= 1
    damaged.write_bytes(bytes(content))
    report = await repair(directory, tmp_path / "mended")
    assert (report.problems, report.wrong) == ([], 0)
    ranges = [(line.split()[-3], line.split()[-1]) for line in report.lost]
    assert (await verify_directory(tmp_path / "mended")).is_sound
    async with topics_in(tmp_path / "mended") as topics:
        with capture_logs() as lines:
            after = await messages_of(topics)
        gone = before.keys() - after.keys()
        assert bool(gone) == bool(report.lost)
        assert after.items() <= before.items()
        assert all(any(low <= row.hex() <= high for low, high in ranges) for row in gone)
        if "some of" not in str(report.lost):
            assert not any(low <= row.hex() <= high for low, high in ranges for row in after)
        told = [line for line in lines if "messages that are lost" in line["event"]]
        assert bool(told) == bool(report.lost) == bool(topics.around.gaps.count)
        found = await topics.range(PUBLISHED, RangeQuery())
        assert bool(found.lost) == bool(report.lost)
        assert found.lost <= len(gone)
        await topics.publish(PUBLISHED, PublishRequest(None, [b"goes on"]))
        assert b"goes on" in (await messages_of(topics)).values()


SMALL = PageBounds(cells_max=20)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, bytes]]:
    """Return a store of several small pages, keys and a payload log, and its messages by row."""
    directory = tmp_path_factory.mktemp("small") / "data"

    async def publish() -> dict[bytes, bytes]:
        async with topics_in(directory, SMALL) as topics:
            await topics.create(PUBLISHED, {"ttl": "100000"})
            for number in range(110):
                pointer = 10**6 * SystemClock().now_ms() if number % 7 == 0 else None
                options = PublishOptions(key=str(number) if number % 3 == 0 else None)
                request = PublishRequest(pointer, [random.Random(number).randbytes(200)])
                await topics.publish(PUBLISHED, request, options)
            pointer = 10**6 * SystemClock().now_ms()
            for number in range(25):
                await topics.store(PUBLISHED, PublishRequest(pointer, [b"stored %d" % number]))
            await topics.publish(PUBLISHED, PublishRequest(pointer, []))
            return await messages_of(topics)

    return directory, asyncio.run(publish())


async def is_mended(directory: Path, copy: Path, before: dict[bytes, bytes]) -> None:
    """Repair a store; the copy must verify, serve, and have each message or a range for it."""
    report = await repair(directory, copy)
    assert (report.problems, report.wrong) == ([], 0)
    told = [line.split() for line in report.lost if " messages from " in line]
    async with topics_in(copy, SMALL) as topics:
        after = await messages_of(topics)
        assert after.items() <= before.items()
        for row in before.keys() - after.keys():
            assert any(words[-3] <= row.hex() <= words[-1] for words in told), (row, report.lost)
        await topics.publish(PUBLISHED, PublishRequest(None, [b"goes on"]))
        assert b"goes on" in (await messages_of(topics)).values()
    assert (await verify_directory(copy)).is_sound


@pytest.mark.parametrize("seed", range(12))
async def test_a_flipped_bit_in_any_file_is_mended(
    small: tuple[Path, dict[bytes, bytes]], tmp_path: Path, seed: int
) -> None:
    store, before = small
    chance = random.Random(seed)
    directory = tmp_path / "data"
    shutil.copytree(store, directory)
    names = sorted(contents(directory).keys() - {"db/LOG", "db/LOG.old"})
    damaged = directory / names[seed % len(names)]
    content = bytearray(damaged.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    damaged.write_bytes(bytes(content))
    await is_mended(directory, tmp_path / "mended", before)


def keys_but_cells(directory: Path) -> list[bytes]:
    """Return the keys of records, roots and heads, and of one mark."""
    database = plyvel.DB(str(directory / "db"))
    keys = [key for key, _ in database if key[:1] in b"mpr"]
    database.close()
    marks = [key for key in keys if b":\0\0\0\0k" in key]
    return [key for key in keys if key not in marks[1:]]


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "damaged"])
async def test_a_record_a_root_and_the_head_of_a_page_are_made_again(
    small: tuple[Path, dict[bytes, bytes]], tmp_path: Path, *, is_gone: bool
) -> None:
    store, before = small
    shutil.copytree(store, tmp_path / "keys")
    keys = keys_but_cells(tmp_path / "keys")
    assert len(keys) > 10
    for number, key in enumerate(keys):
        directory = tmp_path / f"data{number}"
        shutil.copytree(store, directory)
        (directory / "CLEAN").unlink()
        database = plyvel.DB(str(directory / "db"))
        value = bytearray(database.get(key))
        value[len(value) // 2] ^= 4
        database.delete(key) if is_gone else database.put(key, bytes(value))
        database.close()
        await is_mended(directory, tmp_path / f"mended{number}", before)


def largest_log(store: Path) -> Path:
    """Return the log with the most rows; a store may have a second one that is being merged."""
    return max((store / "db").glob("*.log"), key=lambda path: path.stat().st_size)


def test_a_repair_names_the_files_that_held_rows_of_which_no_trace_is_left(tmp_path: Path) -> None:
    """The newest messages lie in the log alone: without it the store is sound, as it was before them."""
    store = tmp_path / "store"

    async def fill() -> None:
        table = await open_table(store, Options(write_buffer_bytes=1 << 16))
        await Filler(Logs(table, StillClock(), bounds=BOUNDS)).fill()
        await table.close()

    asyncio.run(fill())
    log = largest_log(store)
    tables = sorted((store / "db").glob("*.ldb"))
    assert tables

    def lost(name: str, change: Callable[[Path], object]) -> str:
        copy = Path(tempfile.mkdtemp(dir=tmp_path)) / "store"
        shutil.copytree(store, copy)
        change(copy / "db" / name)
        return "\n".join(asyncio.run(repair(copy, copy.with_suffix(".mended"))).lost)

    def zero(path: Path) -> None:
        path.write_bytes(bytes(path.stat().st_size))

    def unlink_in_an_open_store(path: Path) -> None:
        path.unlink()
        (path.parents[1] / "CLEAN").unlink()

    gone = ": rows that lay only there are gone"
    assert f"db/{log.name} is damaged at byte 0{gone}" in lost(log.name, zero)
    assert f"db/{log.name} is missing; at the last close" in lost(log.name, Path.unlink)
    for path in tables:
        assert f"db/{path.name} is damaged{gone}" in lost(path.name, zero)
        assert f"db/{path.name} is missing{gone}" in lost(path.name, unlink_in_an_open_store)
    assert lost("CURRENT", Path.exists) == ""


@pytest.mark.parametrize("bit", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", [b"0", b"1"])
async def test_a_flipped_bit_in_the_kind_of_an_entry_is_mended(
    published: tuple[Path, dict[bytes, bytes]], tmp_path: Path, kind: bytes, bit: int
) -> None:
    """The key of an entry has its kind, and is read without a check if its block fails one."""
    store, before = published
    directory = tmp_path / "data"
    shutil.copytree(store, directory)
    for table in sorted((directory / "db").glob("*.ldb")):
        content = bytearray(table.read_bytes())
        # Keys share their beginnings, so the file has only the ends of the ids.
        found = (content.find(row[-2:] + kind) for row in before)
        if (at := next((each for each in found if each >= 0), -1)) >= 0:
            content[at + 2] ^= bit
            table.write_bytes(bytes(content))
            break
    report = await repair(directory, tmp_path / "mended")
    assert (report.problems, report.wrong) == ([], 0)
    assert " messages from " in report.lost[0]


async def test_keys_that_no_store_has_are_not_in_a_repaired_copy(
    small: tuple[Path, dict[bytes, bytes]], tmp_path: Path
) -> None:
    """LevelDB's repair takes damaged writes of a log as they are."""
    store, before = small
    directory = tmp_path / "data"
    shutil.copytree(store, directory)
    log = largest_log(directory)
    content = log.read_bytes()
    log.write_bytes(content.replace(b"ns:t", b"ns;t", 3))
    await is_mended(directory, tmp_path / "mended", before)
    for changed in (content.replace(b"rns:", b"rns;"), content.replace(b"mns:t:", b"\xf0ns:t:", 1)):
        log.write_bytes(changed)
        shutil.rmtree(tmp_path / "mended")
        assert (await repair(directory, tmp_path / "mended")).problems == []


async def test_readers_are_told_of_lost_messages_of_a_transaction(
    small: tuple[Path, dict[bytes, bytes]], tmp_path: Path
) -> None:
    """They lay in the transaction's payload log; the topic has one reference to it."""
    store, _ = small
    directory = tmp_path / "data"
    shutil.copytree(store, directory)
    (directory / "CLEAN").unlink()
    database = plyvel.DB(str(directory / "db"))
    cells = cells_prefix(Space.PAYLOADS, b"ns:t:")[:1]
    stored = [key for key, value in database.iterator(prefix=cells) if b"stored" in value]
    for key in stored[3:5]:
        database.delete(key)
    database.close()
    report = await repair(directory, tmp_path / "mended")
    assert (report.problems, report.wrong, len(report.lost)) == ([], 0, 1)
    async with topics_in(tmp_path / "mended", SMALL) as topics:
        gaps = topics.around.gaps
        with capture_logs() as lines:
            await messages_of(topics)
        assert (gaps.count > 0, [line["topic"] for line in lines]) == (True, ["ns:t"])
        told = gaps.count
        await topics.browse(PUBLISHED, BrowseQuery(limit=1000))
        assert gaps.count > told
        whole = await topics.range(PUBLISHED, RangeQuery())
        assert whole.lost == 2
        behind = await topics.range(PUBLISHED, RangeQuery(after=whole.through))
        assert behind.lost == 0


async def test_the_tail_of_a_published_payload_log_is_closed_again(
    small: tuple[Path, dict[bytes, bytes]], tmp_path: Path
) -> None:
    """The write that closed it may have been lost with a damaged record of the log."""
    store, before = small
    directory = tmp_path / "data"
    shutil.copytree(store, directory)
    (directory / "CLEAN").unlink()
    database = plyvel.DB(str(directory / "db"))
    lead = head_key(Space.PAYLOADS, b"ns:t:")
    closed = 0
    for key, value in database.iterator(prefix=lead):
        with suppress(StorageCorrupt, ValueError):
            head = heads.decode(value)
            if head.state is heads.PageState.CLOSED:
                database.put(key, heads.encode(head._replace(state=heads.PageState.OPEN)))
                closed += 1
    database.close()
    assert closed == 1
    assert not (await verify_directory(directory)).is_sound
    await is_mended(directory, tmp_path / "mended", before)

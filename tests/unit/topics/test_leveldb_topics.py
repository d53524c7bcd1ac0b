"""Topics over LevelDB: restarts, full disks, and freed disk space."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.errors import BrokerError, IdempotencyKeyReused, PayloadsSealed, StorageFull
from broker.model import (
    Message,
    Poll,
    PublishRequest,
    RollbackRange,
    Snapshot,
    TopicId,
    timestamp_of,
)
from broker.storage.leveldb import compaction
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.topics.browse import BrowseQuery
from broker.topics.retention import Sweeper
from broker.topics.settings import PublishedIds, PublishOptions, TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.wire import attributes
from tests.kit.serving import eventually

TOPIC = TopicId("ns", "t")
LIFE_S = 1 << 40


class Ahead(SystemClock):
    """The system's clocks, and some time more: it passed by all of them."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def patient_ms(self, life_ms: float) -> int:
        return super().patient_ms(life_ms) + self.ahead_ms

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_ms / 1000


class Node:
    def __init__(self, directory: Path, options: Options) -> None:
        self.clock = Ahead()
        self._directory = directory
        self.full = False
        self._options = options

    async def start(self) -> None:
        self.table = await open_table(self._directory, self._options, fault=self._fault)
        logs = Logs(self.table, self.clock)
        settings = TopicSettings(transaction_life_max_s=LIFE_S, sweep_margin_ms=0)
        around = Surroundings(logs, self.clock, settings, owner="node")
        self.topics = Topics(around, Records(logs.resolver))

    def _fault(self, number: int, when: str) -> None:
        del number
        if self.full and when == "before":
            raise OSError(errno.ENOSPC, "no space left on device")

    def disk_bytes(self) -> int:
        sizes = []
        for path in (self._directory / "db").iterdir():
            with contextlib.suppress(FileNotFoundError):  # LevelDB may remove it at any time.
                sizes.append(path.stat().st_size)
        return sum(sizes)

    async def stop(self) -> None:
        await self.topics.close()
        await self.table.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def publish(
        self, *payloads: bytes, pointer: int | None = None, key: str = ""
    ) -> PublishedIds:
        options = PublishOptions(key=key) if key else PublishOptions()
        return await self.topics.publish(TOPIC, PublishRequest(pointer, payloads), options)

    async def messages(self, poll: Poll | None = None) -> list[Message]:
        stream = await self.topics.poll(TOPIC, poll or Poll())
        return [m async for messages in stream.messages() for m in messages]

    async def payloads(self, poll: Poll | None = None) -> list[bytes]:
        return [message.payload for message in await self.messages(poll)]


@contextlib.asynccontextmanager
async def started(directory: Path, options: Options) -> AsyncIterator[Node]:
    made = Node(directory, options)
    await made.start()
    try:
        await made.topics.create(TOPIC, {"ttl": "600"})
        yield made
    finally:
        made.full = False
        await made.stop()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with started(tmp_path / "data", Options()) as made:
        yield made


@pytest.fixture
async def merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node that merges deleted pages at once, and writes out its table in memory after 256 KiB."""
    monkeypatch.setattr(compaction, "LINGER_S", 0.0)
    async with started(tmp_path / "data", Options(write_buffer_bytes=256 << 10)) as made:
        yield made


async def test_a_restart_keeps_all_acknowledged_changes(node: Node) -> None:
    await node.publish(b"a", key="k")
    await node.topics.store(TOPIC, PublishRequest(5, [b"s1", b"s2"]))
    done = await node.topics.publish(TOPIC, PublishRequest(7, [b"tx"]))
    await node.topics.publish(TOPIC, PublishRequest(5, []))
    await node.topics.rollback(TOPIC, RollbackRange(7, done.first, done.last))
    before = await node.payloads()
    await node.restart()
    assert await node.payloads() == before == [b"a", b"tx", b"s1", b"s2"]
    snapshot = Snapshot(transaction_id=100, read_pointer=100)
    assert await node.payloads(Poll(snapshot=snapshot)) == [b"a", b"s1", b"s2"]
    with pytest.raises(PayloadsSealed):
        await node.topics.store(TOPIC, PublishRequest(5, [b"late"]))
    await node.publish(b"a", key="k")
    assert await node.payloads() == before


async def test_attributes_and_lifetimes_survive_a_restart(node: Node) -> None:
    encoded = [attributes.encode(b"k", {"h": b"1"}), b""]
    options = PublishOptions(key="once")
    wanted = PublishRequest(None, [b"a", b"b"], attributes=encoded, ttls_s=[500, None])
    first = await node.topics.publish(TOPIC, wanted, options)
    await node.topics.store(TOPIC, PublishRequest(5, [b"s", b"t"], attributes=encoded[::-1]))
    await node.topics.publish(TOPIC, PublishRequest(5, []))
    before = await node.messages()
    assert [(each.payload, each.key, dict(each.headers)) for each in before] == [
        (b"a", b"k", {"h": b"1"}),
        (b"b", None, {}),
        (b"s", None, {}),
        (b"t", b"k", {"h": b"1"}),
    ]
    await node.restart()
    assert await node.messages() == before
    shown = (await node.topics.browse(TOPIC, BrowseQuery())).entries
    assert [each.attributes for each in shown] == [*encoded, b"", *encoded[::-1]]
    lives = [each.expires_at_ms - timestamp_of(each.id) for each in shown]
    assert lives == [500_000] + [600_000] * 4
    assert (await node.topics.publish(TOPIC, wanted, options)) == first._replace(replayed=True)
    for other in (
        wanted._replace(ttls_s=[501, None]),
        wanted._replace(attributes=encoded[::-1]),
        wanted._replace(attributes=()),
    ):
        with pytest.raises(IdempotencyKeyReused):
            await node.topics.publish(TOPIC, other, options)


async def test_a_key_holds_after_a_restart_and_nine_minutes_later(node: Node) -> None:
    first = await node.publish(b"a", key="k")
    stored = PublishRequest(5, [b"s"])
    await node.topics.store(TOPIC, stored, PublishOptions(key="k"))
    await node.restart()
    node.clock.ahead_ms = 9 * 60_000
    assert await node.publish(b"a", key="k") == first._replace(replayed=True)
    assert (await node.topics.store(TOPIC, stored, PublishOptions(key="k"))).replayed
    with pytest.raises(IdempotencyKeyReused):
        await node.publish(b"another", key="k")
    assert (await Sweeper(node.topics.leaders).sweep()).skipped == 0
    await node.restart()
    assert (await node.publish(b"a", key="k")).replayed
    node.clock.ahead_ms = 24 * 3_600_000
    await node.restart()
    assert (await node.publish(b"a", key="k")).replayed, "a window from the claim on"
    node.clock.ahead_ms += 10 * 60_000 + 1000
    assert not (await node.publish(b"a", key="k")).replayed


async def test_stored_payloads_expire_with_their_reference(node: Node) -> None:
    options = PublishOptions(ttl_s=100)
    await node.topics.store(TOPIC, PublishRequest(5, [b"long"] * 3))
    await node.topics.store(TOPIC, PublishRequest(6, [b"short", b"short"]), options)
    for number in (5, 6):
        await node.topics.publish(TOPIC, PublishRequest(number, []))
    assert await node.payloads() == [b"long"] * 3 + [b"short"] * 2
    node.clock.ahead_ms = 100_500
    assert await node.payloads() == [b"long"] * 3
    node.clock.ahead_ms = 600_500
    assert await node.payloads() == []


async def test_a_full_disk_refuses_writes_and_reads_go_on(node: Node) -> None:
    await node.publish(b"before")
    node.full = True
    under_way = await asyncio.gather(
        *(node.publish(b"%d" % number) for number in range(20)), return_exceptions=True
    )
    assert {type(error) for error in under_way} == {StorageFull}
    assert any(isinstance(e, StorageFull) and e.outcome == "unknown" for e in under_way)
    with pytest.raises(StorageFull) as caught:
        await node.publish(b"later")
    assert (caught.value.outcome, caught.value.retriable) == ("refused", True)
    assert await node.payloads() == [b"before"]
    node.full = False
    assert await node.table.probe()
    await node.publish(b"after")
    await node.restart()
    got = await node.payloads()
    assert (got[0], got[-1]) == (b"before", b"after")
    refused = {
        b"%d" % number
        for number, error in enumerate(under_way)
        if isinstance(error, BrokerError) and error.outcome == "refused"
    }
    assert not refused & set(got)


async def test_sweeping_removes_the_messages_of_old_generations(node: Node) -> None:
    for _ in range(3):
        await node.publish(*[bytes(1000)] * 200)
        await node.topics.delete(TOPIC)
        await node.topics.create(TOPIC, {"ttl": "600"})
    await node.publish(b"new")
    report = await Sweeper(node.topics.leaders).sweep()
    assert report.rows >= 600
    assert report.skipped == 0
    assert await node.payloads() == [b"new"]


async def test_deleting_a_topic_frees_its_disk_space(merging: Node) -> None:
    for _ in range(60):
        # Random bytes do not compress, so compaction alone does not shrink the files.
        await merging.publish(*(os.urandom(1000) for _ in range(50)))
    full = merging.disk_bytes()
    assert full > 3_000_000
    await merging.topics.delete(TOPIC)
    report = await Sweeper(merging.topics.leaders).sweep()
    assert (report.skipped, report.rows) == (0, 3000)
    await eventually(lambda: merging.disk_bytes() < full / 2, lambda: str(merging.disk_bytes()))


async def test_bytes_on_disk_fall_while_publishing_and_reading_go_on(merging: Node) -> None:
    for number in range(60):
        await merging.publish(*(os.urandom(1000) + b"%d" % number for _ in range(50)))
    merging.clock.ahead_ms = 601_000
    full = merging.disk_bytes()
    assert full > 2_000_000
    number, tails = 0, 0
    swept = asyncio.Event()

    async def publish() -> None:
        nonlocal number
        while not swept.is_set():
            await merging.publish(b"%d" % number)
            number += 1

    async def tail() -> None:
        nonlocal tails
        while not swept.is_set():
            published = number
            got = [int(payload) for payload in await merging.payloads()]
            assert got == list(range(len(got)))
            assert len(got) >= published
            tails += 1
            # A read from the cache never pauses; here the other tasks get a turn.
            await asyncio.to_thread(merging.disk_bytes)

    async def sweep() -> None:
        try:
            while merging.disk_bytes() > full / 2 or number <= 10 or tails <= 3:
                await Sweeper(merging.topics.leaders).sweep()
        finally:
            swept.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for work in (publish, tail, sweep):
            group.create_task(work())
    assert [int(payload) for payload in await merging.payloads()] == list(range(number))


async def test_many_at_once_are_all_stored_in_pages_of_every_width(node: Node) -> None:
    await asyncio.gather(*(node.publish(b"%d" % n, b"%d" % (n + 1)) for n in range(0, 2000, 2)))
    everything = await node.payloads()
    assert sorted(map(int, everything)) == list(range(2000))
    await node.restart()
    assert await node.payloads() == everything
    got: list[bytes] = []
    start = None
    while True:
        stream = await node.topics.poll(TOPIC, Poll(start, inclusive=False, limit=97))
        page = [m async for messages in stream.messages() for m in messages]
        if not page:
            break
        got += [message.payload for message in page]
        start = page[-1].id
    assert got == everything

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from broker.errors import (
    OutcomeUnknown,
    StorageCorrupt,
    StorageFull,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from broker.model import TopicId
from broker.storage import records
from broker.testing.memory import MemoryRecords
from broker.testing.virtual_time import VirtualLoop, simulate
from broker.topics import registry as registry_module
from broker.topics.registry import TopicRegistry, record_key
from tests.kit.bench import Gate

TOPIC = TopicId("ns", "t")
PROPERTIES = {"ttl": "5"}


class Unsure(MemoryRecords):
    """Records whose puts follow ``plan``: unknown but done, unknown and not done, or fine."""

    def __init__(self, plan: list[str]) -> None:
        super().__init__()
        self.plan = list(plan)

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        fate = self.plan.pop(0) if self.plan else "fine"
        if fate == "not done":
            raise OutcomeUnknown("the answer was lost")
        version = await super().put_if(key, expected, value)
        if fate == "done":
            raise OutcomeUnknown("the answer was lost")
        return version


plans = st.lists(st.sampled_from(["done", "not done", "fine"]), max_size=7)


@given(plans)
def test_puts_of_unknown_outcome_are_resolved_by_their_token(plan: list[str]) -> None:
    async def main(_: VirtualLoop) -> None:
        registry = TopicRegistry(Unsure(plan))
        created = await registry.create(TOPIC, PROPERTIES)
        assert created.generation == 1
        changed = await registry.update(TOPIC, {"ttl": "6"})
        assert changed.ttl_s == 6
        await registry.delete(TOPIC, 1)
        with pytest.raises(TopicNotFound):
            await registry.get(TOPIC)
        again = await registry.create(TOPIC, PROPERTIES)
        assert again.generation == 2

    simulate(main)


async def test_puts_that_never_end_are_unknown() -> None:
    registry = TopicRegistry(Unsure(["not done"] * 100))
    with pytest.raises(OutcomeUnknown):
        await registry.create(TOPIC, PROPERTIES)


class Overtaken(MemoryRecords):
    """Records whose put gets no answer; ``meanwhile`` then changes the record before it is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.puts = 0

    @override
    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        self.puts += 1
        version = await super().put_if(key, expected, value)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None:
            return version
        await meanwhile()
        raise OutcomeUnknown("the answer was lost")


async def test_an_uncertain_change_is_not_repeated_over_a_later_one() -> None:
    records = Overtaken()
    one, two = TopicRegistry(records), TopicRegistry(records)
    await one.create(TOPIC, PROPERTIES)
    records.meanwhile = lambda: two.update(TOPIC, {"ttl": "7"})
    with pytest.raises(OutcomeUnknown):
        await one.update(TOPIC, {"ttl": "6"})
    assert (await two.get(TOPIC)).ttl_s == 7
    assert records.puts == 3


async def test_an_update_to_equal_properties_writes_no_record() -> None:
    records = Overtaken()
    one, two = TopicRegistry(records), TopicRegistry(records)
    await one.create(TOPIC, PROPERTIES)
    for registry in (one, two, two):
        assert (await registry.update(TOPIC, {"ttl": "6"})).ttl_s == 6
    assert records.puts == 2
    assert (await two.update(TOPIC, PROPERTIES)).ttl_s == 5
    assert records.puts == 3


async def test_an_uncertain_creation_that_was_changed_since_is_unknown() -> None:
    records = Overtaken()
    one, two = TopicRegistry(records), TopicRegistry(records)
    records.meanwhile = lambda: two.update(TOPIC, {"ttl": "7"})
    with pytest.raises(OutcomeUnknown):
        await one.create(TOPIC, PROPERTIES)


@pytest.mark.parametrize("method", ["get", "put_if"])
async def test_an_uncertain_creation_is_unknown_while_storage_does_not_answer(method: str) -> None:
    records = Unsure(["done" if method == "get" else "not done"])
    registry = TopicRegistry(records)
    real, asked = getattr(records, method), 0

    async def deaf(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise Unavailable("no gateway")
        return await real(*arguments)

    setattr(records, method, deaf)
    with pytest.raises(OutcomeUnknown):
        await registry.create(TOPIC, PROPERTIES)


async def test_after_a_failed_put_the_record_is_read_again() -> None:
    records = MemoryRecords()
    registry = TopicRegistry(records)
    await registry.create(TOPIC, PROPERTIES)
    put_if = records.put_if

    async def full(*arguments: Any) -> Any:
        await put_if(*arguments)
        raise StorageFull("no space", outcome="unknown")

    records.put_if = full  # type: ignore[method-assign]
    with pytest.raises(StorageFull):
        await registry.update(TOPIC, {"ttl": "6"})
    assert (await registry.get(TOPIC)).ttl_s == 6


async def test_two_registries_do_not_create_the_same_generation() -> None:
    records = MemoryRecords()
    one, two = TopicRegistry(records), TopicRegistry(records)
    await one.create(TOPIC, PROPERTIES)
    with pytest.raises(TopicExists):
        await two.create(TOPIC, PROPERTIES)
    await two.delete(TOPIC, 1)
    assert (await one.create(TOPIC, PROPERTIES)).generation == 2


async def test_deleting_a_deleted_or_replaced_generation_is_a_no_op() -> None:
    registry = TopicRegistry(MemoryRecords())
    await registry.delete(TOPIC, 1)
    await registry.create(TOPIC, PROPERTIES)
    await registry.delete(TOPIC, 1)
    await registry.delete(TOPIC, 1)
    await registry.create(TOPIC, PROPERTIES)
    await registry.delete(TOPIC, 1)
    assert (await registry.get(TOPIC)).generation == 2


async def test_a_record_that_does_not_decode_is_corrupt() -> None:
    records = MemoryRecords()
    await records.put_if(record_key(TOPIC), None, b"{")
    with pytest.raises(StorageCorrupt):
        await TopicRegistry(records).get(TOPIC)


class CountedReads(MemoryRecords):
    reads = 0

    @override
    async def get(self, key: bytes) -> records.Record | None:
        self.reads += 1
        return await super().get(key)


async def test_cached_records_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "RECORD_BYTES_MAX", 250_000)
    counted = CountedReads()
    registry = TopicRegistry(counted)
    topics = [TopicId("n", f"t{number}") for number in range(8)]
    for topic in topics:
        await registry.create(topic, {"ttl": "60", "note": "x" * 60_000})
    counted.reads = 0
    for topic in reversed(topics):
        assert (await registry.get(topic)).generation == 1
    assert counted.reads == 4, "four of eight fit, and the newest were kept"


async def test_the_cache_of_records_has_a_limit() -> None:
    counted = CountedReads()
    registry = TopicRegistry(counted, cached_max=3)
    topics = [TopicId("ns", f"t{number}") for number in range(10)]
    for topic in topics:
        await registry.create(topic, PROPERTIES)
    counted.reads = 0
    for topic in reversed(topics):
        assert (await registry.get(topic)).generation == 1
    assert counted.reads == 7, "the last three are cached"
    assert len(await registry.all()) == 10


@pytest.mark.parametrize("begins", ["before the put", "during the put"])
async def test_a_read_that_overlaps_a_change_does_not_bring_the_record_before_back(
    monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    store, read, put = MemoryRecords(), Gate(), Gate()
    registry = TopicRegistry(store)
    await registry.create(TOPIC, PROPERTIES)
    real_get, real_put = store.get, store.put_if
    changing = None
    if begins == "during the put":
        monkeypatch.setattr(store, "put_if", lambda *given: put.before(real_put, *given))
        changing = asyncio.ensure_future(registry.update(TOPIC, {"ttl": "6"}))
        await put.reached.wait()
    monkeypatch.setattr(store, "get", lambda key: read.after(real_get, key))
    reading = asyncio.ensure_future(registry.read(TOPIC))
    await read.reached.wait()
    monkeypatch.setattr(store, "get", real_get)
    put.open()
    await (changing or registry.update(TOPIC, {"ttl": "6"}))
    read.open()
    await reading
    assert (await registry.get(TOPIC)).ttl_s == 6


async def test_namespaces_are_those_of_live_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "ROWS_AT_ONCE", 2)
    registry = TopicRegistry(MemoryRecords())
    assert await registry.namespaces() == []
    for name in ("b:t", "a1:t", "a:t", "a:u", "a:v", "gone:t"):
        await registry.create(TopicId(*name.split(":")), PROPERTIES)
    await registry.delete(TopicId("gone", "t"), 1)
    assert await registry.namespaces() == ["a", "a1", "b"]

"""If the queues of a node are full, the caller that holds the most gives way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.errors import Overloaded
from broker.model import PublishRequest
from broker.topics.settings import PublishedIds, PublishOptions
from tests.kit.bench import TOPIC, Bench, Gate, settle

Publishing = asyncio.Future[PublishedIds]


class Busy:
    """A topic whose storage does not answer, so that publishes stay in its queue."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.append = Gate()

    async def begin(self) -> None:
        await self.bench.create()
        await self.bench.publish(b"first")
        self.bench.table.on("append", self.append.before)
        self.under_way = self.publish("", 1)
        await self.append.reached.wait()

    def publish(self, caller: str, size: int, key: str | None = None) -> Publishing:
        options = PublishOptions(caller=caller, key=key)
        request = PublishRequest(None, [bytes(size)])
        return asyncio.ensure_future(self.bench.topics.publish(TOPIC, request, options))

    async def queued(self, caller: str, size: int, key: str | None = None) -> Publishing:
        publishing = self.publish(caller, size, key)
        await settle()
        return publishing


@pytest.fixture
async def busy(bench: Bench) -> AsyncIterator[Busy]:
    bench.restart(queued_bytes_max=100_000, queued_requests_max=8)
    busy = Busy(bench)
    await busy.begin()
    yield busy
    busy.append.open()
    await busy.under_way
    await settle()
    assert bench.around.queue.bytes == 0


async def test_the_largest_caller_gives_way(busy: Busy) -> None:
    large = [await busy.queued("10.0.0.1", 30_000, key) for key in (None, "k")]
    middle = await busy.queued("10.0.0.2", 45_000)
    small = await busy.queued("10.0.0.3", 1_000)
    for refused in large[1:]:
        with pytest.raises(Overloaded):
            await refused
    assert not any(each.done() for each in (large[0], middle, small))
    busy.append.open()
    await asyncio.gather(large[0], middle, small)


async def test_the_largest_caller_itself_is_refused(busy: Busy) -> None:
    small = await busy.queued("10.0.0.2", 30_000)
    large = await busy.queued("10.0.0.1", 71_000)
    with pytest.raises(Overloaded, match="full"):
        await busy.publish("10.0.0.1", 1)
    assert not small.done()
    assert not large.done()


async def test_one_caller_leaves_a_quarter_of_the_bytes_to_others(busy: Busy) -> None:
    await busy.queued("10.0.0.1", 76_000)
    with pytest.raises(Overloaded, match="of this caller"):
        await busy.publish("10.0.0.1", 1)
    assert not (await busy.queued("10.0.0.2", 1)).done()


async def test_one_caller_leaves_a_quarter_of_a_topics_places_to_others(busy: Busy) -> None:
    mine = [await busy.queued("10.0.0.1", 1) for _ in range(6)]
    with pytest.raises(Overloaded, match="of this topic"):
        await busy.publish("10.0.0.1", 1)
    others = [await busy.queued("10.0.0.2", 1) for _ in range(2)]
    assert not any(each.done() for each in (*mine, *others))
    busy.append.open()
    await asyncio.gather(*mine, *others)
    await busy.publish("10.0.0.1", 1)


async def test_requests_of_the_node_itself_never_give_way(busy: Busy) -> None:
    own = await busy.queued("", 99_000)
    other = await busy.queued("10.0.0.1", 2_000)
    assert not (await busy.queued("10.0.0.2", 1)).done()
    with pytest.raises(Overloaded, match="full"):
        await other
    assert not own.done()

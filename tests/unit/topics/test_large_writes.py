"""Another thread hashes, builds and encodes large requests; they stay in the order of their arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import Fenced, IdempotencyKeyReused, TooManyMessages
from broker.long_work import ASIDE_BYTES_MIN, ASIDE_ITEMS_MIN
from broker.model import PublishRequest
from broker.topics import admission
from broker.topics.settings import PublishOptions
from tests.kit.bench import Bench, failing, settle

MANY = [b"%d" % number for number in range(ASIDE_ITEMS_MIN)]
LONG = [bytes(ASIDE_BYTES_MIN)]
OURS = (
    "broker.topics.writer.aside",
    "broker.storage.ownpage.aside",
    "broker.topics.keyed_log.aside",
)


class Slow:
    """A thread that waits until a test lets it go on."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.asked = asyncio.Event()
        self.goes_on = asyncio.Event()
        patch.setattr(name, self.aside)

    async def aside(self, work: Callable[[], Any]) -> Any:
        self.asked.set()
        await self.goes_on.wait()
        return work()


def publishing(bench: Bench, *payloads: bytes, **options: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(bench.publish(*payloads, options=PublishOptions(**options)))


@pytest.mark.parametrize(
    ("name", "large"),
    [(OURS[0], MANY), (OURS[0], LONG), (OURS[1], LONG)],
    ids=["many are formed", "a long one is formed", "a long one is encoded"],
)
async def test_requests_that_arrive_during_the_preparation_of_a_large_one_are_stored_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, large: list[bytes]
) -> None:
    await bench.create()
    await bench.publish(b"first")
    slow = Slow(monkeypatch, name)
    sent = [publishing(bench, *large)]
    await slow.asked.wait()
    sent += [publishing(bench, b"x"), publishing(bench, *large), publishing(bench, b"y")]
    await settle()
    assert bench.leader().writer.busy
    assert await bench.payloads() == [b"first"]
    slow.goes_on.set()
    await asyncio.gather(*sent)
    assert await bench.payloads() == [b"first", *large, b"x", *large, b"y"]


@pytest.mark.parametrize("name", OURS[:2])
async def test_a_large_request_whose_hold_ends_goes_to_the_next_hold_in_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await bench.create()
    await bench.publish(b"first")
    slow = Slow(monkeypatch, name)
    large = publishing(bench, *LONG)
    await slow.asked.wait()
    queued = publishing(bench, b"queued")
    await settle()
    bench.leader().writer.hold.end()
    slow.goes_on.set()
    await asyncio.gather(large, queued)
    assert await bench.payloads() == [b"first", *LONG, b"queued"]


async def test_a_large_request_that_is_fenced_is_stored_once(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"first")
    bench.table.on("append", failing(Fenced("over")))
    await asyncio.gather(publishing(bench, *MANY), publishing(bench, b"queued"))
    assert await bench.payloads() == [b"first", *MANY, b"queued"]


async def test_a_large_request_under_a_key_is_stored_once(bench: Bench) -> None:
    await bench.create()
    one = await bench.publish(*MANY, options=PublishOptions(key="k"))
    again = await bench.publish(*MANY, options=PublishOptions(key="k"))
    assert (again.first, again.last, again.replayed) == (one.first, one.last, True)
    with pytest.raises(IdempotencyKeyReused):
        await bench.publish(*MANY[1:], b"other", options=PublishOptions(key="k"))
    assert await bench.payloads() == MANY


async def test_a_key_is_checked_after_its_large_request_was_hashed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create()
    slow = Slow(monkeypatch, OURS[2])
    same = [publishing(bench, *LONG, key="k") for _ in range(3)]
    await slow.asked.wait()
    slow.goes_on.set()
    told = await asyncio.gather(*same)
    assert len({each.first for each in told}) == 1
    assert await bench.payloads() == LONG


async def test_the_number_of_lifetime_changes_in_a_request_is_limited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "LIFETIMES_MAX", 3)
    topic = (await bench.create()).id

    def request(*ttls_s: int | None) -> PublishRequest:
        return PublishRequest(None, [b"m"] * len(ttls_s), ttls_s=ttls_s)

    for ttls_s in ((5, 5, 5, 6, 6, 6, 5), (None, 5, 5, 5, None), (7, 8, 9)):
        await bench.topics.publish(topic, request(*ttls_s), PublishOptions())
    with pytest.raises(TooManyMessages, match="3 runs"):
        await bench.topics.publish(topic, request(5, 6, 5, None), PublishOptions())

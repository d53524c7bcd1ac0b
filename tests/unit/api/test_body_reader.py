import asyncio
import json
import threading
from functools import partial
from typing import Any

import pytest

from broker.api import body_reader
from broker.api.body_reader import AT_ONCE_BYTES_MAX
from broker.errors import BodyTooLarge
from broker.http.budget import Bounds, BudgetKind, Budgets, Hold
from broker.http.request import Request
from broker.long_work import COUNTED_AT_ONCE
from broker.wire import Take, avro
from tests.kit.serving import Broker, eventually, listening, topic_path

PUBLISH = topic_path("t", "publish")
SMALL, LARGE = bytes(AT_ONCE_BYTES_MAX), bytes(AT_ONCE_BYTES_MAX + 1)


def request(body: bytes, hold: Hold | None = None) -> Request:
    return Request("POST", PUBLISH, "", {}, body, hold=hold)


def by_thread(_: bytes, *, take: object) -> int:
    del take
    return threading.get_ident()


async def test_a_small_body_is_decoded_at_once_and_a_large_one_in_a_thread() -> None:
    assert await body_reader.read(request(SMALL), by_thread) == threading.get_ident()
    assert await body_reader.read(request(LARGE), by_thread) != threading.get_ident()


async def test_a_client_that_goes_ends_the_decoding_of_its_body() -> None:
    counts = threading.Event()
    budgets = Budgets()
    hold = Hold(budgets.account("::1", lambda _: None))

    def endless(_: bytes, *, take: Take) -> None:
        while True:
            counts.set()
            take(COUNTED_AT_ONCE)

    reading = asyncio.create_task(body_reader.read(request(LARGE, hold), endless))
    assert await asyncio.to_thread(counts.wait, 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 10)
    hold.close()
    assert budgets.held[BudgetKind.ITEMS] == 0


async def test_items_of_a_large_body_are_held_for_its_request() -> None:
    budgets = Budgets({BudgetKind.ITEMS: Bounds(20_000, 30_000, 30_000)})
    hold = Hold(budgets.account("::1", lambda _: None))

    async def read(count: int) -> None:
        body = b"\x02" + avro.encode_long(count) + bytes(count) + b"\0"
        await body_reader.read(
            request(body, hold), partial(avro.decode_publish_request, messages_max=99_999)
        )

    await read(20_000)
    assert budgets.held[BudgetKind.ITEMS] == 20_000
    hold.close()
    assert budgets.held[BudgetKind.ITEMS] == 0
    with pytest.raises(BodyTooLarge, match="20,000 items"):
        await read(20_001)


@pytest.mark.parametrize(("kind", "copies"), [("application/json", 2), ("text/plain", 1)])
async def test_messages_count_beside_the_body_that_they_were_decoded_from(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, kind: str, copies: int
) -> None:
    held: list[int] = []
    publish = broker.topics.publish

    async def noted(*asked: Any) -> Any:
        held.append(broker.server.budgets.held[BudgetKind.BODY_BYTES])
        return await publish(*asked)

    monkeypatch.setattr(broker.topics, "publish", noted)
    body = json.dumps(["x" * 10_000]).encode()
    async with listening(broker) as http:
        assert (
            await http("POST", topic_path("t", "publish"), body, {"Content-Type": kind})
        ).status == 200
        await eventually(lambda: not broker.server.busy, lambda: broker.server.busy)
    assert held == [copies * len(body)]
    assert broker.server.budgets.held[BudgetKind.BODY_BYTES] == 0

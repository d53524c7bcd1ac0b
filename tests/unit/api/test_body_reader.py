import asyncio
import json
from typing import Any

import pytest

from broker.api import body_reader
from broker.api.body_reader import AT_ONCE_BYTES_MAX
from broker.errors import BadRequest, BodyTooLarge
from broker.http.budget import Bounds, BudgetKind, Budgets, Hold
from broker.http.request import Request
from broker.wire import avro
from broker.wire.read_steps import Steps
from tests.kit.serving import Broker, eventually, listening, topic_path

PUBLISH = topic_path("t", "publish")
SMALL, LARGE = bytes(AT_ONCE_BYTES_MAX), bytes(AT_ONCE_BYTES_MAX + 1)


def request(body: bytes, hold: Hold | None = None) -> Request:
    return Request("POST", PUBLISH, "", {}, body, hold=hold)


def steps(log: list[str], name: str, count: int) -> Steps[str]:
    for _ in range(count):
        log.append(name)
        yield
    return name


async def test_a_small_body_is_read_at_once() -> None:
    log: list[str] = []
    reading = body_reader.read(request(SMALL), steps(log, "a", 3))
    with pytest.raises(StopIteration) as done:
        reading.send(None)
    assert (done.value.value, log) == ("a", ["a"] * 3)


async def test_large_bodies_share_the_slices_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.slices.SLICE_S", 0.0)
    log: list[str] = []
    loop = asyncio.get_running_loop()

    def other() -> None:
        log.append("-")
        if len(log) < 200:
            loop.call_soon(other)

    loop.call_soon(other)
    reads = (body_reader.read(request(LARGE), steps(log, name, 5)) for name in "abc")
    assert await asyncio.gather(*reads) == ["a", "b", "c"]
    together = "".join(log)
    in_turns = together.replace("-", "")
    assert sorted(in_turns) == sorted("abc" * 5)
    assert not any(one * 2 in in_turns for one in "abc"), "they take turns"
    assert not any(f"{one}{two}" in together for one in "abc" for two in "abc")


async def test_a_body_that_is_refused_or_given_up_keeps_no_slice() -> None:
    def refused() -> Steps[str]:
        yield
        raise BadRequest("no")

    began = asyncio.Event()

    def endless() -> Steps[str]:
        while True:
            began.set()
            yield

    log: list[str] = []
    with pytest.raises(BadRequest):
        await body_reader.read(request(LARGE), refused())
    given_up = [asyncio.create_task(body_reader.read(request(LARGE), endless())) for _ in range(3)]
    await asyncio.wait_for(began.wait(), 10)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    assert await body_reader.read(request(LARGE), steps(log, "b", 2)) == "b"


async def test_items_of_a_large_body_are_held_for_its_request() -> None:
    budgets = Budgets({BudgetKind.ITEMS: Bounds(5_000, 8_000, 8_000)})
    hold = Hold(budgets.account("::1", lambda _: None))

    async def read(count: int) -> None:
        body = b"\x02" + avro.encode_long(count) + bytes(count) + b"\0"
        asking = request(body, hold)
        take = body_reader.counting(asking)
        await body_reader.read(
            asking, avro.publish_request_steps(body, messages_max=99_999, take=take)
        )

    await read(5_000)
    assert budgets.held[BudgetKind.ITEMS] == 5_000
    hold.close()
    assert budgets.held[BudgetKind.ITEMS] == 0
    with pytest.raises(BodyTooLarge, match="5,000 items"):
        await read(5_001)


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

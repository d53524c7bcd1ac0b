"""A broker withstands bodies that inflate to much, never end, or are kept for long."""

from contextlib import AsyncExitStack

import pytest

from broker.model import PublishRequest
from broker.wire import avro
from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, GZIP, PUBLISHES_MIN, Attacked, push, request
from tests.kit.neighbour import CUT
from tests.kit.serving import RawHttp, topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def test_polls_that_wait_hold_no_bodies(broker: Attacked, topic: str) -> None:
    poll = request(
        "POST", topic_path(topic, "poll?wait=60"), sent.poll_of_a_long_string(), AVRO, GZIP
    )

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                raw = await stack.enter_async_context(RawHttp(broker.port))
                await push(raw, poll)
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=512 * sent.MIB)


async def test_bodies_that_lack_their_last_byte(broker: Attacked, topic: str) -> None:
    publish = request("POST", topic_path(topic, "publish"), sent.zeros(sent.LARGE), AVRO, GZIP)

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                raw = await stack.enter_async_context(RawHttp(broker.port))
                await push(raw, publish[:-1])
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=512 * sent.MIB)


async def test_a_body_that_inflates_to_more_than_may_be(broker: Attacked, topic: str) -> None:
    body = sent.zeros(512 * sent.MIB)

    async def attack() -> None:
        assert await broker.status("POST", topic_path(topic, "publish"), body, AVRO, GZIP) in {
            413,
            CUT,
        }

    await broker.withstands(attack, peak_bytes_max=320 * sent.MIB)


async def test_a_body_of_empty_gzip_members(broker: Attacked, topic: str) -> None:
    body = sent.empty_members(8 * sent.MIB)

    async def attack() -> None:
        assert await broker.status("POST", topic_path(topic, "publish"), body, AVRO, GZIP) in {
            400,
            413,
            CUT,
        }

    await broker.withstands(attack, peak_bytes_max=256 * sent.MIB)


@pytest.mark.parametrize(
    ("connections", "each_bytes"),
    [(30, 17 * sent.MIB), pytest.param(420, 5 * sent.MIB // 4, marks=pytest.mark.nightly)],
)
async def test_stalled_bodies_of_two_callers_give_way_to_a_third(
    broker: Attacked, topic: str, connections: int, each_bytes: int
) -> None:
    stalled = request("POST", topic_path(topic, "publish"), sent.zeros(each_bytes), AVRO, GZIP)[:-9]

    body = avro.encode_publish_request(PublishRequest(None, [b"x" * sent.MIB] * 20))
    async with AsyncExitStack() as stack:
        for number in range(connections):
            raw = RawHttp(broker.port, address=f"127.0.0.{2 + number % 2}")
            await push(await stack.enter_async_context(raw), stalled)
        for _ in range(3):
            status = await broker.status("POST", topic_path(topic, "publish"), body, AVRO)
            assert status == 200, "the third caller holds the least"

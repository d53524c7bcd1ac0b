"""A broker withstands small requests that ask for large pages, by clients that read nothing."""

from contextlib import AsyncExitStack

import pytest

from broker.model import Poll, PublishRequest
from broker.wire import avro
from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, PUBLISHES_MIN, Attacked, push, request
from tests.kit.serving import RawHttp, topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LARGE = 48 * sent.MIB


@pytest.mark.parametrize("requests", [6, pytest.param(25, marks=pytest.mark.nightly)])
async def test_large_pages_are_counted_before_they_are_read(
    broker: Attacked, topic: str, requests: int
) -> None:
    body = avro.encode_publish_request(PublishRequest(None, [bytes(LARGE)]))
    assert await broker.status("POST", topic_path(topic, "publish"), body, AVRO) == 200
    del body
    asked = (
        request("GET", topic_path(topic, "messages") + "?payload=full"),
        request("GET", topic_path(topic, "messages") + "?order=desc"),
        request("GET", topic_path(topic, "events")),
        request("GET", topic_path(topic, "stats")),
        request("POST", topic_path(topic, "poll"), avro.encode_poll(Poll()), AVRO),
    )

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            for each in asked * requests:
                raw = await stack.enter_async_context(RawHttp(broker.port, receive_buffer=4096))
                await push(raw, each)
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=900 * sent.MIB, blocked_s_max=0.2)

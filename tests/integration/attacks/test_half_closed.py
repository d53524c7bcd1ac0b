"""The broker answers every accepted request, even if the client half closes or sends garbage after it."""

import asyncio

import pytest

from broker.model import Poll, PublishRequest
from broker.wire import avro
from broker.wire.messages import PollDecoder
from tests.kit.attacked import AVRO, Attacked, request
from tests.kit.serving import RawHttp, topic_path

pytestmark = [pytest.mark.integration]

MESSAGE = avro.encode_publish_request(PublishRequest(None, [b"x"]))
DEADLINE_S = 20.0


def publish(topic: str) -> bytes:
    return request("POST", topic_path(topic, "publish"), MESSAGE, AVRO)


async def messages(broker: Attacked, topic: str) -> int:
    reply = await broker.ask("POST", topic_path(topic, "poll"), avro.encode_poll(Poll()), AVRO)
    return len(PollDecoder().feed(reply.body))


async def test_a_client_that_sends_and_half_closes(broker: Attacked, topic: str) -> None:
    for number in range(1, 11):
        async with asyncio.timeout(DEADLINE_S), RawHttp(broker.port) as raw:
            await raw.send(publish(topic))
            raw.half_close()
            assert (await raw.reply()).status == 200
            assert await raw.rest() == b""
        assert await messages(broker, topic) == number


@pytest.mark.parametrize("behind", [b"\0\1\2garbage\r\n\r\n", b"GET\r\n\r\n", b"\r\r\r\n"])
async def test_a_publish_with_garbage_behind_it(
    broker: Attacked, topic: str, behind: bytes
) -> None:
    """The answer tells the truth: aiohttp drops a request if bytes that are none come in the same read of the socket."""
    published = 0
    for number in range(10):
        async with asyncio.timeout(DEADLINE_S), RawHttp(broker.port) as raw:
            await raw.send(publish(topic) if number % 2 else publish(topic) + behind)
            status = (await raw.reply()).status
            assert status in ({200} if number % 2 else {200, 400})
            published += status == 200
            if number % 2:
                await raw.send(behind)
            raw.half_close()
            rest = await raw.rest()
            assert rest == b"" or rest.startswith(b"HTTP/1.0 400")
        assert await messages(broker, topic) == published


async def test_pipelined_publishes_before_a_half_close(broker: Attacked, topic: str) -> None:
    async with asyncio.timeout(DEADLINE_S), RawHttp(broker.port) as raw:
        await raw.send(publish(topic) * 50)
        raw.half_close()
        for _ in range(50):
            assert (await raw.reply()).status == 200
    assert await messages(broker, topic) == 50

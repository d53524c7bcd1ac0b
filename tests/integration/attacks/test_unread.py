"""A broker withstands clients that ask for large replies and do not read them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from broker.model import Poll
from broker.wire import avro
from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, PUBLISHES_MIN, Attacked, push, request
from tests.kit.serving import RawHttp, topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

POLL = avro.encode_poll(Poll())
READERS = 12
PEAK_BYTES_MAX = 768 * sent.MIB
"""The limit of one caller's replies (320 MiB), the same again while they are made, and the memory of the node itself."""


@asynccontextmanager
async def readers(broker: Attacked, asked: bytes) -> AsyncIterator[list[RawHttp]]:
    """Give readers that have sent a request and read one line of the reply."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(RawHttp(broker.port, receive_buffer=4096))
            for _ in range(READERS)
        ]
        for raw in opened:
            await push(raw, asked)
        yield opened


async def test_pages_of_large_messages_that_are_not_read(broker: Attacked, topic: str) -> None:
    for number in range(12):
        await broker.fill(topic, [b"%d" % number * (4 * sent.MIB)])
    browse = request("GET", topic_path(topic, "messages?limit=50&payload=full"))

    async def attack() -> None:
        async with readers(broker, browse):
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=PEAK_BYTES_MAX)


async def test_a_large_message_that_is_not_read(broker: Attacked, topic: str) -> None:
    await broker.fill(topic, [b"x" * (60 * sent.MIB)])
    poll = request("POST", topic_path(topic, "poll"), POLL, AVRO)

    async def attack() -> None:
        async with readers(broker, poll):
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=PEAK_BYTES_MAX)

"""A broker withstands request heads that never end, are too many, or ask for an unsupported protocol."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from broker.model import Poll, PublishRequest
from broker.wire import avro
from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, PUBLISHES_MIN, Attacked, answer, push, request
from tests.kit.serving import RawHttp, topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PING = request("GET", "/ping")
DEADLINE_S = 20.0
LONG = [f"X-{number}: {'z' * 8_000}" for number in range(125)]
"""Headers of 1 MB in total; their number and lengths are allowed."""
MESSAGE = avro.encode_publish_request(PublishRequest(None, [b"x"]))


async def all_send(
    broker: Attacked, stack: AsyncExitStack, count: int, data: bytes
) -> list[RawHttp]:
    """Send the same bytes on several connections, as far as the broker takes them, and keep the connections."""
    opened = [await stack.enter_async_context(RawHttp(broker.port)) for _ in range(count)]
    for raw in opened:
        await push(raw, data)
    return opened


async def newcomers(broker: Attacked) -> None:
    """Connect and send a request, like a client that has just started."""
    for _ in range(20):
        assert await broker.status("GET", "/ping") == 200


async def test_line_breaks_before_a_request(broker: Attacked) -> None:
    data = b"\r\n" * (33 * sent.MIB)

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            await all_send(broker, stack, 2, data)
            await newcomers(broker)
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=192 * sent.MIB)


async def test_unfinished_heads(broker: Attacked) -> None:
    head = PING[:-4] + "".join(f"\r\n{line}" for line in LONG).encode()

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            await all_send(broker, stack, 66, head)
            await newcomers(broker)
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=192 * sent.MIB)


async def test_unfinished_heads_of_a_size_that_may_be(broker: Attacked) -> None:
    head = PING[:-4] + "".join(f"\r\n{line}" for line in LONG[:7]).encode()

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            await all_send(broker, stack, 330, head)
            await newcomers(broker)
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=256 * sent.MIB, blocked_s_max=0.05)


async def test_large_heads_and_then_silence(broker: Attacked) -> None:
    async def attack() -> None:
        async with AsyncExitStack() as stack:
            opened = await all_send(broker, stack, 100, request("GET", "/ping", b"", *LONG))
            for raw in opened:
                reply = await answer(raw)
                # 503: its bytes are counted before it is known to be too long, and this caller has sent very many.
                assert reply is None or reply.status in {400, 413, 431, 503}
            await newcomers(broker)
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=192 * sent.MIB)


async def test_heads_behind_a_poll_that_waits(broker: Attacked, topic: str) -> None:
    poll = request("POST", topic_path(topic, "poll?wait=60"), avro.encode_poll(Poll()), AVRO)
    behind = request("GET", "/ping", b"", *LONG[:7])

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(RawHttp(broker.port)) for _ in range(8)]
            for raw in opened:
                await push(raw, poll)
                raw.write(behind * 1000)  # 56 MB, of which the broker may take only a little.
            await newcomers(broker)
            await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, peak_bytes_max=192 * sent.MIB)


async def test_a_transfer_coding_that_is_not_undone_is_refused(
    broker: Attacked, topic: str
) -> None:
    head = request(
        "POST", topic_path(topic, "publish"), b"", AVRO, "Transfer-Encoding: gzip, chunked"
    )
    head = head.replace(b"Content-Length: 0\r\n", b"")
    async with asyncio.timeout(DEADLINE_S), RawHttp(broker.port) as raw:
        await raw.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(MESSAGE), MESSAGE))
        reply = await answer(raw)
    assert reply is None or reply.status in {400, 501}
    poll = await broker.ask("POST", topic_path(topic, "poll"), avro.encode_poll(Poll()), AVRO)
    assert poll.body == b"\0"


@pytest.mark.parametrize("protocol", [b"RTSP/2.0", b"ICE/1.0", b"HTTP/2.0", b"HTTP/0.9"])
async def test_another_protocol_is_refused(broker: Attacked, protocol: bytes) -> None:
    async with asyncio.timeout(DEADLINE_S), RawHttp(broker.port) as raw:
        await raw.send(PING.replace(b"HTTP/1.1", protocol))
        reply = await answer(raw)
    assert reply is None or reply.status in {400, 505}

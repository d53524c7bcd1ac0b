"""A stopped broker accepts requests and never answers: each call ends at its deadline, however it reads."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from broker.client import calls
from broker.client.tail import TailOptions
from broker.client.transport import StreamedReply
from broker.errors import OutcomeUnknown, Unavailable, UnavailableError
from broker.model import Message, log_key
from tests.kit import poll_replies


async def consumed(source):
    async for _ in source:
        pass


async def in_block(client):
    async with client.transaction():
        raise AssertionError("it can't begin")


CALLS = {
    "publish": lambda client: client.publish("ns1/t1", b"x"),
    "several": lambda client: client.publish("ns1/t1", [b"x", b"y"]),
    "keyed": lambda client: client.publish("ns1/t1", b"x", idempotency_key="k"),
    "create": lambda client: client.create_topic("ns1/t1"),
    "set": lambda client: client.set_topic("ns1/t1", {"ttl": "5", "generation": "1"}),
    "poll": lambda client: client.poll("ns1/t1"),
    "stats": lambda client: client.stats("ns1/t1"),
    "pages": lambda client: consumed(client.read("ns1/t1")),
    "table": lambda client: client.read("ns1/t1").to_arrow(),
    "batches": lambda client: consumed(client.read_arrow("ns1/t1", through="00" * 20)),
    "dead letters": lambda client: client.dead_letters.list("ns1/t1"),
    "a dead letter": lambda client: client.dead_letters.get("ns1/t1", "00" * 20),
    "cursors": lambda client: client.cursors.list("ns1/t1"),
    "cursor": lambda client: client.cursors.get("ns1/t1", "c"),
    "transaction": lambda client: client.transactions.start(),
    "table of pandas": lambda client: client.read("ns1/t1").to_pandas(),
    "block": in_block,
    "tail": lambda client: consumed(
        client.tail("ns1/t1", options=TailOptions(follow=False, give_up_after_s=4))
    ),
}


def stop(transport):
    """Let requests wait until their time has passed."""

    async def send(request, timeout_s):
        transport.requests.append(request)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=timeout_s)
        raise OutcomeUnknown("no answer")

    @asynccontextmanager
    async def stream(request, timeout_s):
        transport.requests.append(request)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=timeout_s)
        raise Unavailable("no answer")
        yield

    transport.send, transport.stream = send, stream


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_of_a_stopped_broker_ends_at_its_deadline(make_client, transport, name):
    stop(transport)
    loop = asyncio.get_running_loop()
    async with make_client(deadline_s=4, retry_delay_min_s=0.05, retry_delay_max_s=5) as client:
        began = loop.time()
        with pytest.raises((OutcomeUnknown, UnavailableError)):
            await CALLS[name](client)
        assert loop.time() - began <= 4.001
    assert transport.requests


WRITES = {"publish", "several", "keyed", "create", "transaction", "block"}


def drip(transport, status=200):
    """Let each answer to a read be a body that never ends: no step of a decoder has a result."""

    async def dripping():
        while True:
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.5)
            yield b""

    @asynccontextmanager
    async def stream(request, timeout_s):
        transport.requests.append(request)
        yield StreamedReply(status, {}, dripping())

    transport.stream = stream


@pytest.mark.parametrize("name", sorted(CALLS.keys() - WRITES))
async def test_an_answer_that_comes_byte_by_byte_ends_at_the_deadline(make_client, transport, name):
    drip(transport)
    loop = asyncio.get_running_loop()
    async with make_client(deadline_s=4, retry_delay_min_s=0.05, retry_delay_max_s=5) as client:
        began = loop.time()
        with pytest.raises(UnavailableError, match="in time"):
            await CALLS[name](client)
        assert loop.time() - began <= 4.001


ENDLESS = {
    "tail": lambda client: client.tail("ns1/t1"),
    "events": lambda client: client.events("ns1/t1"),
}


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("name", ENDLESS)
async def test_an_endless_reading_gives_up_an_answer_that_comes_byte_by_byte(
    make_client, transport, name, status
):
    drip(transport, status)
    loop = asyncio.get_running_loop()
    told = asyncio.Queue()
    async with make_client(deadline_s=4, on_trouble=told.put_nowait) as client:
        reading = asyncio.create_task(anext(ENDLESS[name](client)))
        for _ in range(3):
            began = loop.time()
            async with asyncio.timeout(60):
                trouble = await told.get()
            assert "in time" in trouble.error.message
            assert loop.time() - began <= 30 + 15 + 0.01
        reading.cancel()
        await asyncio.wait([reading])


async def test_a_message_without_an_end_is_given_up_at_a_bound(make_client, transport, monkeypatch):
    monkeypatch.setattr(calls, "REPLY_BYTES_MAX", 10_000)
    large = poll_replies.page_of([Message(log_key(1, 0) + bytes(10), b"x" * 50_000)])
    transport.answer = lambda _: [large[at : at + 1000] for at in range(0, len(large), 1000)]
    async with make_client(deadline_s=0.01) as client:
        with pytest.raises(UnavailableError, match="not as a broker does"):
            await client.poll("ns1/t1")

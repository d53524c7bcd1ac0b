"""A client that is used in one event loop after the other, as with two calls of ``asyncio.run``."""

import asyncio
import gc
import threading

import pytest

from broker.client import Client, Published, TailOptions
from tests.unit.client.test_sync import MESSAGES, server, url

__all__ = ["server", "url"]
# asyncio.run leaves open connections to the garbage collection.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected():
    yield
    gc.collect()


async def everything(client: Client) -> None:
    assert await client.publish("ns1/t1", b"x") == Published()
    assert await client.publish("ns1/t1", [b"x", b"y"]) == Published()
    later = await client.publish_later("ns1/t1", b"x")
    await client.later.flush()
    assert later.result() == Published()
    assert await client.poll("ns1/t1") == MESSAGES
    tail = client.tail("ns1/t1", options=TailOptions(follow=False))
    assert [message async for message in tail] == MESSAGES


def test_a_client_is_used_in_a_second_run(url):
    client = Client(url)
    for _ in range(3):
        asyncio.run(everything(client))
    asyncio.run(client.close())


async def left_open(client: Client) -> None:
    await everything(client)
    await client.publish_later("ns1/endless", b"x")


def test_what_a_run_left_open_is_forgotten(url):
    client = Client(url, later_messages_max=3)
    for _ in range(3):
        asyncio.run(left_open(client))
    asyncio.run(client.close())


def test_a_client_may_be_closed_in_another_run(url):
    client = Client(url)
    asyncio.run(everything(client))
    asyncio.run(client.close())


def test_a_client_belongs_to_one_living_loop(url):
    client = Client(url)
    told: list[BaseException] = []

    def elsewhere():
        try:
            asyncio.run(client.publish("ns1/t1", b"x"))
        except RuntimeError as error:
            told.append(error)

    async def both():
        await everything(client)
        other = threading.Thread(target=elsewhere)
        other.start()
        await asyncio.to_thread(other.join)
        await everything(client)
        await client.close()

    asyncio.run(both())
    assert "event loop" in str(told[0])
    with pytest.raises(Exception, match="closed"):
        asyncio.run(everything(client))

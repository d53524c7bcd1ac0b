"""The room of a client: one bound for awaited and later publishes."""

import asyncio

import pytest

from broker.client.room import Room
from broker.errors import Overloaded, Unavailable
from tests.kit.bench import settle


@pytest.fixture
def held(transport):
    """Let no request be answered until ``transport.gate`` is set."""
    transport.gate = asyncio.Event()
    return transport


def spawn(calls):
    return [asyncio.create_task(call) for call in calls]


@pytest.mark.parametrize("kind", ["together", "alone", "keyed", "list", "store", "later"])
async def test_publishes_beyond_the_bound_wait_and_are_then_refused(make_client, held, kind):
    async with make_client(deadline_s=2, later_messages_max=10, idempotent=False) as client:
        calls = {
            "together": lambda: client.publish("ns1/t1", b"x"),
            "alone": lambda: client.publish("ns1/t1", b"x", coalesce=False),
            "keyed": lambda: client.publish("ns1/t1", b"x", idempotency_key="k"),
            "list": lambda: client.publish("ns1/t1", [b"x"]),
            "store": lambda: client.store("ns1/t1", b"x", pointer=1),
            "later": lambda: client.publish_later("ns1/t1", b"x"),
        }
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks = spawn([calls[kind]() for _ in range(30)])
        done, _ = await asyncio.wait(tasks[10:])
        assert loop.time() - began == pytest.approx(2.0)
        assert {type(task.exception()) for task in done} == {Overloaded}
        assert "10 messages" in tasks[-1].exception().message
        held.gate.set()
        await asyncio.wait(tasks)
    assert len(held.requests) <= 10


async def test_the_bound_counts_bytes_too(make_client, held):
    async with make_client(deadline_s=2, later_bytes_max=1000) as client:
        tasks = spawn([client.publish("ns1/t1", b"x" * 300) for _ in range(5)])
        await asyncio.wait(tasks[3:])
        assert {type(task.exception()) for task in tasks[3:]} == {Overloaded}
        held.gate.set()
        await asyncio.wait(tasks)


async def test_awaited_and_later_publishes_share_the_room_and_wait_in_order(make_client, held):
    async with make_client(deadline_s=9, later_messages_max=2) as client:
        later = await client.publish_later("ns1/t1", b"0")
        tasks = spawn(
            [
                client.publish("ns1/t2", b"1"),
                client.publish("ns1/t2", b"2"),
                client.publish_later("ns1/t1", b"3"),
                client.publish("ns1/t2", b"4"),
            ]
        )
        await settle()
        assert not any(task.done() for task in tasks)
        assert (await client.publish_later("ns1/t1", b"", on_full="drop")).exception()
        held.gate.set()
        await asyncio.gather(later, *tasks)
        await client.flush()
    of_topics = {"t1": [], "t2": []}
    for at, request in enumerate(held.requests):
        of_topics[request.topic.topic] += held.payloads(at)
    assert of_topics == {"t1": [b"0", b"3"], "t2": [b"1", b"2", b"4"]}


async def test_a_cancelled_call_gives_its_place_to_the_next():
    room, loop = Room(2, 100), asyncio.get_running_loop()
    assert room.take(1, 1)
    large, small = spawn(
        [
            room.wait(2, 1, loop.time() + 9, lambda: "large", lambda _: None),
            room.wait(1, 1, loop.time() + 9, lambda: "small", lambda _: None),
        ]
    )
    await settle()
    assert not small.done()
    large.cancel()
    assert await small == "small"
    assert not room.take(1, 1)


async def test_a_call_that_is_cancelled_with_its_room_gives_it_back():
    room, loop = Room(1, 100), asyncio.get_running_loop()
    assert room.take(1, 1)

    async def hold():
        async with room.reserved(1, 1, loop.time() + 9):
            raise AssertionError("it was cancelled before")

    (waiting,) = spawn([hold()])
    await settle()
    room.give_back(1, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert room.take(1, 1)


async def test_a_close_refuses_the_calls_that_wait(make_client, held):
    client = make_client(later_messages_max=1)
    first, *waiting = spawn([client.publish("ns1/t1", b"x") for _ in range(3)])
    await held.arrived()
    await client.close()
    told = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [type(error) for error in told[1:]] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable, match="closed"):
        await client.publish("ns1/t1", b"x")


async def test_a_call_that_is_cancelled_as_it_is_refused_stays_cancelled():
    room, loop = Room(1, 100), asyncio.get_running_loop()
    assert room.take(1, 1)
    (waiting,) = spawn([room.wait(1, 1, loop.time() + 9, lambda: None, lambda _: None)])
    await settle()
    room.close()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()

"""A subscriber writes its place, holds its cursor, and one of several subscribers works."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from broker.client import CursorMoved, SubscriberOptions, TopicRecreated
from broker.client.subscription import SubscriberProgress
from broker.client.tries import KeptPlace, Taken
from broker.model import Message, log_key
from broker.places import Place
from broker.testing.virtual_time import pass_time
from tests.unit.client.subscribing import (
    TOPIC,
    Handled,
    World,
    crash,
    numbers,
    place_of,
    running,
)


async def test_the_place_is_written_when_its_time_has_come(world: World) -> None:
    client, gate = world.client(), asyncio.Event()
    waits = asyncio.Event()

    async def handler(message: Message) -> None:
        await pass_time(0.1)
        if message.payload == b"9":
            waits.set()
            await gate.wait()

    await client.publish(TOPIC, numbers(10))
    ids = [message.id for message in await client.poll(TOPIC)]
    async with running(client.subscriber(TOPIC, "mailer", handler, place_interval_s=0.25)):
        await waits.wait()
        assert await place_of(world) in ids[5:9]
        gate.set()


async def test_the_place_is_written_while_a_failed_batch_is_handled_one_by_one(
    world: World,
) -> None:
    client, gate = world.client(), asyncio.Event()
    waits = asyncio.Event()

    async def handler(batch: list[Message]) -> None:
        if len(batch) > 1:
            raise ValueError("not as a batch")
        if batch[0].payload == b"9":
            waits.set()
            await gate.wait()

    await client.publish(TOPIC, numbers(10))
    ids = [message.id for message in await client.poll(TOPIC)]
    options = {"batch_messages_max": 10, "place_messages_max": 4, "tries_max": 1}
    async with running(client.subscriber(TOPIC, "mailer", handler, **options)):
        await waits.wait()
        assert await place_of(world) == ids[7]
        gate.set()


def test_when_a_place_is_due() -> None:
    options = SubscriberOptions(place_interval_s=1, place_messages_max=3)
    progress = SubscriberProgress(Taken(KeptPlace(None), 1, 0), 10.0)
    assert progress.is_written
    assert not progress.is_due(options, 99)
    message = Message(log_key(1, 0) + bytes(10), b"")
    progress.handled([message])
    assert (progress.is_due(options, 10.9), progress.is_due(options, 11)) == (False, True)
    progress.handled([message, message])
    assert progress.is_due(options, 10)
    progress.written(11)
    assert (progress.is_written, progress.after) == (True, message.id)


async def test_a_subscriber_that_waits_has_written_its_place(world: World) -> None:
    """That includes a full page: the subscriber does not know yet that it was the last one."""
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, numbers(20))
    options = SubscriberOptions(page_messages_max=10, place_messages_max=100)
    async with running(client.subscriber(TOPIC, "mailer", handled, options=options)):
        await handled.until(20)
        await pass_time(0.1)
        assert await place_of(world) == (await client.poll(TOPIC))[-1].id
        puts = [each for each in world.transports[0].requests if each.method == "PUT"]
        assert len(puts) == 2  # The first PUT takes the cursor, the second writes the place.


async def test_of_two_subscribers_one_works_and_the_other_takes_over(world: World) -> None:
    first, second = world.client(), world.client()
    handled, waiting = Handled(), Handled()
    one = first.subscriber(TOPIC, "mailer", handled, takeover_s=5.0)
    two = second.subscriber(TOPIC, "mailer", waiting, takeover_s=5.0)
    task = asyncio.create_task(one.run())
    await pass_time(1)
    async with running(two):
        await first.publish(TOPIC, numbers(10))
        await handled.until(10)
        await pass_time(100)
        assert (one.is_working, two.is_working, waiting.payloads) == (True, False, [])
        await crash(world, task, 0)
        await second.publish(TOPIC, numbers(10, 10))
        await waiting.until(10)
        assert two.is_working
    assert waiting.payloads == numbers(10, 10)


async def test_a_subscriber_that_stops_lets_another_begin_at_once(world: World) -> None:
    client, handled = world.client(), Handled()
    one, two = (client.subscriber(TOPIC, "mailer", handled) for _ in range(2))
    loop = asyncio.get_running_loop()
    async with running(two):
        async with running(one):
            await client.publish(TOPIC, b"a")
            await handled.until(1)
        stopped_s = loop.time()
        await client.publish(TOPIC, b"b")
        await handled.until(2)
        # A standby looks at the cursor every quarter of ``takeover_s``.
        assert loop.time() - stopped_s < 10 / 4 + 1


async def test_a_holder_that_slept_too_long_does_not_move_the_cursor(world: World) -> None:
    client, other = world.client(), world.client()
    gate, handled = asyncio.Event(), Handled()
    slept: list[bytes] = []

    async def sleeper(message: Message) -> None:
        slept.append(message.payload)
        await gate.wait()

    await client.publish(TOPIC, numbers(3))
    sleeps = client.subscriber(TOPIC, "mailer", sleeper, takeover_s=4.0, place_messages_max=1)
    async with running(sleeps):
        await pass_time(1)
        world.transports[0].fault = lambda _: "before"  # Like a paused process, it writes nothing.
        async with running(other.subscriber(TOPIC, "mailer", handled, takeover_s=4.0)):
            await handled.until(3)
            world.transports[0].fault = lambda _: None
            gate.set()
            await pass_time(5)
            assert (slept, sleeps.counts.lost, sleeps.is_working) == ([b"0"], 1, False)
            place = (await other.cursors.get(TOPIC, "mailer")).after
            assert place == (await other.poll(TOPIC))[-1].id


async def test_a_holder_that_knows_of_its_loss_hands_over_no_message(world: World) -> None:
    client, other, gate = world.client(), world.client(), asyncio.Event()
    slept: list[bytes] = []

    async def sleeper(message: Message) -> None:
        slept.append(message.payload)
        await gate.wait()

    await client.publish(TOPIC, numbers(3))
    rare = {"takeover_s": 4.0, "place_interval_s": 1e6}
    async with running(client.subscriber(TOPIC, "mailer", sleeper, **rare)):
        await pass_time(1)
        world.transports[0].fault = lambda _: "before"
        async with running(other.subscriber(TOPIC, "mailer", Handled(), takeover_s=4.0)):
            await pass_time(10)
            world.transports[0].fault = lambda _: None
            await pass_time(60)  # It tries to write now and then, and the broker refuses.
            gate.set()
            await pass_time(2)
            assert slept == [b"0"]


async def test_a_lost_answer_to_its_own_write_is_no_takeover(world: World) -> None:
    client, handled = world.client(), Handled()
    cut = {"answers": True}
    world.transports[0].fault = lambda asked: (
        "after" if asked.method == "PUT" and cut["answers"] else None
    )
    subscriber = client.subscriber(TOPIC, "mailer", handled, takeover_s=1e4)
    async with running(subscriber):
        # The client retries the write that takes the cursor for less than this.
        await pass_time(40)
        cut["answers"] = False
        await pass_time(40)
        assert subscriber.is_working
        # A renewal of the same place: its answers are lost for longer than the client retries it.
        await pass_time(1e4 / 4 - 100)
        cut["answers"] = True
        await pass_time(150)
        cut["answers"] = False
        await client.publish(TOPIC, b"m")
        await handled.until(1)
        await pass_time(40)
    assert subscriber.counts.lost == 0
    assert await place_of(world) == (await client.poll(TOPIC))[0].id


async def test_a_standby_ends_when_the_cursor_is_deleted(
    world: World,
) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"m")
    held = json.dumps({"takeover_s": 1e6})
    await client.cursors.put(TOPIC, "mailer", None, expected=None, data=held)
    task = asyncio.create_task(client.subscriber(TOPIC, "mailer", handled).run())
    await pass_time(20)
    await client.cursors.delete(TOPIC, "mailer")
    async with asyncio.timeout(60):
        with pytest.raises(CursorMoved, match="deleted"):
            await task
    assert handled.payloads == []


async def test_a_cursor_that_is_moved_under_a_subscriber_is_followed(world: World) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, numbers(3))
    subscriber = client.subscriber(TOPIC, "mailer", handled, takeover_s=2.0)
    async with running(subscriber):
        await handled.until(3)
        await pass_time(1)
        for _ in range(5):  # The subscriber may renew its hold in between.
            version = (await client.cursors.get(TOPIC, "mailer")).version
            with contextlib.suppress(CursorMoved):
                await client.cursors.put(TOPIC, "mailer", None, expected=version)
                break
        await handled.until(6)
    assert handled.payloads == numbers(3) * 2


@pytest.mark.parametrize("with_topic", [False, True])
async def test_a_cursor_that_is_deleted_ends_its_subscriber(
    world: World, *, with_topic: bool
) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"m")
    task = asyncio.create_task(client.subscriber(TOPIC, "mailer", handled, takeover_s=2).run())
    await handled.until(1)
    await pass_time(1)
    if with_topic:
        await client.delete_topic(TOPIC)
        await client.create_topic(TOPIC)
    else:
        await client.cursors.delete(TOPIC, "mailer")
    async with asyncio.timeout(60):
        with pytest.raises(TopicRecreated if with_topic else CursorMoved, match="deleted"):
            await task


async def test_a_start_in_another_generation_is_refused(world: World) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"m")
    start = Place((await client.poll(TOPIC))[0].id, 2)
    with pytest.raises(TopicRecreated):
        await client.subscriber(TOPIC, "mailer", handled, start=start).run()
    async with running(
        client.subscriber(TOPIC, "mailer", handled, start=start._replace(generation=1))
    ):
        await pass_time(1)
    assert handled.payloads == []


async def test_unknown_cursor_data_does_not_hold_the_cursor(world: World) -> None:
    client, handled = world.client(), Handled()
    for number, data in enumerate(["text", "{}", '{"takeover_s": NaN}', json.dumps([1])]):
        name = f"c{number}"
        await client.cursors.put(TOPIC, name, None, expected=None, data=data)
        await client.publish(TOPIC, b"m")
        seen = len(handled.payloads)
        async with running(client.subscriber(TOPIC, name, handled)):
            await handled.until(seen + 1)

"""A message whose handler always fails becomes a dead letter, once, and the others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.client import NewMessage, SubscriberOptions, TopicNotFound
from broker.client.dead_letters import RETRY_FOR, retry_for
from broker.errors import BadRequest, BodyTooLarge, NotFound, TopicRecreated
from broker.model import Message
from broker.testing.mutants import in_force
from broker.testing.virtual_time import pass_time
from tests.unit.client.subscribing import (
    LETTERS,
    TOPIC,
    Handled,
    World,
    crash,
    numbers,
    place_of,
    running,
)


async def test_a_message_that_always_fails_becomes_a_dead_letter_and_the_others_go_on(
    world: World,
) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload == b"poison")
    bad = NewMessage(b"poison", key=b"k", headers={"h": b"v"})
    await client.publish(TOPIC, [b"a", bad, b"b"])
    poison = (await client.poll(TOPIC))[1]
    subscriber = client.subscriber(TOPIC, "mailer", handled, tries_max=3)
    async with running(subscriber):
        await handled.until(2)
    assert handled.payloads == [b"a", b"b"]
    assert handled.calls.count([b"poison"]) == 3
    [letter] = await client.poll(LETTERS)
    assert (letter.payload, letter.key, letter.headers["h"]) == (b"poison", b"k", b"v")
    told = {
        name.removeprefix("dead-letter-"): value.decode()
        for name, value in letter.headers.items()
        if name != "h"
    }
    assert told.pop("time").startswith("20")
    assert told == {
        "reason": "ValueError: can't handle [b'poison']",
        "id": poison.id.hex(),
        "topic": TOPIC,
        "generation": "1",
        "subscriber": "mailer",
        "tries": "3",
    }
    assert subscriber.counts.dead_letters == 1


async def test_a_batch_that_fails_is_handled_one_by_one(world: World) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload == b"4")
    await client.publish(TOPIC, numbers(10))
    options = SubscriberOptions(batch_messages_max=3, tries_max=2)
    async with running(client.subscriber(TOPIC, "mailer", handled, options=options)):
        await handled.until(9)
    batch, first, last = [b"3", b"4", b"5"], [b"3"], [b"5"]
    assert handled.calls[:2] == [[b"0", b"1", b"2"], batch]
    assert handled.calls[2:7] == [batch, first, [b"4"], [b"4"], last]
    assert [letter.payload for letter in await client.poll(LETTERS)] == [b"4"]


async def test_a_message_that_is_alone_beside_anothers_retry_is_given_up_with_its_own_error(
    world: World,
) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload == b"mine")
    theirs = NewMessage(b"theirs", headers={RETRY_FOR: retry_for(TOPIC, "other")})
    await client.publish(TOPIC, [theirs, b"mine", theirs])
    last = (await client.poll(TOPIC))[-1].id
    options = SubscriberOptions(batch_messages_max=3, tries_max=2)
    async with running(client.subscriber(TOPIC, "mailer", handled, options=options)):
        await pass_time(10)
    assert handled.calls == [[b"mine"], [b"mine"]]
    [letter] = await client.poll(LETTERS)
    assert letter.headers["dead-letter-reason"] == b"ValueError: can't handle [b'mine']"
    assert (await client.cursors.get(TOPIC, "mailer")).after == last


async def test_a_named_dead_letter_topic_must_exist_or_is_created(world: World) -> None:
    client = world.client()
    handled = Handled(lambda _: True)
    await client.publish(TOPIC, b"m")
    named = {"dead_letters": "default/letters", "tries_max": 1}
    with pytest.raises(TopicNotFound):
        await client.subscriber(TOPIC, "mailer", handled, **named).run()
    assert handled.calls == []
    subscriber = client.subscriber(TOPIC, "mailer", handled, create_dead_letters=True, **named)
    async with running(subscriber):
        await pass_time(100)
    assert len(await client.poll("default/letters")) == 1


async def letters_after_a_crash_behind_the_letter(world: World) -> int:
    """Let a subscriber die after it published its dead letter and before it wrote its place. Return the number of letters."""
    client, published = world.client(), asyncio.Event()
    transport = world.transports[-1]

    def dies(request: Any) -> str | None:
        if "dead-letters/publish" in request.path:
            transport.dead = True
            published.set()
        return None

    transport.fault = dies
    await client.publish(TOPIC, b"poison")
    handled = Handled(lambda _: True)
    task = asyncio.create_task(client.subscriber(TOPIC, "mailer", handled, tries_max=2).run())
    await published.wait()
    await pass_time(1)
    await crash(world, task)
    again = world.client()
    subscriber = again.subscriber(TOPIC, "mailer", handled, tries_max=3)
    async with running(subscriber):
        await pass_time(100)
    return len(await again.poll(LETTERS))


async def test_a_crash_between_a_letter_and_the_place_makes_no_second_letter(world: World) -> None:
    assert await letters_after_a_crash_behind_the_letter(world) == 1


async def test_without_its_key_a_letter_is_published_twice(world: World) -> None:
    with in_force("letter-once"):
        assert await letters_after_a_crash_behind_the_letter(world) == 2


async def test_the_place_is_written_behind_each_dead_letter(world: World) -> None:
    client, gate, begun = world.client(), asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        if message.payload == b"poison":
            raise ValueError("never")
        begun.set()
        await gate.wait()

    await client.publish(TOPIC, [b"poison", b"slow"])
    options = SubscriberOptions(tries_max=1, place_interval_s=1e6)
    async with running(client.subscriber(TOPIC, "mailer", handler, options=options)):
        await begun.wait()
        assert await place_of(world) == (await client.poll(TOPIC))[0].id
        gate.set()


async def test_a_letter_that_is_refused_for_good_ends_the_subscriber_with_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload == b"poison")

    async def refuse(*_: Any, **__: Any) -> None:
        raise BodyTooLarge("too large")

    await client.publish(TOPIC, [b"a", b"poison"])
    monkeypatch.setattr(client, "publish", refuse)
    with pytest.raises(BodyTooLarge):
        await client.subscriber(TOPIC, "mailer", handled, tries_max=1).run()
    cursor = await client.cursors.get(TOPIC, "mailer")
    assert cursor.after == (await client.poll(TOPIC))[0].id
    assert "holder" not in cursor.data


@pytest.mark.parametrize("first", ["retry", "drop"])
@pytest.mark.parametrize("then", ["retry", "drop"])
async def test_a_letter_that_was_settled_since_it_was_listed_is_not_open(
    world: World, first: str, then: str
) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload != b"end")
    await client.publish(TOPIC, [b"a", b"b", b"end"])
    async with running(client.subscriber(TOPIC, "mailer", handled, tries_max=1)):
        await handled.until(1)
    calls = client.dead_letters
    one, two = await calls.list(TOPIC)
    await getattr(calls, first)(TOPIC, one.id)
    await getattr(calls, then)(TOPIC, two)
    before = await client.poll(TOPIC)
    for letter in one, two:
        with pytest.raises(NotFound, match="since"):
            await getattr(calls, then)(TOPIC, letter)
    assert await client.poll(TOPIC) == before


async def test_a_letter_of_a_former_generation_is_not_published_to_the_new_topic(
    world: World,
) -> None:
    client = world.client()
    await client.publish(TOPIC, b"poison")
    subscriber = client.subscriber(TOPIC, "mailer", Handled(lambda _: True), tries_max=1)
    async with running(subscriber):
        while not subscriber.counts.dead_letters:
            await pass_time(0.1)
    await client.delete_topic(TOPIC)
    await client.create_topic(TOPIC)
    [letter] = await client.dead_letters.list(TOPIC)
    with pytest.raises(TopicRecreated, match="was deleted and created again"):
        await client.dead_letters.retry(TOPIC, letter)
    assert await client.poll(TOPIC) == []
    await client.dead_letters.drop(TOPIC, letter)
    assert await client.dead_letters.list(TOPIC) == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1"])
async def test_a_list_of_letters_has_a_limit_of_at_least_one(world: World, limit: Any) -> None:
    with pytest.raises(BadRequest, match="limit: must be a whole number of at least 1"):
        await world.client().dead_letters.list(TOPIC, limit=limit)

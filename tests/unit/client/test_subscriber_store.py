"""A store of the application keeps the place, together with the writes of the handler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.client import CursorMoved, TopicRecreated
from broker.model import Message, TopicId
from broker.places import Place
from broker.testing.virtual_time import pass_time
from tests.unit.client.subscribing import (
    LETTERS,
    TOPIC,
    Handled,
    World,
    crash,
    numbers,
    running,
)


class Ledger:
    """A place store of the application: the handler's work and the place change together, or not at all."""

    def __init__(self) -> None:
        self.after: bytes | None = None
        self.entries: list[bytes] = []
        self.fails_at_commit = 0

    async def load(self) -> bytes | None:
        return self.after

    @asynccontextmanager
    async def work(self, after: bytes) -> AsyncIterator[list[bytes]]:
        before, draft = self.after, []
        yield draft
        if self.after != before:
            raise CursorMoved("another was here")
        if self.fails_at_commit:
            self.fails_at_commit -= 1
            raise OSError("the database is busy")
        self.entries += draft
        self.after = after


async def test_a_place_in_the_handlers_own_transaction_counts_each_message_once(
    world: World,
) -> None:
    client, ledger, dies = world.client(), Ledger(), asyncio.Event()

    async def handler(message: Message, draft: list[bytes]) -> None:
        draft.append(message.payload)
        if message.payload == b"5" and not dies.is_set():
            dies.set()
            await asyncio.Event().wait()
        if message.payload == b"7":
            raise ValueError("never")

    await client.publish(TOPIC, numbers(10))
    ledger.fails_at_commit = 2
    task = asyncio.create_task(client.subscriber(TOPIC, "m", handler, place=ledger).run())
    await dies.wait()
    await crash(world, task)
    again = world.client()
    subscriber = again.subscriber(TOPIC, "m", handler, place=ledger, tries_max=2)
    async with running(subscriber):
        await pass_time(100)
    assert ledger.entries == [*numbers(7), b"8", b"9"]
    assert [letter.payload for letter in await again.poll(LETTERS)] == [b"7"]
    assert ledger.after == (await again.poll(TOPIC))[-1].id
    [cursor] = await again.cursors.list(TOPIC)  # It is the claim, and shows the lag.
    assert (cursor.after, cursor.data, cursor.lag.messages) == (ledger.after, "", 0)


async def test_a_store_that_fails_to_begin_is_asked_again(world: World) -> None:
    class Named(Ledger):
        begun: tuple[TopicId, int] | None = None
        fails = 2

        async def begin(self, topic: TopicId, generation: int) -> None:
            if self.fails:
                self.fails -= 1
                raise OSError("the database is away")
            self.begun = topic, generation

    client, ledger = world.client(), Named()
    await client.publish(TOPIC, numbers(3))

    async def handler(message: Message, draft: list[bytes]) -> None:
        draft.append(message.payload)

    async with running(client.subscriber(TOPIC, "m", handler, place=ledger)):
        await pass_time(10)
    assert (ledger.begun, ledger.entries) == ((TopicId("default", "t"), 1), numbers(3))


async def test_a_store_that_was_moved_is_followed(world: World) -> None:
    """Another program moves the place during a call of the handler, whose results do not count then."""
    client, ledger, done = world.client(), Ledger(), asyncio.Event()
    await client.publish(TOPIC, numbers(3))
    ids = [message.id for message in await client.poll(TOPIC)]

    async def handler(message: Message, draft: list[bytes]) -> None:
        draft.append(message.payload)
        if message.payload == b"0":
            ledger.after = ids[1]
        if message.payload == b"2":
            done.set()

    subscriber = client.subscriber(TOPIC, "m", handler, place=ledger)
    async with running(subscriber):
        await done.wait()
    assert (ledger.entries, subscriber.counts.lost) == ([b"2"], 1)
    assert subscriber.counts.failed == 0


@pytest.mark.parametrize("crashed", [False, True])
async def test_a_store_that_finds_another_place_makes_no_dead_letter(
    world: World, *, crashed: bool
) -> None:
    """The subscriber lets its claim go, so that it needs no takeover, and what was not tried is no try."""

    class Moved(Ledger):
        moves = 3

        def work(self, after: bytes) -> Any:
            if self.moves:
                self.moves -= 1
                raise CursorMoved("another was here")
            return super().work(after)

    client, ledger = world.client(), Moved()
    await client.publish(TOPIC, numbers(3))

    async def handler(message: Message, draft: list[bytes]) -> None:
        draft.append(message.payload)

    if crashed:  # The next holder counts a try before it begins, as the message may have ended the former process.
        silent = json.dumps({"holder": "dead", "takeover_s": 1.0, "messages": 100})
        await client.cursors.put(TOPIC, "m", None, expected=None, data=silent)
    subscriber = client.subscriber(TOPIC, "m", handler, place=ledger, tries_max=1)
    async with running(subscriber):
        await pass_time(3 * 10 / 4 + 3)
        assert ledger.entries == numbers(3)
    assert (subscriber.counts.lost, subscriber.counts.dead_letters) == (3, 0)


async def test_of_two_consumers_with_a_store_one_works_and_the_other_takes_over(
    world: World,
) -> None:
    ledger, begun, gate = Ledger(), asyncio.Event(), asyncio.Event()
    seen: list[tuple[str, bytes]] = []

    def handler_of(name: str) -> Any:
        async def handler(message: Message, draft: list[bytes]) -> None:
            seen.append((name, message.payload))
            draft.append(message.payload)
            if message.payload == b"9":
                begun.set()
                await gate.wait()

        return handler

    first, second = world.client(), world.client()
    await first.publish(TOPIC, numbers(20))
    one = first.subscriber(TOPIC, "m", handler_of("one"), place=ledger)
    task = asyncio.create_task(one.run())
    await pass_time(1)
    async with running(second.subscriber(TOPIC, "m", handler_of("two"), place=ledger)):
        await begun.wait()
        await pass_time(60)
        assert {name for name, _ in seen} == {"one"}
        await crash(world, task, 0)
        gate.set()
        await pass_time(60)
    assert ledger.entries == numbers(20)
    assert [payload for name, payload in seen if name == "two"] == numbers(11, 9)


@pytest.mark.parametrize("start", ["now", "id", None])
async def test_where_a_subscriber_with_an_empty_store_begins(world: World, start: Any) -> None:
    client, ledger = world.client(), Ledger()
    await client.publish(TOPIC, [b"0", b"1"])
    at = (await client.poll(TOPIC))[0].id if start == "id" else start

    async def handler(message: Message, draft: list[bytes]) -> None:
        draft.append(message.payload)

    for published in (b"2", b"3"):
        for payloads in ([], [published]):  # First it only begins.
            if payloads:
                await client.publish(TOPIC, payloads)
            async with running(client.subscriber(TOPIC, "m", handler, place=ledger, start=at)):
                await pass_time(10)
    assert ledger.entries == {"now": [b"2", b"3"], "id": numbers(3, 1), None: numbers(4)}[start]


async def test_a_busy_store_is_retried_after_a_dead_letter(world: World) -> None:
    client, ledger = world.client(), Ledger()

    async def handler(message: Message, draft: list[bytes]) -> None:
        ledger.fails_at_commit = 2
        raise ValueError("never")

    await client.publish(TOPIC, b"poison")
    subscriber = client.subscriber(TOPIC, "m", handler, place=ledger, tries_max=3)
    async with running(subscriber):
        await pass_time(100)
    assert (subscriber.counts.dead_letters, len(await client.poll(LETTERS))) == (1, 1)
    assert ledger.after == (await client.poll(TOPIC))[0].id


async def test_a_place_of_another_generation_is_refused(world: World) -> None:
    client, handled, begun = world.client(), Handled(), []

    class Placed(Ledger):
        async def begin(self, topic: TopicId, generation: int) -> None:
            begun.append((topic.topic, generation))

        async def load(self) -> Any:
            return None if self.after is None else Place(self.after, 1)

    store = Placed()
    await client.publish(TOPIC, b"m")
    async with running(client.subscriber(TOPIC, "m", handled, place=store)):
        await handled.until(1)
    await client.delete_topic(TOPIC)
    await client.create_topic(TOPIC)
    with pytest.raises(TopicRecreated, match="generation 1"):
        await client.subscriber(TOPIC, "m", handled, place=store).run()
    assert begun == [("t", 1), ("t", 2)]

"""A store of the application keeps the place, together with the writes of the handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.client import CursorMoved
from broker.model import Message
from broker.testing.virtual_time import pass_time
from tests.unit.client.subscribing import (
    LETTERS,
    TOPIC,
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
    assert await again.cursors.list(TOPIC) == []


async def test_a_store_that_was_moved_ends_the_subscriber(world: World) -> None:
    client, ledger = world.client(), Ledger()

    async def handler(message: Message, draft: list[bytes]) -> None:
        ledger.after = b"another's"

    await client.publish(TOPIC, b"m")
    with pytest.raises(CursorMoved, match="another was here"):
        await client.subscriber(TOPIC, "m", handler, place=ledger).run()
    assert ledger.entries == []


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

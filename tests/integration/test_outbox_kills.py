"""A relay of an outbox is killed at each step; every message is published once and in order."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from broker.client import Client, SyncClient
from tests.integration.victims import METADATA, OUTBOX, relay, run, steps_of
from tests.kit.served import ServedNode

KILLED = -9


class World:
    """A broker, and a database in a file."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url, path
        self.engine = create_engine(f"sqlite:///{path}")
        METADATA.create_all(self.engine)
        self.client = SyncClient(url)
        self.topics: list[str] = []

    def fill(self, *topics: str) -> None:
        """Write three messages for each topic, in turn, each in its own SQL transaction."""
        for topic in topics:
            self.client.create_topic(topic)
        self.topics += topics
        for number in range(3):
            for topic in topics:
                with self.engine.begin() as connection:
                    connection.execute(OUTBOX.insert(topic, f"{number}", key=topic))

    def relay(self) -> None:
        async def relaying() -> None:
            async with Client(self.url) as client:
                await OUTBOX.relay_all(client, self.engine)

        asyncio.run(relaying())

    def check(self) -> None:
        for topic in self.topics:
            found = [(m.payload, m.key) for m in self.client.poll(topic)]
            assert found == [(b"%d" % n, topic.encode()) for n in range(3)], topic
        with self.engine.connect() as connection:
            assert OUTBOX.counts(connection) == {}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ServedNode() as node:
        world = World(node.url, tmp_path_factory.mktemp("outbox") / "orders.db")
        yield world
        world.client.close()
        world.engine.dispose()


def test_a_relay_killed_at_each_step_publishes_once_and_in_order(world: World) -> None:
    world.fill("whole/a", "whole/b")
    assert run(relay, world.url, world.path, "") == 0
    world.check()
    steps = steps_of(world.path)
    assert {"before write 4", "behind write 4"} <= set(steps)
    world.fill("one/a")
    assert run(relay, world.url, world.path, "") == 0
    for number, step in enumerate(steps_of(world.path)):
        world.fill(f"killed{number}/a")
        assert run(relay, world.url, world.path, "", step) == KILLED, step
        if number % 3 == 0:
            run(relay, world.url, world.path, "", "behind write 1")
        world.relay()
    world.check()


def test_two_relays_at_once_publish_once(world: World) -> None:
    world.fill(*[f"race/t{number}" for number in range(5)])

    async def relaying() -> None:
        async with Client(world.url) as one, Client(world.url) as other:
            await asyncio.gather(
                *[OUTBOX.relay_all(client, world.engine) for client in (one, other, one)],
            )

    asyncio.run(relaying())
    world.relay()
    world.check()

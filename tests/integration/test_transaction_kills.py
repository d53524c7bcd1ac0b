"""A transaction over a SQL database and the broker is killed at each step; after a recovery it is in both or in neither."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert, select

from broker.client import Client, SyncClient, TopicId
from broker.client.publish_request import parts_of
from broker.client.transaction_aware import Topical
from broker.sql.record import Recovered
from broker.testing.broker_process import BrokerProcess
from tests.integration.victims import (
    METADATA,
    ORDERS,
    RECORD,
    TOPIC,
    recover,
    run,
    steps_of,
    transact,
)

KILLED = -9


class World:
    """A broker in its own process, and a database in a file."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url, path
        self.engine = create_engine(f"sqlite:///{path}")
        METADATA.create_all(self.engine)
        self.client = SyncClient(url)
        self.client.create_topic(TOPIC, if_exists="keep")

    def time_out(self) -> None:
        """Invalidate all transactions in progress, as their timeouts do."""
        for found in self.client.transactions.list()["in_progress"]:
            self.client.transactions.invalidate(int(found["id"]))

    def decide(self, name: str) -> None:
        """Leave the state of a process that was killed after the decision, with its transaction timed out."""
        begun = self.client.transactions.start()
        parts = [parts_of(f"{name} {number}", key=name) for number in (1, 2)]
        with self.engine.begin() as connection:
            connection.execute(insert(ORDERS), [{"name": name}])
            RECORD.write(connection, begun, [Topical(TopicId(*TOPIC.split("/")), parts)])
        self.client.transactions.invalidate(begun.transaction_id)

    def recover(self) -> None:
        RECORD.recover_blocking(self.client, self.engine)

    def check(self, name: str) -> bool:
        """Return whether the transaction is in both; fail if it is in one, or twice, or if a record is left."""
        snapshot = self.client.transactions.snapshot()
        assert list(snapshot.in_progress) == []
        seen = [
            message.payload.decode()
            for message in self.client.poll(TOPIC, snapshot=snapshot)
            if message.key == name.encode()
        ]
        with self.engine.connect() as connection:
            row = connection.execute(select(ORDERS).where(ORDERS.c.name == name)).one_or_none()
            assert RECORD.all(connection) == []
            assert connection.execute(select(RECORD.messages)).all() == []
        wanted = [] if row is None else [f"{name} 1", f"{name} 2"]
        assert seen == wanted, name
        return row is not None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kills")
    with BrokerProcess(folder / "data") as broker:
        world = World(broker.url, folder / "orders.db")
        yield world
        world.client.close()
        world.engine.dispose()


def test_a_transaction_killed_at_each_step_is_in_both_or_in_neither(world: World) -> None:
    assert run(transact, world.url, world.path, "whole") == 0
    assert world.check("whole")
    steps = steps_of(world.path)
    assert {"before decide_tx 1", "behind decide_tx 1", "before commit 1"} <= set(steps)
    both = {}
    for number, step in enumerate(steps):
        for timed_out in (False, True):
            name = f"{number} {step} {timed_out}"
            assert run(transact, world.url, world.path, name, step) == KILLED
            if timed_out:
                world.time_out()
            world.recover()
            world.time_out()
            both[step, timed_out] = world.check(name)
    decided = steps.index("behind decide_tx 1")
    assert both == {
        (step, timed_out): number >= decided
        for number, step in enumerate(steps)
        for timed_out in (False, True)
    }


def test_a_recovery_killed_at_each_step_is_finished_by_the_next_one(world: World) -> None:
    world.decide("recovered")
    assert run(recover, world.url, world.path, "") == 0
    assert world.check("recovered")
    steps = steps_of(world.path)
    assert {"before start 1", "before commit 1", "behind write 1"} <= set(steps)
    for number, step in enumerate(steps):
        name = f"recovery {number} {step}"
        world.decide(name)
        assert run(recover, world.url, world.path, "", step) == KILLED
        if (number + number // 2) % 2:
            world.time_out()
        world.recover()
        world.time_out()
        assert world.check(name)


def test_two_recoveries_at_once_publish_once(world: World) -> None:
    for number in range(5):
        world.decide(f"race {number}")
    counts = asyncio.run(two_recoveries(world))
    world.time_out()
    assert all(world.check(f"race {number}") for number in range(5))
    assert sum(count.republished for count in counts) >= 5


async def two_recoveries(world: World) -> list[Recovered]:
    async with Client(world.url) as client:
        return await asyncio.gather(*(RECORD.recover(client, world.engine) for _ in range(2)))

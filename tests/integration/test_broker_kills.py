"""A broker that is killed at random moments under load has everything that it acknowledged.

Publishers of four kinds run all the time, each sending unique values one request after the other; the
broker is killed with SIGKILL and started again. At the end everything is read and compared with what
each publisher was told: acknowledged is there once, in its order; refused is not there; of what is
unknown all is there or nothing; what was published under a key is there exactly once.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from broker.client import BrokerError, Client, Snapshot, TopicNotFound
from broker.testing.process import BrokerProcess

KILLS = int(os.environ.get("BROKER_KILLS", "50"))
ACKNOWLEDGED_MIN = 400 * KILLS
LOAD_S_MAX = 0.5
"""A kill comes at a random moment this long after a start at most."""
SIZES = (0, 1, 40, 40, 100, 100, 300, 300, 300, 4_000)
SIZE_RARE = 60_000
LIFE_MAX_S = 10**10


@dataclass
class Told:
    """What one publisher was told of its requests, in the order in which it sent them."""

    acknowledged: list[bytes] = field(default_factory=list)
    unknown: list[tuple[bytes, ...]] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)

    async def send(self, values: list[bytes], sending: asyncio.Future | asyncio.Task) -> None:
        """Wait for a request's outcome, and note it."""
        try:
            await sending
        except BrokerError as error:
            if error.outcome == "unknown":
                self.unknown.append(tuple(values))
            else:
                self.refused.update(values)
        else:
            self.acknowledged += values


class Load:
    """The publishers. They go on until ``stop`` is set, through every restart."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.stop = asyncio.Event()
        self.told: dict[str, Told] = {}
        self.rolled_back: set[bytes] = set()
        self.stored: dict[int, Told] = {}
        self.references: dict[int, str] = {}
        self.generations: dict[int, Told] = {}
        self.generation = 0
        self._pointers = iter(range(1, 1 << 40))

    def values(self, who: str, number: int, count: int) -> list[bytes]:
        return [f"{who}-{number}-{i}:".encode() + bytes(self.size()) for i in range(count)]

    def size(self) -> int:
        return SIZE_RARE if self.random.random() < 0.01 else self.random.choice(SIZES)

    async def plain(self, client: Client, who: str) -> None:
        told = self.told[who] = Told()
        number = 0
        while not self.stop.is_set():
            number += 1
            values = self.values(who, number, self.random.choice((1, 1, 5, 40, 150)))
            body = values[0] if len(values) == 1 else values
            await told.send(values, asyncio.ensure_future(client.publish("kills/log", body)))

    async def keyed(self, client: Client, who: str) -> None:
        """Publish under a key until it is acknowledged, over kills too."""
        told = self.told[who] = Told()
        number = 0
        while not self.stop.is_set():
            number += 1
            values = self.values(who, number, 3)
            while values[0] not in told.acknowledged[-3:]:
                publishing = client.publish("kills/log", values, key=f"{who}-{number}")
                await told.send(values, asyncio.ensure_future(publishing))

    async def transactional(self, client: Client, who: str) -> None:
        """Store and refer, or publish inline and roll half of it back."""
        told = self.told[who] = Told()
        number = 0
        while not self.stop.is_set():
            number += 1
            pointer = next(self._pointers)
            if number % 3 == 0:
                await self._store_and_refer(client, who, pointer)
                continue
            values = self.values(who, number, 2)
            publishing = asyncio.ensure_future(client.publish("kills/log", values, pointer=pointer))
            await told.send(values, publishing)
            if publishing.exception() is None and number % 2:
                try:
                    await client.rollback("kills/log", publishing.result())
                except BrokerError:
                    continue
                self.rolled_back.update(values)

    async def _store_and_refer(self, client: Client, who: str, pointer: int) -> None:
        told = self.stored[pointer] = Told()
        for part in range(3):
            values = self.values(f"{who}-stored-{pointer}", part, 2)
            storing = client.store("kills/log", values, pointer=pointer)
            await told.send(values, asyncio.ensure_future(storing))
        try:
            await client.publish_stored("kills/log", pointer=pointer)
        except BrokerError as error:
            self.references[pointer] = error.outcome
        else:
            self.references[pointer] = "ok"

    async def recreated(self, client: Client) -> None:
        """Create, publish a little, delete, for ever: each life of the topic begins empty."""
        topic = "kills/phoenix"
        while not self.stop.is_set():
            try:
                await client.delete_topic(topic)
            except TopicNotFound:
                pass
            except BrokerError:
                continue
            self.generation += 1
            told = self.generations[self.generation] = Told()
            try:
                await client.create_topic(topic)
            except BrokerError:
                continue
            for number in range(4):
                values = self.values(f"life-{self.generation}", number, 2)
                await told.send(values, asyncio.ensure_future(client.publish(topic, values)))

    async def run(self) -> None:
        """Run all publishers until ``stop``."""
        async with Client(
            self.url, deadline_s=3.0, retry_delay_max_s=0.2, coalesce=False
        ) as client:
            await client.create_topic("kills/log")
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(self.plain(client, f"plain{number}"))
                group.create_task(self.keyed(client, "keyed"))
                group.create_task(self.transactional(client, "tx"))
                group.create_task(self.recreated(client))

    @property
    def acknowledged(self) -> int:
        everyone = [*self.told.values(), *self.stored.values(), *self.generations.values()]
        return sum(len(told.acknowledged) for told in everyone)


async def kill_again_and_again(broker: BrokerProcess, load: Load, moments: random.Random) -> int:
    """Kill and start the broker until there were enough kills and acknowledgements."""
    running = asyncio.create_task(load.run())
    kills = 0
    while kills < KILLS or load.acknowledged < ACKNOWLEDGED_MIN:
        done, _ = await asyncio.wait((running,), timeout=moments.uniform(0.0, LOAD_S_MAX))
        assert not done, running.result()
        broker.kill()
        await asyncio.to_thread(broker.start)
        kills += 1
    load.stop.set()
    await asyncio.wait_for(running, 60)
    return kills


def check_order(found: list[bytes], told: Told, who: str) -> None:
    """Everything acknowledged once and in order; nothing that was refused; unknown whole or not."""
    counts = Counter(found)
    assert max(counts.values(), default=1) == 1, f"{who}: something is there twice"
    unknown = {value for values in told.unknown for value in values}
    assert [value for value in found if value not in unknown] == [
        value for value in told.acknowledged if value not in unknown
    ], f"{who}: lost, reordered or never sent"
    for values in told.unknown:
        present = sum(value in counts for value in values)
        assert present in (0, len(values)), f"{who}: a request is there in part"
    assert not told.refused & counts.keys() - set(told.acknowledged), f"{who}: refused, yet there"


async def check_everything(load: Load) -> None:
    async with Client(load.url) as client:
        messages = await client.poll("kills/log")
        assert all(a.id < b.id for a, b in pairwise(messages))
        payloads = [message.payload for message in messages]
        for who, told in load.told.items():
            mine = [value for value in payloads if value.startswith(f"{who}-".encode())]
            if who == "keyed":
                told.unknown = [v for v in told.unknown if v[0] not in set(told.acknowledged)]
            check_order([v for v in mine if b"-stored-" not in v], told, who)
        for pointer, told in load.stored.items():
            check_stored(payloads, pointer, told, load.references.get(pointer, "unknown"))
        everything = Snapshot(transaction_id=1 << 50, read_pointer=1 << 50)
        visible = {m.payload for m in await client.poll("kills/log", snapshot=everything)}
        assert not visible & load.rolled_back, "rolled back, yet visible to a transaction"
        await check_last_life(client, load)


def check_stored(payloads: list[bytes], pointer: int, told: Told, reference: str) -> None:
    mine = [value for value in payloads if f"-stored-{pointer}-".encode() in value]
    if reference == "ok" or mine:
        check_order(mine, told, f"stored {pointer}")
    if reference == "refused":
        assert not mine, f"stored {pointer}: its reference was refused, yet it is there"


async def check_last_life(client: Client, load: Load) -> None:
    """The topic that was re-created all the time holds messages of one life alone."""
    try:
        payloads = [message.payload for message in await client.poll("kills/phoenix")]
    except TopicNotFound:
        return
    lives = {value.split(b"-")[1] for value in payloads}
    assert len(lives) <= 1, f"messages of several lives: {lives}"
    for life in lives:
        check_order(payloads, load.generations[int(life)], f"life {life!r}")


@pytest.mark.timeout(240)
async def test_kills_lose_nothing_that_was_acknowledged(tmp_path):
    seed = int(os.environ.get("BROKER_SEED", "7"))
    flags = ["--transaction-life-max", str(LIFE_MAX_S)]
    with BrokerProcess(tmp_path / "data", flags) as broker:
        load = Load(broker.url, seed)
        kills = await kill_again_and_again(broker, load, random.Random(seed))
        unknown = sum(len(told.unknown) for told in load.told.values())
        print(f"{kills} kills, {load.acknowledged} acknowledged, {unknown} requests unknown")  # noqa: T201
        await check_everything(load)
        assert kills >= KILLS
        assert load.acknowledged >= ACKNOWLEDGED_MIN
        assert load.references, "no transaction's payloads were ever referred to"
        assert load.rolled_back, "nothing was ever rolled back"
        assert load.generation > 1, "the topic was never re-created"
        assert broker.stop() == 0

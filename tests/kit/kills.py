"""Kill loops: kill a broker, or a store alone, at random moments under a mixed load, and check its history.

::

    run_kills ──►  workers, each one call at a time  ──►  Driver  ──►  the killed process
        │                     │
        │                     └──►  History, checked at the end
        └──►  kill -9 after a chosen number of answered calls in this life; start again

The load has publishes of one and of many messages, from one byte to many pages. Some are in transactions, and some of
these are rolled back. Some have an idempotency key, and a later life repeats them. Some payloads are stored and
published by a reference. One topic is deleted and created again and again. A driver makes the calls: over HTTP, or to
a store in a child process (kill_store.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.history import Ending, History, Value
from tests.kit.driver import Done, Driver, Refused, TopicContents, UnknownResult


class Keyed(NamedTuple):
    """A publish, with its idempotency key if it has one."""

    topic: str
    payloads: tuple[str, ...]
    pointer: int | None
    key: str


@dataclass(slots=True)
class Topics:
    """The workers' knowledge of the topics; generation 0 means that the topic does not exist."""

    generations: dict[str, int]
    keyed: list[Keyed] = field(default_factory=list)
    stored: dict[int, str] = field(default_factory=dict)
    """The topic of each number with stored payloads."""
    next_pointer: int = 1

    def take_pointer(self) -> int:
        """Return a number that no other transaction has."""
        self.next_pointer += 1
        return self.next_pointer


class Extent(NamedTuple):
    """The extent of a run: it goes on until it has reached both ``kills`` and ``messages``."""

    kills: int
    messages: int
    topics: int = 4
    workers: int = 8
    calls_max: int = 200
    """The most calls that one life answers before its kill."""


class Counts(NamedTuple):
    """The counts of a run."""

    kills: int
    acknowledged: int
    """Acknowledged messages."""
    unknown: int
    """Calls without an answer, because of a kill."""


class Worker:
    """One client: it makes one call at a time, and writes each to the history."""

    def __init__(
        self, process: str, driver: Driver, history: History, topics: Topics, rng: random.Random
    ) -> None:
        """Work during one life of the killed process."""
        self._process = process
        self._driver = driver
        self._history = history
        self._topics = topics
        self._rng = rng
        self._count = 0
        self.messages = 0

    async def step(self, topic: str) -> None:
        """Make one random call on one of the fixed topics. Raises UnknownResult."""
        generation = self._topics.generations[topic]
        kinds = ["plain", "transaction", "keyed", "again", "stored"]
        match self._rng.choices(kinds, weights=[50, 20, 15, 5, 10])[0]:
            case "plain":
                await self._publish(topic, generation, None, None)
            case "transaction":
                await self._transaction(topic, generation)
            case "keyed":
                await self._publish(topic, generation, None, self._label("key"))
            case "again":
                await self._again(generation)
            case _:
                await self._stored(topic, generation)

    async def churn(self, topic: str) -> None:
        """Create, publish to, or delete a topic that only this worker uses. Raises UnknownResult."""
        generation = self._topics.generations[topic]
        if not generation:
            await self.create(topic)
        elif self._rng.random() < 0.3:
            self._topics.generations[topic] = 0
            with self._asking("delete", topic, {"generation": generation}) as ending:
                await self._driver.delete(topic, generation)
                ending.ok({})
        else:
            await self._publish(topic, generation, None, None)

    async def create(self, topic: str) -> None:
        """Create a topic and remember its generation. Raises UnknownResult."""
        with self._asking("create", topic, {}) as ending:
            generation = await self._driver.create(topic)
            self._topics.generations[topic] = generation
            ending.ok({"generation": generation})

    async def _publish(
        self, topic: str, generation: int, pointer: int | None, key: str | None
    ) -> Done | None:
        count = self._rng.choice([1, 1, 1, 2, 5, 20, 60])
        payloads = tuple(self._label("m") for _ in range(count))
        if key is not None:
            self._topics.keyed.append(Keyed(topic, payloads, pointer, key))
        return await self.send(topic, generation, Keyed(topic, payloads, pointer, key or ""))

    async def _again(self, generation: int) -> None:
        if self._topics.keyed:
            keyed = self._rng.choice(self._topics.keyed)
            await self.send(keyed.topic, generation, keyed)

    async def send(self, topic: str, generation: int, keyed: Keyed) -> Done | None:
        """Publish messages, and note it in the history. Return None if it was refused. Raises UnknownResult."""
        asked: Value = {
            "payloads": list(keyed.payloads),
            "pointer": keyed.pointer,
            "key": keyed.key or None,
            "generation": generation,
        }
        done: Done | None = None
        with self._asking("publish", topic, asked) as ending:
            done = await self._driver.publish(
                topic, generation, keyed.payloads, pointer=keyed.pointer, key=keyed.key or None
            )
            told: Value = {"last": done.last}
            if done.replayed:
                told["replayed"] = True
            else:
                self.messages += len(keyed.payloads)
            ending.ok(told, done.first)
        return done

    async def _transaction(self, topic: str, generation: int) -> None:
        pointer = self._topics.take_pointer()
        done = await self._publish(topic, generation, pointer, None)
        if done is None or self._rng.random() < 0.6:
            return
        asked: Value = {
            "pointer": pointer,
            "first": done.first,
            "last": done.last,
            "generation": generation,
        }
        with self._asking("rollback", topic, asked) as ending:
            await self._driver.rollback(topic, generation, pointer, done.first, done.last)
            ending.ok({})

    async def _stored(self, topic: str, generation: int) -> None:
        number = self._topics.take_pointer()
        self._topics.stored[number] = topic
        payloads = [self._label("s") for _ in range(self._rng.choice([1, 3, 30]))]
        asked: Value = {"payloads": payloads, "number": number, "generation": generation}
        with self._asking("store", topic, asked) as ending:
            done = await self._driver.store(topic, generation, payloads, number)
            self.messages += len(payloads)
            ending.ok({"last": done.last}, done.first)
        asked = {"number": number, "generation": generation}
        with self._asking("reference", topic, asked) as ending:
            done = await self._driver.reference(topic, generation, number)
            ending.ok({}, done.first)

    @contextmanager
    def _asking(self, op: str, topic: str, asked: Value) -> Iterator[Ending]:
        """Write an invoke, and the end of the call if the body raises. A refusal ends the body quietly."""
        ending = self._history.invoke(self._process, op, topic, asked)
        try:
            yield ending
        except UnknownResult as error:
            ending.unknown(str(error))
            raise
        except Refused as error:
            ending.fail(str(error))

    def _label(self, kind: str) -> str:
        self._count += 1
        return f"{kind}:{self._process}:{self._count}"


async def run_kills(driver: Driver, history: History, rng: random.Random, extent: Extent) -> Counts:
    """Load and kill until the extent is reached, then read all topics into the history.

    The history's checkers decide whether all acknowledged messages are there.
    """
    names = [f"t{number}" for number in range(extent.topics)]
    known = Topics(dict.fromkeys([*names, "churn"], 0))
    await driver.start()
    first = Worker("first", driver, history, known, rng)
    for name in names:
        await first.create(name)
    done, acknowledged = 0, 0
    while done < extent.kills or acknowledged < extent.messages:
        acknowledged += await _one_life(driver, history, known, rng, (done, extent))
        done += 1
        await driver.start()
    await _read_all(driver, history, known)
    unknown = sum(event.type == "unknown" for event in history.events)
    return Counts(done, acknowledged, unknown)


async def run_to_a_death(driver: Driver, history: History, rng: random.Random, calls: int) -> bool:
    """Make calls one after the other until the driven process dies by itself; read all topics in the next life.

    Returns True if it died; otherwise all calls were answered.
    """
    known = Topics({"t0": 0, "churn": 0})
    await driver.start()
    worker, died = Worker("one", driver, history, known, rng), False
    try:
        await worker.create("t0")
        for number in range(calls):
            await (worker.churn("churn") if number % 3 == 2 else worker.step("t0"))
    except UnknownResult:
        died = True
    await driver.kill()
    await driver.start()
    if not known.generations["t0"]:
        await Worker("second", driver, history, known, rng).create("t0")
    await _read_all(driver, history, known)
    return died


async def _one_life(
    driver: Driver, history: History, known: Topics, rng: random.Random, life: tuple[int, Extent]
) -> int:
    """Load, kill after a random number of steps with calls in flight, and return the acknowledged messages."""
    number, extent = life
    ranges = (10, 60, extent.calls_max)
    left = rng.choice([0, 1, *(rng.randrange(calls) for calls in ranges)])
    enough = asyncio.Event()
    crew = [
        Worker(f"{number}.{index}", driver, history, known, random.Random(rng.random()))
        for index in range(extent.workers)
    ]
    fixed = [name for name in known.generations if name != "churn"]

    async def work(worker: Worker, churns: bool) -> None:
        nonlocal left
        try:
            while True:
                await (worker.churn("churn") if churns else worker.step(rng.choice(fixed)))
                left -= 1
                if left <= 0:
                    enough.set()
        except UnknownResult:
            return

    async with asyncio.TaskGroup() as group:
        for index, worker in enumerate(crew):
            group.create_task(work(worker, index == 0))
        await enough.wait()
        await driver.kill()
    return sum(worker.messages for worker in crew)


async def _read_all(driver: Driver, history: History, known: Topics) -> None:
    """Repeat all publishes with a key, then read all topics and all stored payloads."""
    again = Worker("again", driver, history, known, random.Random(0))
    for keyed in known.keyed:
        await again.send(keyed.topic, known.generations[keyed.topic], keyed)
    await again.create("churn")
    for topic, generation in known.generations.items():
        if not generation:
            continue
        asked: Value = {
            "after": "0" * 20,
            "through": "f" * 20,
            "reverse": False,
            "cursor": None,
            "generation": generation,
        }
        ending = history.invoke("final", "read", topic, asked)
        seen = await driver.read(topic, generation)
        _tell_read(ending, seen)
    for number, topic in known.stored.items():
        generation = known.generations[topic]
        ending = history.invoke(
            "final", "payloads", topic, {"number": number, "generation": generation}
        )
        rows = await driver.payloads(topic, generation, number)
        ending.ok({"rows": [list(row) for row in rows]})


def _tell_read(ending: Ending, seen: TopicContents) -> None:
    rows = [list(row) for row in seen.rows]
    last = seen.rows[-1][0] if seen.rows else "0" * 20
    ending.ok({"rows": rows, "seen": last, "floor": seen.floor, "pointer": seen.pointer})

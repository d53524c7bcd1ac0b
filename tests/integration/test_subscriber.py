"""Subscribers against whole brokers: killed at each step, raced, and served by a broker that restarts."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.client import Client, Message, SyncClient, SyncSubscriber
from broker.testing.broker_process import BrokerProcess
from tests.integration.victims import Steps, run, steps_of
from tests.kit.served import ServedNode

KILLED = -9
DIED = 7
PAYLOADS = [b"0", b"1", b"2", b"poison", b"4", b"5"]
WORKS = [payload for payload in PAYLOADS if payload != b"poison"]
OPTIONS: dict[str, Any] = {
    "place_messages_max": 2,
    "place_interval_s": 1e6,
    "tries_max": 2,
    "retry_delay_min_s": 0.0,
    "retry_delay_max_s": 0.0,
}
SOON = ("before handle 2", "behind handle 2", "behind write 1", "behind write 4", "before write 5")
"""Steps before and after the handler, before its place is written; after the first place; and around a letter's place."""
DEADLINE_S = 60.0


class Log:
    """A handler that writes each handled message to a file; the last message ends its subscriber."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.subscriber: Any = None

    def handle(self, message: Message) -> None:
        if message.payload == b"poison":
            raise ValueError("poison")
        with self.path.open("ab") as file:
            file.write(message.payload + b"\n")
        if message.payload == PAYLOADS[-1]:
            self.stop()

    def stop(self) -> None:
        self.subscriber.stop()

    def seen(self) -> list[bytes]:
        return self.path.read_bytes().split() if self.path.exists() else []


async def subscribe(url: str, path: Path, name: str, steps: Steps) -> None:
    """Handle all messages of a topic; each call of the handler and each write to the broker is a step."""
    log, loop = Log(path), asyncio.get_running_loop()
    async with steps.client(url) as client:
        handle = steps.around("handle", log.handle)
        subscriber = client.subscriber(f"kills/{name}", "s", handle, takeover_s=1e6, **OPTIONS)
        log.subscriber = subscriber
        log.stop = lambda: loop.call_soon_threadsafe(subscriber.stop)  # type: ignore[method-assign]
        await subscriber.run()


async def follow(url: str, path: Path, name: str, steps: Steps) -> None:
    """Handle all messages, and then go on until it is killed."""
    del steps
    log = Log(path)
    async with Client(url) as client:
        log.stop = lambda: None  # type: ignore[method-assign]
        await client.subscriber(f"kills/{name}", "s", log.handle, takeover_s=1.0).run()


async def dies(url: str, path: Path, name: str, steps: Steps) -> None:
    """Handle all messages; "poison" ends this process at once, as a fault of the memory does."""
    del steps
    log, loop = Log(path), asyncio.get_running_loop()

    async def handle(message: Message) -> None:
        if message.payload == b"poison":
            os._exit(DIED)
        log.handle(message)

    async with Client(url) as client:
        options = {**OPTIONS, "tries_max": 1}
        log.subscriber = client.subscriber(f"kills/{name}", "s", handle, takeover_s=0.4, **options)
        log.stop = lambda: loop.call_soon(log.subscriber.stop)  # type: ignore[method-assign]
        await log.subscriber.run()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("subscriber") / "data") as process:
        yield process


def published(client: SyncClient, name: str) -> None:
    client.create_topic(f"kills/{name}")
    client.publish(f"kills/{name}", PAYLOADS)


def to_the_end(client: SyncClient, name: str, path: Path) -> SyncSubscriber:
    log = Log(path)
    log.subscriber = client.subscriber(f"kills/{name}", "s", log.handle, **OPTIONS)
    log.subscriber.run()
    return log.subscriber


def killed_and_begun_again(url: str, folder: Path, name: str, step: str) -> None:
    """Kill a subscriber at a step, let another one go on, and check the messages that they handled together."""
    path, topic = folder / f"log of {name}", f"kills/{name}"
    with SyncClient(url) as client:
        published(client, name)
        assert run(subscribe, url, path, name, step) == KILLED
        before = Log(path).seen()
        if free(client, topic):
            to_the_end(client, name, path)
        after = Log(path).seen()[len(before) :]
        assert list(dict.fromkeys(before + after)) == WORKS, step
        assert len(before) + len(after) - len(WORKS) <= OPTIONS["place_messages_max"], step
        assert [each.payload for each in client.poll(f"{topic}-dead-letters")] == [b"poison"], step
        assert client.cursors.get(topic, "s").lag.messages == 0


def free(client: SyncClient, topic: str) -> bool:
    """Free the cursor, as an operator may; return whether messages lie behind it.

    Without this call the cursor is free only after a long silence of its holder.
    """
    for cursor in client.cursors.list(topic):
        client.cursors.put(topic, cursor.name, cursor.after, expected=cursor.version)
        return cursor.lag.messages > 0
    return True


def test_a_subscriber_that_is_killed_at_a_step_loses_nothing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    for number, step in enumerate(SOON):
        killed_and_begun_again(broker.url, tmp_path, f"soon{number}", step)


def test_a_message_that_ends_its_process_is_found_out(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path, deaths = tmp_path / "log", 0
    with SyncClient(broker.url) as client:
        published(client, "deadly")
        while run(dies, broker.url, path, "deadly", "never") == DIED:
            deaths += 1
            assert deaths < 10
        [letter] = client.dead_letters.list("kills/deadly")
        assert (letter.message.payload, letter.tries) == (b"poison", "1")
        assert letter.reason.startswith("TriesUsedUp")
        assert client.cursors.get("kills/deadly", "s").lag.messages == 0
    # The first death can't be blamed on a message; the other one is its try.
    assert deaths == 2
    assert list(dict.fromkeys(Log(path).seen())) == WORKS


@pytest.mark.nightly
def test_a_subscriber_that_is_killed_at_any_step_loses_nothing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with SyncClient(broker.url) as client:
        published(client, "whole")
    assert run(subscribe, broker.url, tmp_path / "whole", "whole") == 0
    steps = steps_of(tmp_path / "whole")
    assert set(SOON) <= set(steps)
    for number, step in enumerate(steps):
        killed_and_begun_again(broker.url, tmp_path, f"any{number}", step)


async def test_another_takes_over_from_a_process_that_is_killed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path, handled = tmp_path / "log", asyncio.Queue[bytes]()

    async def handle(message: Message) -> None:
        await handled.put(message.payload)

    async with Client(broker.url) as client:
        await client.create_topic("kills/raced")
        victim = threading.Thread(
            target=run, args=(follow, broker.url, path, "raced", "never"), daemon=True
        )
        victim.start()
        await client.publish("kills/raced", b"0")
        holder = await _holder(client, lambda lag: lag == 0)
        waits = client.subscriber("kills/raced", "s", handle, takeover_s=1.0)
        task = asyncio.create_task(waits.run())
        await client.publish("kills/raced", b"1")
        assert await _holder(client, lambda lag: lag == 0) == holder
        assert not waits.is_working
        kill(holder)
        await client.publish("kills/raced", b"2")
        async with asyncio.timeout(DEADLINE_S):
            assert await handled.get() == b"2"
        waits.stop()
        await task
    assert Log(path).seen() == [b"0", b"1"]


async def _holder(client: Client, lags: Any) -> int:
    """Return the process that holds the cursor, once its lag is the expected one."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for cursor in await client.cursors.list("kills/raced"):
                if cursor.after is not None and lags(cursor.lag.messages):
                    return int(json.loads(cursor.data)["holder"].split()[1])


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


async def test_a_subscriber_outlasts_restarts_of_its_broker(tmp_path: Path) -> None:
    handled: list[bytes] = []
    more = asyncio.Event()

    async def handle(message: Message) -> None:
        handled.append(message.payload)
        more.set()

    async def until(count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(handled) < count:
                more.clear()
                await more.wait()

    with BrokerProcess(tmp_path / "data") as process:
        async with Client(process.url) as client:
            await client.create_topic("kills/restarts")
            options = {"place_messages_max": 1, "takeover_s": 1.0}
            subscriber = client.subscriber("kills/restarts", "s", handle, **options)
            task = asyncio.create_task(subscriber.run())
            await client.publish("kills/restarts", [b"0", b"1"])
            await until(2)
            await asyncio.to_thread(process.kill)
            await asyncio.to_thread(process.start)
            await client.publish("kills/restarts", [b"2", b"3"])
            await until(4)
            subscriber.stop()
            await task
            assert (await client.cursors.get("kills/restarts", "s")).lag.messages == 0
    assert list(dict.fromkeys(handled)) == [b"0", b"1", b"2", b"3"]
    assert len(handled) <= 5  # One at most was handled, and its place not written.


# Without asyncio.


def test_a_handler_runs_in_the_thread_of_its_caller(node: ServedNode, tmp_path: Path) -> None:
    threads = set()
    with SyncClient(node.url) as client:
        published(client, "thread")
        log = Log(tmp_path / "log")

        def handle(message: Message) -> None:
            threads.add(threading.get_ident())
            client.publish("kills/thread", b"more") if message.payload == b"0" else None
            log.handle(message)

        log.subscriber = client.subscriber("kills/thread", "s", handle, **OPTIONS)
        log.subscriber.run()
        assert (log.subscriber.counts.handled, log.subscriber.counts.dead_letters) == (5, 1)
    assert threads == {threading.get_ident()}
    assert log.seen() == WORKS


@pytest.mark.parametrize("inside", [False, True])
def test_an_interrupt_stops_a_subscriber(node: ServedNode, *, inside: bool) -> None:
    """The interrupt comes in the handler, whose message then does not count as handled, or during a wait for messages."""
    topic = f"kills/interrupted-{inside}"
    with SyncClient(node.url) as client:
        client.create_topic(topic)
        client.publish(topic, [b"0", b"1"])

        def interrupt() -> None:
            while client.cursors.get(topic, "s").lag.messages:
                pass
            os.kill(os.getpid(), signal.SIGINT)

        def handle(message: Message) -> None:
            if message.payload == b"1":
                if inside:
                    raise KeyboardInterrupt
                threading.Thread(target=interrupt, daemon=True).start()

        subscriber = client.subscriber(topic, "s", handle)
        with pytest.raises(KeyboardInterrupt):
            subscriber.run()
        cursor = client.cursors.get(topic, "s")
        assert (cursor.lag.messages, cursor.data) == (1 if inside else 0, "")
        assert subscriber.counts.failed == 0


class Database:
    """A store of the place in SQLite: it changes in the same SQL transaction as the handler's data."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)  # Used in this thread alone.
        with self.connection:
            self.connection.execute("CREATE TABLE IF NOT EXISTS rows (payload)")
            self.connection.execute("CREATE TABLE IF NOT EXISTS places (name PRIMARY KEY, id)")

    def load(self) -> bytes | None:
        found = self.connection.execute("SELECT id FROM places").fetchone()
        return found[0] if found else None

    @contextmanager
    def work(self, after: bytes) -> Iterator[sqlite3.Connection]:
        with self.connection:
            yield self.connection
            self.connection.execute("REPLACE INTO places VALUES ('s', ?)", (after,))


def test_a_place_in_a_database_counts_each_message_once(node: ServedNode, tmp_path: Path) -> None:
    dies_at, calls = 3, itertools.count()
    with SyncClient(node.url) as client, closing(sqlite3.connect(tmp_path / "db")) as looking:
        published(client, "database")

        def handle(message: Message, connection: sqlite3.Connection) -> None:
            if message.payload == b"poison":
                raise ValueError("poison")
            connection.execute("INSERT INTO rows VALUES (?)", (message.payload,))
            if next(calls) == dies_at:
                raise KeyboardInterrupt
            if message.payload == PAYLOADS[-1]:
                subscriber.stop()

        for dies in (True, False):
            database = Database(tmp_path / "db")
            subscriber = client.subscriber("kills/database", "s", handle, place=database, **OPTIONS)
            if dies:
                with pytest.raises(KeyboardInterrupt):
                    subscriber.run()
            else:
                subscriber.run()
            database.connection.close()
        rows = looking.execute("SELECT payload FROM rows").fetchall()
    assert [payload for (payload,) in rows] == WORKS


# With transactions.


async def test_a_subscriber_waits_for_uncommitted_messages(node: ServedNode) -> None:
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: Message) -> None:
        await handled.put(message.payload)

    async def next_one() -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await handled.get()

    topic = "kills/transactions"
    async with Client(node.url) as client:
        await client.create_topic(topic)
        await client.publish(topic, b"before")
        begun = await client.transactions.start()
        await client.publish(topic, b"in it", pointer=begun.write_pointer)
        await client.publish(topic, b"behind")
        subscriber = client.subscriber(topic, "s", handle, transactional=True)
        task = asyncio.create_task(subscriber.run())
        assert await next_one() == b"before"
        await asyncio.gather(*[client.transactions.snapshot() for _ in range(20)])
        assert handled.empty()
        await client.transactions.can_commit(begun.transaction_id)
        await client.transactions.commit(begun.transaction_id)
        assert [await next_one(), await next_one()] == [b"in it", b"behind"]
        lost = await client.transactions.start()
        await client.publish(topic, b"invalid", pointer=lost.write_pointer)
        await client.publish(topic, b"last")
        await client.transactions.invalidate(lost.transaction_id)
        assert await next_one() == b"last"
        subscriber.stop()
        await task

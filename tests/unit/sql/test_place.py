"""The place of a subscriber in a SQL database, in the transaction of its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import registry

from broker.client import Client, CursorMoved, HandlerFailed, SyncClient, TopicRecreated
from broker.model import TopicId
from broker.sql import SqlPlace
from tests.kit.served import ServedNode

DEADLINE_S = 60.0
METADATA = MetaData()
AMOUNTS = Table("amounts", METADATA, Column("amount", Integer, primary_key=True))
QUICK: dict[str, Any] = {"retry_delay_min_s": 0.0, "retry_delay_max_s": 0.01, "takeover_s": 1.0}


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with ServedNode() as made:
        yield made


@pytest.fixture
def engine(database: Any) -> Iterator[Any]:
    made = database.engine()
    METADATA.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def topic(node: ServedNode, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    with SyncClient(node.url) as client:
        client.create_topic(f"place/{name}")
        client.publish(f"place/{name}", ["1", "2", "3"])
    return f"place/{name}"


def amounts(engine: Any) -> list[int]:
    with engine.begin() as connection:
        return sorted(connection.scalars(select(AMOUNTS.c.amount)))


def test_a_session_commits_rows_and_place_together(
    node: ServedNode, engine: Any, topic: str
) -> None:
    failures = iter([True, False, False])

    def add(message: Any, session: Any) -> None:
        session.execute(insert(AMOUNTS).values(amount=int(message.payload)))
        if message.payload == b"2" and next(failures):
            raise ValueError("after the row was written")
        if message.payload in {b"3", b"4"}:
            subscriber.stop()

    with SyncClient(node.url) as client:
        for published in ([], ["4"]):
            if published:
                client.publish(topic, published)
            place = SqlPlace(engine, "adder")
            subscriber = client.subscriber(topic, "adder", add, place=place, **QUICK)
            subscriber.run()
        assert client.cursors.get(topic, "adder").lag.messages == 0
    assert amounts(engine) == [1, 2, 3, 4]


async def test_an_async_session_commits_rows_and_place_together(
    node: ServedNode, database: Any, engine: Any, topic: str
) -> None:
    async_engine = database.async_engine()
    failures = iter([True, False])

    async def add(message: Any, session: Any) -> None:
        await session.execute(insert(AMOUNTS).values(amount=int(message.payload)))
        if message.payload == b"2" and next(failures):
            raise ValueError("after the row was written")
        if message.payload == b"3":
            subscriber.stop()

    async with Client(node.url) as client, asyncio.timeout(DEADLINE_S):
        place = SqlPlace(async_engine, "adder")
        subscriber = client.subscriber(topic, "adder", add, place=place, **QUICK)
        await subscriber.run()
    await async_engine.dispose()
    assert amounts(engine) == [1, 2, 3]


def test_two_processes_of_one_name_move_the_place_once(engine: Any) -> None:
    ids = [bytes([number]) * 20 for number in range(1, 4)]
    first, second = (SqlPlace(engine, "adder") for _ in range(2))
    for each in (first, second):
        each.begin(TopicId("place", "raced"), 1)
        assert each.load() is None
    for number, (wins, loses) in enumerate([(first, second), (second, first)]):
        with wins.work(ids[number]) as session:  # type: ignore[union-attr]
            session.execute(insert(AMOUNTS).values(amount=number))
        with pytest.raises(CursorMoved), loses.work(ids[number]) as session:  # type: ignore[union-attr]
            session.execute(insert(AMOUNTS).values(amount=10 + number))
        assert loses.load() == (ids[number], 1)
    assert amounts(engine) == [0, 1]


def test_an_error_of_the_handlers_rows_is_no_move_of_the_place(engine: Any) -> None:
    place = SqlPlace(engine, "adder")
    place.begin(TopicId("place", "own"), 1)
    place.load()
    with engine.begin() as connection:
        connection.execute(insert(AMOUNTS).values(amount=1))
    with pytest.raises(IntegrityError), place.work(bytes(20)) as session:  # type: ignore[union-attr]
        session.execute(insert(AMOUNTS).values(amount=1))
    assert place.load() is None


class Amount:
    """A row of ``AMOUNTS``, written at the flush."""

    def __init__(self, amount: Any) -> None:
        self.amount = amount


registry().map_imperatively(Amount, AMOUNTS)


WRONG: dict[str, Callable[[Any], Any]] = {
    "a row that exists": lambda session: session.add(Amount(1)),
    "a row of a wrong type": lambda session: session.add(Amount(object())),
    "ends the transaction": lambda session: session.commit(),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_rows_that_are_refused_behind_the_handler_are_failed_tries(
    node: ServedNode,
    database: Any,
    engine: Any,
    topic: str,
    wrong: Callable[[Any], Any],
    *,
    is_async: bool,
) -> None:
    """The database refuses them at the flush or the commit: no error of the place, which would be retried for ever."""
    async_engine = database.async_engine()

    def add(message: Any, session: Any) -> Any:
        if message.payload == b"3":
            subscriber.stop()
        if message.payload != b"2":
            return session.add(Amount(int(message.payload)))
        return wrong(session)

    async def add_async(message: Any, session: Any) -> None:
        told = add(message, session)
        if told is not None:
            await told

    async with Client(node.url) as client, asyncio.timeout(DEADLINE_S):
        place = SqlPlace(async_engine if is_async else engine, "adder")
        handler = add_async if is_async else add
        subscriber = client.subscriber(topic, "adder", handler, place=place, tries_max=2, **QUICK)
        await subscriber.run()
        [letter] = await client.dead_letters.list(topic)
    await async_engine.dispose()
    assert (letter.message.payload, subscriber.counts.failed) == (b"2", 2)
    assert amounts(engine) == [1, 3]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_statement_that_failed_unseen_is_no_error_of_the_place(
    engine: Any, *, is_first: bool
) -> None:
    place = SqlPlace(engine, "adder")
    place.begin(TopicId("place", f"unseen-{is_first}"), 1)
    place.load()
    if not is_first:
        with place.work(bytes(20)):  # type: ignore[union-attr]
            pass
    with engine.begin() as connection:
        connection.execute(insert(AMOUNTS).values(amount=1))
    fails = engine.dialect.name == "postgresql"  # SQLite goes on with the transaction.
    with (
        pytest.raises(HandlerFailed) if fails else nullcontext(),
        place.work(b"1" * 20) as session,  # type: ignore[union-attr]
        suppress(IntegrityError),
    ):
        session.execute(insert(AMOUNTS).values(amount=1))


def test_a_place_of_another_generation_is_refused(
    node: ServedNode, engine: Any, topic: str
) -> None:
    def add(message: Any, session: Any) -> None:
        if message.payload == b"3":
            subscriber.stop()

    with SyncClient(node.url) as client:
        subscriber = client.subscriber(topic, "adder", add, place=SqlPlace(engine, "adder"))
        subscriber.run()
        client.delete_topic(topic)
        client.create_topic(topic)
        again = client.subscriber(topic, "adder", add, place=SqlPlace(engine, "adder"))
        with pytest.raises(TopicRecreated):
            again.run()


async def test_standbys_wait_and_take_over(
    node: ServedNode, database: Any, engine: Any, topic: str
) -> None:
    async_engine = database.async_engine()
    seen: list[tuple[int, bytes]] = []
    more = asyncio.Event()

    def handler_of(number: int) -> Any:
        async def add(message: Any, session: Any) -> None:
            seen.append((number, message.payload))
            await session.execute(insert(AMOUNTS).values(amount=int(message.payload)))
            more.set()

        return add

    async with Client(node.url) as client, asyncio.timeout(DEADLINE_S):
        made = [
            client.subscriber(topic, "adder", handler_of(number), place=place, **QUICK)
            for number, place in enumerate(SqlPlace(async_engine, "adder") for _ in range(2))
        ]
        tasks = [asyncio.create_task(each.run()) for each in made]
        while len(seen) < 3:
            more.clear()
            await more.wait()
        [worker] = {number for number, _ in seen}
        made[worker].stop()
        await tasks[worker]
        more.clear()
        await client.publish(topic, "4")
        await more.wait()
        made[1 - worker].stop()
        await tasks[1 - worker]
    await async_engine.dispose()
    assert seen == [(worker, b"1"), (worker, b"2"), (worker, b"3"), (1 - worker, b"4")]
    assert amounts(engine) == [1, 2, 3, 4]


def test_a_database_that_is_away_delays_and_loses_nothing(
    node: ServedNode, engine: Any, topic: str
) -> None:
    """The table of places is missing for a while."""
    place = SqlPlace(engine, "adder")
    away = [3]

    def add(message: Any, session: Any) -> None:
        session.execute(insert(AMOUNTS).values(amount=int(message.payload)))
        if message.payload == b"2" and away[0]:
            away[0] -= 1
            session.execute(text("DROP TABLE broker_places"))
        if message.payload == b"3":
            subscriber.stop()

    with SyncClient(node.url) as client:
        options = {**QUICK, "tries_max": 1}
        subscriber = client.subscriber(topic, "adder", add, place=place, **options)
        subscriber.run()
    assert amounts(engine) == [1, 2, 3]
    assert (subscriber.counts.failed, subscriber.counts.dead_letters) == (0, 0)

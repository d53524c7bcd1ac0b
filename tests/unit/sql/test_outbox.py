"""The outbox: its rows, the order of publishing, and the relay after failures."""

import asyncio
from contextlib import nullcontext

import pytest
from sqlalchemy import create_engine, delete, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from broker.client import BadName, BadRequest, Client, NewMessage, OutcomeUnknown, TopicNotFound
from broker.clock import SystemClock
from broker.sql import Outbox, SqlRecord
from broker.sql.relay import KNOWN_MS, CounterWentBack, Relay
from tests.kit.garbage import no_cycle_through_a_traceback
from tests.kit.served import ServedNode

DAY_MS = 24 * 3600 * 1000


@pytest.fixture(scope="module")
def node():
    with ServedNode() as node:
        yield node


class World:
    def __init__(self, client, engine, outbox):
        self.client, self.engine, self.outbox = client, engine, outbox

    def write(self, topic, messages, **options):
        with self.engine.begin() as connection:
            connection.execute(self.outbox.insert(topic, messages, **options))

    async def relay(self):
        return await self.outbox.relay_all(self.client, self.engine)

    async def seen(self, topic="t"):
        return [message.payload for message in await self.client.poll(topic)]

    def columns(self, *columns):
        with self.engine.connect() as connection:
            return connection.execute(select(*columns)).all()


@pytest.fixture
async def world(node, database, request):
    namespace = f"outbox{abs(hash(request.node.name))}"
    engine = database.engine()
    outbox = Outbox(namespace=namespace, batch_messages_max=3, batch_bytes_max=1000)
    outbox.create(engine)
    async with Client(node.url, namespace=namespace) as client:
        await client.create_topic("t")
        yield World(client, engine, outbox)
    engine.dispose()


async def test_rows_of_a_committed_sql_transaction_are_published(world):
    with Session(world.engine) as session, session.begin():
        session.execute(world.outbox.insert("t", ["0", "1"]))
    with Session(world.engine) as session:
        session.execute(world.outbox.insert("t", "undone"))
        session.rollback()
    assert list((await world.outbox.waiting(world.engine)).values()) == [2]
    assert await world.relay() == 2
    assert await world.relay() == 0
    assert await world.seen() == [b"0", b"1"]
    assert await world.outbox.waiting(world.engine) == {}


async def test_keys_headers_and_lifetimes_travel(world):
    world.write("t", ["0", NewMessage("1", "own", {"x": "y"}, 60)], key="k", headers={"h": "v"})
    world.write("t", "2", ttl_s=30)
    await world.relay()
    found = [(m.payload, m.key, dict(m.headers)) for m in await world.client.poll("t")]
    assert found == [
        (b"0", b"k", {"h": b"v"}),
        (b"1", b"own", {"x": b"y"}),
        (b"2", None, {}),
    ]
    rows = (await world.client.browse("t")).messages
    assert len({row.expires_at for row in rows}) == 3


async def test_batches_are_bounded_and_keep_the_order(world):
    sent = [b"%d" % number + bytes(400 if number % 2 else 1) for number in range(20)]
    world.write("t", sent)
    world.write("t", bytes(2000))
    assert await world.relay() == 21
    assert await world.seen() == [*sent, bytes(2000)]
    (counter,) = world.columns(world.outbox.topics.c.number)
    assert counter.number >= 8


async def test_a_row_that_appears_late_is_not_passed_over(world):
    """The late row has a lower id than rows that are published already."""
    rows = world.outbox.rows
    world.write("t", ["a", "b", "c"])
    with world.engine.begin() as connection:
        connection.execute(update(rows).where(rows.c.id == 1).values(topic="other/hidden"))
    with pytest.raises(TopicNotFound):
        await world.relay()
    with world.engine.begin() as connection:
        mine = f"{world.client.settings.namespace}/t"
        connection.execute(update(rows).where(rows.c.id == 1).values(topic=mine, batch=None))
    world.write("t", "d")
    assert await world.relay() == 2
    assert await world.seen() == [b"b", b"c", b"a", b"d"]


async def test_an_id_is_never_given_twice(world):
    world.write("t", ["a", "b"])
    await world.relay()
    world.write("t", "c")
    assert [row.id for row in world.columns(world.outbox.rows.c.id)] == [3]


async def test_a_publish_that_was_done_is_not_done_again_after_a_restart(world):
    """The rows were not deleted, and the relay keeps its state only in the table."""
    world.write("t", ["a", NewMessage("b", "k", {"h": "v"})])
    forget = world.outbox.forget
    world.outbox.forget = failing
    with pytest.raises(OperationalError):
        await world.relay()
    world.outbox.forget = forget
    world.write("t", "c")
    assert await world.seen() == [b"a", b"b"]
    assert await world.relay() == 3
    assert await world.seen() == [b"a", b"b", b"c"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["none", "a message", "the number of messages"])
async def test_a_publish_that_was_done_is_recognised_by_another_leader(tmp_path, change):
    """The new leader has only the ids of the batch. A database that was restored has another batch of that number."""
    engine = create_engine(f"sqlite:///{tmp_path}/orders.db")
    outbox, data = Outbox(namespace="led"), tmp_path / "node"
    outbox.create(engine)
    data.mkdir()
    with ServedNode(folder=data) as node:
        async with Client(node.url, namespace="led") as client:
            await client.create_topic("t")
            world = World(client, engine, outbox)
            world.write("t", ["a", "b"])
            outbox.forget = failing
            with pytest.raises(OperationalError):
                await world.relay()
            del outbox.forget
    rows = outbox.rows
    with engine.begin() as connection:
        if change == "a message":
            connection.execute(update(rows).where(rows.c.id == 2).values(payload=b"new"))
        elif change == "the number of messages":
            connection.execute(delete(rows).where(rows.c.id == 2))
    with ServedNode(folder=data) as node:
        async with Client(node.url, namespace="led") as client:
            world = World(client, engine, outbox)
            if change == "none":
                assert await world.relay() == 2
            else:
                with pytest.raises(CounterWentBack):
                    await world.relay()
            assert await world.seen() == [b"a", b"b"]
    engine.dispose()


def failing(*_, **__):
    raise OperationalError("DELETE", {}, Exception("locked"))


async def test_a_relay_that_slept_publishes_no_row_twice(world, monkeypatch):
    """The slow relay has read a batch; then another relay publishes that batch and further ones."""
    world.write("t", ["a", "b", "c", "d", "e"])
    publish = world.client.publish

    async def slow(topic, messages, **options):
        monkeypatch.undo()
        assert await world.relay() == 5
        return await publish(topic, messages, **options)

    monkeypatch.setattr(world.client, "publish", slow)
    assert await world.relay() == 3
    assert await world.seen() == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("batches", [1, 2])
async def test_a_counter_that_went_back_is_noticed_and_no_row_is_lost(world, batches):
    """The backup is so many batches old. All batches have the same number of messages."""
    counters = []
    for text in ("a", "b", "c"):
        world.write("t", text)
        await world.relay()
        counters += world.columns(world.outbox.topics.c.number)
    with world.engine.begin() as connection:
        older = counters[-1 - batches].number
        connection.execute(update(world.outbox.topics).values(number=older))
    world.write("t", "new")
    with pytest.raises(CounterWentBack, match="restored from a backup"):
        await world.relay()
    assert await world.seen() == [b"a", b"b", b"c"]
    await world.outbox.renew(world.engine)
    assert await world.relay() == 1
    assert await world.seen() == [b"a", b"b", b"c", b"new"]


class AheadClock(SystemClock):
    ahead_ms = 0

    def now_ms(self):
        return super().now_ms() + self.ahead_ms


@pytest.fixture
async def unanswered(world, monkeypatch):
    """A relay whose publish got no answer; its clock; for how many ms the broker knows the number of the batch."""
    world.write("t", "a")
    clock = AheadClock()
    relay = Relay(world.outbox, world.client, world.engine, clock)

    async def lost(*_, **__):
        raise OutcomeUnknown("lost")

    with monkeypatch.context() as patch:
        patch.setattr(world.client, "publish", lost)
        with pytest.raises(OutcomeUnknown, match="lost"):
            await relay.all()
    return relay, clock, KNOWN_MS + (await world.client.topic("t")).ttl_s * 1000


async def test_a_batch_is_published_again_while_the_broker_knows_its_number(world, unanswered):
    relay, clock, known_ms = unanswered
    clock.ahead_ms = known_ms - DAY_MS
    assert await relay.all() == 1
    assert await world.seen() == [b"a"]


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_batch_older_than_the_brokers_memory_is_not_guessed_at(
    world, unanswered, published, restarted
):
    relay, clock, known_ms = unanswered
    clock.ahead_ms = known_ms + DAY_MS
    if restarted:
        relay = Relay(world.outbox, world.client, world.engine, clock)
    with pytest.raises(OutcomeUnknown, match=r"settle\(engine, '.*/t', batch=1, published"):
        await relay.all()
    assert await world.seen() == []
    assert not await world.outbox.settle(world.engine, "t", batch=2, published=published)
    assert await world.outbox.settle(world.engine, "t", batch=1, published=published)
    assert await relay.all() == (0 if published else 1)
    assert await world.seen() == ([] if published else [b"a"])


async def test_a_repeated_settle_touches_no_later_batch(world, unanswered):
    relay, clock, known_ms = unanswered
    clock.ahead_ms = known_ms + DAY_MS
    assert await world.outbox.settle(world.engine, "t", batch=1, published=True)
    world.write("t", "b")
    with world.engine.begin() as connection:
        name = f"{world.client.settings.namespace}/t"
        assert world.outbox.assign(connection, name, clock.now_ms())
    for published in (True, False):
        assert not await world.outbox.settle(world.engine, "t", batch=1, published=published)
    assert await relay.all() == 1
    assert await world.seen() == [b"b"]


async def test_many_messages_are_inserted_in_one_call(world, database):
    """PostgreSQL takes at most 65,535 parameters in a statement, and asyncpg 32,767."""
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415 - It imports greenlet.

    sent = [str(number) for number in range(14_000)]
    with Session(world.engine) as session, session.begin():
        session.execute(world.outbox.insert("t", sent, key="k"))
    engine = database.async_engine()
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(world.outbox.insert("t", sent))
    async with engine.connect() as connection:
        await connection.execute(world.outbox.insert("t", sent))
        await connection.rollback()
    await engine.dispose()
    rows = world.outbox.rows
    found = world.columns(rows.c.id, rows.c.payload, rows.c.topic)
    assert [row.payload.decode() for row in sorted(found)] == sent * 2
    assert len({row.topic for row in found}) == 1


async def test_an_insert_in_parts_returns_the_rows_of_all_parts(world, database):
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415 - It imports greenlet.

    ids = world.outbox.rows.c.id
    statement = world.outbox.insert("t", ["x"] * 2_500).returning(ids)
    with Session(world.engine) as session, session.begin():
        found = session.execute(statement).scalars().all()
    engine = database.async_engine()
    async with AsyncSession(engine) as session, session.begin():
        found += (await session.execute(statement)).scalars().all()
    await engine.dispose()
    assert sorted(found) == sorted(row.id for row in world.columns(ids))
    assert len(set(found)) == 5_000


async def test_a_batch_may_have_more_rows_than_a_statement_names(world, monkeypatch):
    monkeypatch.setattr("broker.sql.outbox.CHANGED_AT_ONCE", 10)
    world.outbox._batch_messages_max = 80
    world.write("t", ["x"] * 75)
    with world.engine.begin() as connection:
        name = f"{world.client.settings.namespace}/t"
        assert world.outbox.assign(connection, name, 1)
        batch = world.outbox.assigned(connection, name)
    assert len(batch.messages) == 75


def test_an_insert_of_no_message_is_refused():
    with pytest.raises(BadRequest, match="messages"):
        Outbox().insert("a/t", [])


async def test_a_refused_topic_backs_off_alone(world, monkeypatch):
    """The other topics go on at once, however often the refused one has failed, and keep their order."""
    monkeypatch.setattr("broker.sql.relay.PAUSE_MIN_S", 3600.0)
    monkeypatch.setattr("broker.sql.relay.PAUSE_MAX_S", 3600.0)
    stop = asyncio.Event()
    world.write("a/missing", ["x", "y"])
    relaying = asyncio.create_task(
        world.outbox.relay(world.client, world.engine, stop=stop, idle_s=0.01)
    )
    sent = []
    async with asyncio.timeout(60):
        for number in range(5):
            world.write("t", str(number))
            sent.append(b"%d" % number)
            while await world.seen() != sent:
                await world.client.poll("t", wait_s=0.05)
        stop.set()
        await relaying
    assert await world.outbox.waiting(world.engine) == {"a/missing": 2}


async def test_a_slow_topic_delays_no_other(world, monkeypatch):
    stop, going, publish = asyncio.Event(), asyncio.Event(), world.client.publish
    for topic in ("a", "b"):
        await world.client.create_topic(topic)
        world.write(topic, "x")

    async def slow(topic, messages, **options):
        if topic.endswith("/a"):
            await going.wait()
        return await publish(topic, messages, **options)

    monkeypatch.setattr(world.client, "publish", slow)
    relaying = asyncio.create_task(
        world.outbox.relay(world.client, world.engine, stop=stop, idle_s=0.01)
    )
    async with asyncio.timeout(60):
        while not await world.seen("b"):
            await world.client.poll("b", wait_s=0.05)
        assert await world.seen("a") == []
        going.set()
        while not await world.seen("a"):
            await world.client.poll("a", wait_s=0.05)
        stop.set()
        await relaying


async def test_a_cancelled_relay_leaves_no_turn_behind(world, monkeypatch):
    begun, before = asyncio.Event(), asyncio.all_tasks()

    async def forever(*_, **__):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(world.client, "publish", forever)
    world.write("t", "x")
    relaying = asyncio.create_task(world.outbox.relay(world.client, world.engine))
    await begun.wait()
    relaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relaying
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


async def test_a_topic_in_trouble_does_not_hold_up_others(world):
    world.write("a/missing", "x")
    world.write("t", "y")
    with pytest.raises(TopicNotFound) as raised:
        await world.relay()
    assert raised.value.__notes__ == ["In the outbox, of topic a/missing."]
    assert await world.seen() == [b"y"]
    assert await world.outbox.waiting(world.engine) == {"a/missing": 1}


async def test_a_refused_topic_leaves_no_cycle(world):
    world.write("a/missing", bytes(10_000))
    for looked in (nullcontext, no_cycle_through_a_traceback):
        with looked(), pytest.raises(TopicNotFound):
            await world.relay()


async def test_a_busy_topic_holds_up_neither_others_nor_the_stop(world, monkeypatch):
    """Another program writes to the first topic whenever a batch was published."""
    stop, publish, topics = asyncio.Event(), world.client.publish, []
    for topic in ("a", "b"):
        await world.client.create_topic(topic)
        world.write(topic, ["0", "1", "2", "3"])

    async def busy(topic, messages, **options):
        topics.append(topic[-1])
        assert len(topics) < 100, "the relay does not notice the stop"
        await asyncio.to_thread(world.write, "a", ["more", "messages", "again"])
        if topics.count("b") == 2:
            stop.set()
        return await publish(topic, messages, **options)

    monkeypatch.setattr(world.client, "publish", busy)
    await world.outbox.relay(world.client, world.engine, stop=stop)
    assert await world.seen("b") == [b"0", b"1", b"2", b"3"]
    assert await world.outbox.waiting(world.engine) != {}


async def test_a_relay_runs_until_it_is_stopped(world, caplog):
    stop = asyncio.Event()
    relaying = asyncio.create_task(
        world.outbox.relay(world.client, world.engine, stop=stop, idle_s=0.01)
    )
    for wanted in ([b"a"], [b"a", b"b"]):
        world.write("t", wanted[-1].decode())
        async with asyncio.timeout(60):
            while [m.payload for m in await world.client.poll("t", wait_s=10)] != wanted:
                pass
    world.write("a/missing", "x")
    async with asyncio.timeout(10):
        while "the relay retries in" not in caplog.text:
            await world.client.topic("t")
    stop.set()
    await relaying
    assert await world.seen() == [b"a", b"b"]


def test_bad_messages_are_refused_where_they_are_written(world):
    with pytest.raises(BadName):
        world.outbox.insert("a/b/c", "x")
    with pytest.raises(TypeError):
        world.outbox.insert("t", {"a": 1})
    with pytest.raises(TypeError):
        world.outbox.insert("t", "x", key=7)
    with pytest.raises(TypeError, match="ttl_s"):
        world.outbox.insert("t", "x", ttl_s=1.5)
    with pytest.raises(BadRequest, match="ttl_s"):
        world.outbox.insert("t", "x", ttl_s=0)
    with pytest.raises(BadRequest, match="ttl_s"):
        world.outbox.insert("t", NewMessage("x", ttl_s=-1))


async def test_a_row_that_the_client_refuses_holds_up_only_its_topic(world, caplog):
    """Another program stored such a lifetime. The first topic in trouble is raised, and the other one is logged."""
    rows, stop = world.outbox.rows, asyncio.Event()
    for topic in ("a", "b", "t"):
        world.write(topic, "x", ttl_s=60)
    with world.engine.begin() as connection:
        connection.execute(update(rows).where(rows.c.topic.not_like("%/t")).values(ttl_s=-1))
    with pytest.raises(BadRequest, match="ttl_s") as raised:
        await world.relay()
    assert raised.value.__notes__[0].endswith("/a.")
    assert "/b stay in the outbox" in caplog.text
    assert await world.seen() == [b"x"]
    world.write("t", "y")
    relaying = asyncio.create_task(world.outbox.relay(world.client, world.engine, stop=stop))
    async with asyncio.timeout(60):
        while len(await world.client.poll("t", wait_s=10)) < 2:
            assert not relaying.done(), relaying
    stop.set()
    await relaying


async def test_a_program_for_asyncio_writes_and_relays(world, database):
    pytest.importorskip("greenlet", reason="SQLAlchemy needs it for asyncio")
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415 - It imports greenlet.

    engine = database.async_engine()
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(world.outbox.insert("t", ["a", "b"]))
    assert await world.outbox.relay_all(world.client, engine) == 2
    assert await world.seen() == [b"a", b"b"]
    await engine.dispose()


@pytest.mark.parametrize(
    ("dialect", "wanted"),
    [(mysql.dialect(), "LONGBLOB"), (postgresql.dialect(), "BYTEA"), (sqlite.dialect(), "BLOB")],
)
def test_the_columns_of_messages_hold_large_ones(dialect, wanted):
    """In MySQL a column of type BLOB ends at 65,535 bytes."""
    outbox, record = Outbox(), SqlRecord()
    for column in (outbox.rows.c.payload, outbox.rows.c.attributes, record.messages.c.body):
        ddl = str(CreateTable(column.table).compile(dialect=dialect))
        assert f"{column.name} {wanted} NOT NULL" in ddl

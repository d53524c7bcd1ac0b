"""Each rule of SQL transactions and of the outbox prevents one failure, shown here without the rule.

They are no mutants of the test kit, which has to run where SQLAlchemy is not installed.
"""

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session

from broker.client import Client, TopicId
from broker.client.publish_request import parts_of
from broker.client.transaction_aware import Topical
from broker.client.transaction_commit import Commit
from broker.sql import Outbox, SqlRecord
from broker.sql.record import SqlRecord as Record
from broker.sql.recovery import Recovery
from broker.sql.relay import CounterWentBack
from tests.kit.served import RESETTING, ServedNode

METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("number", Integer, primary_key=True))
RECORD = SqlRecord(METADATA)
OUTBOX = Outbox(METADATA)
TOPIC = "guards/t"


class Killed(SystemExit):
    """Ends a program here."""


@pytest.fixture(scope="module")
def node():
    with ServedNode(RESETTING) as node:
        yield node


@pytest.fixture
async def world(node, tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/orders.db")
    METADATA.create_all(engine)
    async with Client(node.url) as client:
        await client.create_topic(TOPIC)
        yield client, engine
        await client.delete_topic(TOPIC)
    engine.dispose()


async def seen(client):
    for found in (await client.transactions.list())["in_progress"]:
        await client.transactions.invalidate(int(found["id"]))
    snapshot = await client.transactions.snapshot()
    return len(await client.poll(TOPIC, snapshot=snapshot))


async def decided(client, engine, monkeypatch):
    """Leave the state of a program that was killed after its decision; its transaction is in progress."""

    async def die(_):
        raise Killed

    with monkeypatch.context() as patch, Session(engine) as session:
        patch.setattr(Commit, "run", die)
        with suppress(Killed):
            async with client.transaction(aware=[RECORD.participant(session)]) as tx:
                session.execute(insert(ORDERS), [{"number": 1}])
                await tx.publish(TOPIC, "x")
    return tx


@pytest.mark.parametrize(("guarded", "both"), [(True, (1, 1)), (False, (1, 0))])
async def test_the_record_is_written_with_the_changes(world, monkeypatch, guarded, both):
    client, engine = world
    if not guarded:
        monkeypatch.setattr(Record, "write", lambda *_: None)
    await decided(client, engine, monkeypatch)
    await RECORD.recover(client, engine)
    with engine.connect() as connection:
        orders = len(connection.execute(select(ORDERS)).all())
    assert (orders, await seen(client)) == both


@pytest.mark.parametrize(("guarded", "count"), [(True, 1), (False, 0)])
async def test_the_record_has_the_messages(world, monkeypatch, guarded, count):
    client, engine = world
    tx = await decided(client, engine, monkeypatch)
    await client.transactions.invalidate(tx.id)
    if not guarded:
        monkeypatch.setattr(Record, "published", lambda *_: [])
    await RECORD.recover(client, engine)
    assert await seen(client) == count


class Overtaking:
    """The broker's service. Its first start lets another recovery do its work before it begins a transaction."""

    def __init__(self, client, engine):
        self.other = RECORD.recover(client, engine)
        self.service = client.transactions

    def __getattr__(self, name):
        return getattr(self.service, name)

    async def start(self, **options):
        assert await self.other == (0, 1)
        return await self.service.start(**options)


@pytest.mark.parametrize(("guarded", "count"), [(True, 1), (False, 2)])
async def test_of_two_recoveries_one_publishes_the_messages_again(
    world, monkeypatch, guarded, count
):
    client, engine = world
    tx = await decided(client, engine, monkeypatch)
    await client.transactions.invalidate(tx.id)
    change = Record.change
    if not guarded:
        monkeypatch.setattr(Record, "change", lambda *given: change(*given) or True)
    await RECORD.recover(client, engine, service=Overtaking(client, engine))
    assert await seen(client) == count


@pytest.mark.parametrize(("guarded", "count"), [(True, 1), (False, 0)])
async def test_a_pruned_invalid_transaction_is_not_taken_for_committed(
    world, monkeypatch, guarded, count
):
    """The program was down until the invalid transaction was pruned."""
    client, engine = world
    for _ in range(3):
        await client.publish(TOPIC, "before")
    before = await seen(client)
    begun = await client.transactions.start()
    published = await client.publish(TOPIC, "x", pointer=begun.transaction_id)
    messages = [Topical(TopicId("guards", "t"), [parts_of("x")])]
    with engine.begin() as connection:
        RECORD.write(connection, begun, messages)
    await client.transactions.invalidate(begun.transaction_id)
    await client.rollback(TOPIC, published)
    await client.transactions.truncate(ids=[begun.transaction_id])
    if not guarded:

        async def look_not(*_: Any) -> bool:
            return False

        monkeypatch.setattr(Recovery, "_was_rolled_back", look_not)
    await RECORD.recover(client, engine)
    assert await seen(client) - before == count


@pytest.mark.parametrize(("guarded", "count"), [(True, 1), (False, 2)])
async def test_a_batch_is_published_under_its_number(world, monkeypatch, guarded, count):
    client, engine = world
    with engine.begin() as connection:
        connection.execute(OUTBOX.insert(TOPIC, "x"))
    publish = Client.publish

    async def without(self, topic, messages, *, producer):
        return await publish(self, topic, messages)

    if not guarded:
        monkeypatch.setattr(Client, "publish", without)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "forget", die)
        with suppress(Killed):
            await OUTBOX.relay_all(client, engine)
    await OUTBOX.relay_all(client, engine)
    assert len(await client.poll(TOPIC)) == count


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_counter_that_went_back_is_noticed(world, monkeypatch, guarded):
    client, engine = world
    for _ in range(2):
        with engine.begin() as connection:
            connection.execute(OUTBOX.insert(TOPIC, "x"))
        await OUTBOX.relay_all(client, engine)
    forget = Outbox.forget
    if not guarded:
        monkeypatch.setattr(Outbox, "forget", lambda *given, **_: forget(*given, known=True))
    with engine.begin() as connection:
        connection.execute(OUTBOX.topics.update().values(number=0))
        connection.execute(OUTBOX.insert(TOPIC, "new"))
    if guarded:
        with pytest.raises(CounterWentBack):
            await OUTBOX.relay_all(client, engine)
    else:
        await OUTBOX.relay_all(client, engine)
    waiting = await OUTBOX.waiting(engine)
    assert (len(await client.poll(TOPIC)), waiting) == (2, {TOPIC: 1} if guarded else {})

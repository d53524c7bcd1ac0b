"""Recovery of a record whose transaction the service has forgotten."""

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from broker.client import Client, OutcomeUnknown, TopicId
from broker.client.publish_request import parts_of
from broker.client.transaction_aware import Topical
from broker.clock import SystemClock
from broker.sql import SqlRecord
from tests.kit.served import RESETTING, ServedNode

TOPIC = TopicId("recovery", "t")
RECORD = SqlRecord()
LIFE_S = 90_000
"""The longest life of a transaction."""


class AheadClock(SystemClock):
    ahead_s = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_s * 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("published_s", "checkpoints"), [(0, 0), (LIFE_S - 60, 0), (0, 1), (0, 2), (0, 3)]
)
async def test_messages_of_a_forgotten_invalid_transaction_are_found_and_published_again(
    tmp_path, published_s, checkpoints
):
    """The transaction published them at its begin or at the end of the longest life, under any of its pointers."""
    clock, engine = AheadClock(), create_engine(f"sqlite:///{tmp_path}/orders.db")
    RECORD.create(engine)
    with ServedNode(RESETTING, clock=clock) as node:
        async with Client(node.url) as client:
            await client.create_topic(TOPIC)
            begun = await client.transactions.start(long=True, timeout_s=LIFE_S)
            pointers, pointer = [begun.transaction_id], begun.transaction_id
            for number in range(checkpoints):
                begun = await client.transactions.checkpoint(begun.transaction_id)
                pointers.append(begun.write_pointer)
                pointer = pointers[1] if number else pointer
            clock.ahead_s = published_s
            await client.publish(TOPIC, "of another program")
            published = await client.publish(TOPIC, "x", pointer=pointer)
            with engine.begin() as connection:
                RECORD.write(connection, begun, [Topical(TOPIC, [parts_of("x")])])
            await client.transactions.invalidate(begun.transaction_id)
            await client.rollback(TOPIC, published)
            await client.transactions.truncate(ids=pointers)
            later = await client.transactions.start()
            await client.transactions.commit(later.transaction_id)

            assert await RECORD.recover(client, engine) == (0, 1)
            snapshot = await client.transactions.snapshot()
            seen = [message.payload for message in await client.poll(TOPIC, snapshot=snapshot)]
            assert seen == [b"of another program", b"x"]
    engine.dispose()


@pytest.mark.slow
async def test_a_record_in_trouble_does_not_hold_up_others_and_a_deleted_topic_none(
    tmp_path, monkeypatch
):
    """The first record has messages to a deleted topic. The database fails at the second one, and not at the third."""
    engine = create_engine(f"sqlite:///{tmp_path}/orders.db")
    RECORD.create(engine)
    gone, begun = TopicId("recovery", "gone"), []
    with ServedNode(RESETTING) as node:
        async with Client(node.url) as client:
            await client.create_topic(TOPIC)
            for number in range(3):
                begun.append(await client.transactions.start())
                with engine.begin() as connection:
                    messages = [Topical(topic, [parts_of(str(number))]) for topic in (gone, TOPIC)]
                    RECORD.write(connection, begun[-1], messages[number > 0 :])
            for each in begun:
                await client.transactions.invalidate(each.transaction_id)
            get = RECORD.get

            def fail(connection, number):
                if number == begun[1].transaction_id:
                    raise OperationalError("SELECT", {}, Exception("locked"))
                return get(connection, number)

            with monkeypatch.context() as patch:
                patch.setattr(RECORD, "get", fail)
                with pytest.raises(OutcomeUnknown, match=r"1 records stay .* locked") as raised:
                    await RECORD.recover(client, engine)
            assert isinstance(raised.value.__cause__, OperationalError)
            assert await RECORD.recover(client, engine) == (0, 1)
            assert [message.payload for message in await client.poll(TOPIC)] == [b"0", b"2", b"1"]
    engine.dispose()

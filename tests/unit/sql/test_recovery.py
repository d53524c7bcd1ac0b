"""Recovery of a record whose transaction the service has forgotten."""

import pytest
from sqlalchemy import create_engine

from broker.client import Client, TopicId
from broker.client.publish_request import parts_of
from broker.client.transaction_aware import Topical
from broker.clock import SystemClock
from broker.sql import SqlRecord
from tests.kit.served import ServedNode

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
    with ServedNode(clock=clock) as node:
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

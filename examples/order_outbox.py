"""An outbox: an order and its notification are one SQL transaction. A relay that dies publishes nothing twice.

BROKER_URL=http://127.0.0.1:8080 python examples/order_outbox.py

It needs the extra ``sql``. This program runs the relay itself; in production a separate process runs ``outbox.relay``.
"""

import asyncio
import os
import tempfile
from pathlib import Path

from sqlalchemy import Column, MetaData, String, Table, create_engine, insert
from sqlalchemy.orm import Session

from broker.client import Client
from broker.sql import Outbox

TOPIC = "examples/orders"
metadata = MetaData()
orders = Table("orders", metadata, Column("name", String(40), primary_key=True))
outbox = Outbox(metadata)


class Died(Exception):
    """Ends the relay as a kill would."""


async def main() -> None:
    """Take orders while no relay runs, let one die in the middle, and start another one."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder, 'shop.db')}")
        metadata.create_all(engine)

        for name in ("order 1", "order 2", "order 3"):
            with Session(engine) as session, session.begin():
                session.execute(insert(orders), [{"name": name}])
                session.execute(outbox.insert(TOPIC, f"{name} was placed", key=name))
        with Session(engine) as session:  # The customer changes their mind.
            session.execute(insert(orders), [{"name": "order 4"}])
            session.execute(outbox.insert(TOPIC, "order 4 was placed", key="order 4"))
            session.rollback()
        print(f"in the outbox: {await outbox.waiting(engine)}")

        async with Client(os.environ.get("BROKER_URL")) as client:
            await client.create_topic(TOPIC, if_exists="keep")
            # Die after the publish, and before the delete.
            forget, outbox.forget = outbox.forget, die
            try:
                await outbox.relay_all(client, engine)
            except Died:
                print(f"the relay died: {await outbox.waiting(engine)}")
            outbox.forget = forget
            await outbox.relay_all(client, engine)

            for message in await client.poll(TOPIC):
                print(message.payload.decode())
            print(f"left: {await outbox.waiting(engine)}")
            await client.delete_topic(TOPIC)
        engine.dispose()


def die(*_: object, **__: object) -> None:
    """End the relay here."""
    raise Died


asyncio.run(main())

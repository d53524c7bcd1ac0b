"""Your own triggers: an application publishes events, and a handler reacts to them, also after restarts.

The broker keeps the handler's place under the name of its subscriber. If the handler's process dies before its place
is kept, the last events come again. So it must be safe to repeat a reaction. (``broker tail --exec CMD --cursor FILE``
does the same for commands, and keeps the place in a file.)

    BROKER_URL=http://127.0.0.1:8080 python examples/own_triggers.py
"""

import os

from broker.client import Message, SyncClient

TOPIC = "examples/triggers"
NAME = "reactions"


def handle(client: SyncClient, dies_at: bytes | None = None) -> None:
    """React to every event after the last finished one, until there are no more."""

    def react(event: Message) -> None:
        print(f"react to {event.payload.decode()}")
        if event.payload == dies_at:
            raise SystemExit  # It ends the program; any other error would be a failed try.
        if event.payload == b"order 3":
            subscriber.stop()

    subscriber = client.subscriber(TOPIC, NAME, react)
    subscriber.run()


with SyncClient(os.environ.get("BROKER_URL")) as client:
    client.create_topic(TOPIC, if_exists="keep")
    client.publish(TOPIC, ["order 1", "order 2", "order 3"])

    try:
        handle(client, dies_at=b"order 2")
    except SystemExit:
        print("the handler died, and starts again")
    handle(client)
    print(f"events behind: {client.cursors.get(TOPIC, NAME).lag.messages}")

    client.delete_topic(TOPIC)

"""Triggers of one's own: an application publishes events, a handler reacts, and survives restarts.

The broker keeps the handler's place, by the name of its subscriber. If the handler's process dies in between, the
last events come again: a reaction must bear being repeated. (``broker tail --exec CMD --cursor FILE`` does the same
for commands, with the place in a file.)

    BROKER_URL=http://127.0.0.1:8080 python examples/own_triggers.py
"""

import os

from broker.client import Message, SyncClient

TOPIC = "examples/triggers"
NAME = "reactions"


class Crash(BaseException):
    """What happens to programs: no error of the handler, which would be tried again."""


def handle(client: SyncClient, dies_at: bytes | None = None) -> None:
    """React to every event after the last finished one, until there are no more."""

    def react(event: Message) -> None:
        print(f"react to {event.payload.decode()}")
        if event.payload == dies_at:
            raise Crash
        if event.payload == b"order 3":
            subscriber.stop()

    subscriber = client.subscriber(TOPIC, NAME, react)
    subscriber.run()


with SyncClient(os.environ.get("BROKER_URL")) as client:
    client.create_topic(TOPIC, if_exists="keep")
    client.publish(TOPIC, ["order 1", "order 2", "order 3"])

    try:
        handle(client, dies_at=b"order 2")
    except Crash:
        print("the handler died, and starts again")
    handle(client)
    print(f"events behind: {client.cursors.get(TOPIC, NAME).lag.messages}")

    client.delete_topic(TOPIC)

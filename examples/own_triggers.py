"""Triggers of one's own: an application publishes events, a handler reacts, and survives restarts.

The handler keeps the last event that it finished in a file. If it dies in between, the event comes again:
a reaction must bear being repeated. (``broker tail --exec CMD --cursor FILE`` does the same for commands.)

    BROKER_URL=http://127.0.0.1:8080 python examples/own_triggers.py
"""

import os
import tempfile
from pathlib import Path

from broker.client import SyncClient, TailOptions

TOPIC = "examples/triggers"


class Crash(Exception):
    """What happens to programs."""


def handle(client: SyncClient, cursor: Path, dies_at: bytes | None = None) -> None:
    """React to every event after the last finished one, until there are no more."""
    last = cursor.read_text() if cursor.exists() else None
    options = TailOptions(follow=False)
    for event in client.tail(TOPIC, last, inclusive=False, options=options):
        print(f"react to {event.payload.decode()}")
        if event.payload == dies_at:
            raise Crash
        cursor.write_text(event.id.hex())


with SyncClient(os.environ.get("BROKER_URL")) as client, tempfile.TemporaryDirectory() as folder:
    client.create_topic(TOPIC, if_exists="keep")
    client.publish(TOPIC, ["order 1", "order 2", "order 3"])

    cursor = Path(folder) / "cursor"
    try:
        handle(client, cursor, dies_at=b"order 2")
    except Crash:
        print("the handler died, and starts again")
    handle(client, cursor)

    client.delete_topic(TOPIC)

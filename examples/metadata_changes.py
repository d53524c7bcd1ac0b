"""Metadata changes: one consumer applies each change once and in order, also after a restart.

BROKER_URL=http://127.0.0.1:8080 python examples/metadata_changes.py
"""

import json
import os

from broker.client import SyncClient

TOPIC = "examples/metadata"


class Store:
    """The consumer's state: the metadata, and in the same place the id of the last change that it applied."""

    def __init__(self) -> None:
        self.tags: dict[str, set[str]] = {}
        self.last_id: bytes | None = None

    def apply(self, identifier: bytes, change: dict[str, str]) -> None:
        """Apply a change, and remember that it was applied."""
        tags = self.tags.setdefault(change["entity"], set())
        if change["do"] == "add":
            tags.add(change["tag"])
        else:
            tags.discard(change["tag"])
        self.last_id = identifier


def catch_up(client: SyncClient, store: Store) -> int:
    """Apply all changes after the last one that the store knows; return their number."""
    messages = client.poll(TOPIC, store.last_id, inclusive=False)
    for message in messages:
        store.apply(message.id, json.loads(message.payload))
    return len(messages)


def change(do: str, entity: str, tag: str) -> str:
    """Return the payload of a change."""
    return json.dumps({"do": do, "entity": entity, "tag": tag})


with SyncClient(os.environ.get("BROKER_URL")) as client:
    client.create_topic(TOPIC, if_exists="keep")
    store = Store()

    # The broker stores all messages of one call or none, next to each other.
    client.publish(TOPIC, [change("add", "table-1", "pii"), change("add", "table-1", "daily")])
    print(f"applied {catch_up(client, store)} changes: {sorted(store.tags['table-1'])}")

    client.publish(TOPIC, change("remove", "table-1", "daily"))
    print(f"applied {catch_up(client, store)} more: {sorted(store.tags['table-1'])}")

    client.delete_topic(TOPIC)

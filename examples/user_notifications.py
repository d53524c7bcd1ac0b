"""Notifications to users: users see them until they expire.

BROKER_URL=http://127.0.0.1:8080 python examples/user_notifications.py
"""

import json
import os

from broker.client import SyncClient

TOPIC = "examples/notifications"


def unread(client: SyncClient, user: str, last_seen: bytes | None) -> list[str]:
    """Return a user's notifications after the last message that the user saw."""
    messages = client.poll(TOPIC, last_seen, inclusive=False, limit=100)
    notices = [json.loads(message.payload) for message in messages]
    return [notice["text"] for notice in notices if notice["user"] == user]


with SyncClient(os.environ.get("BROKER_URL")) as client:
    client.create_topic(TOPIC, ttl_s=7 * 86400, if_exists="keep")

    client.publish(TOPIC, json.dumps({"user": "alice", "text": "Your export is ready."}))
    client.publish(TOPIC, json.dumps({"user": "bob", "text": "Your job failed."}))
    # This notification is of no use tomorrow. It lives for an hour, though the topic's ttl is a week.
    client.publish(TOPIC, json.dumps({"user": "alice", "text": "Maintenance at noon."}), ttl_s=3600)

    for text in unread(client, "alice", None):
        print(f"to alice: {text}")
    for row in client.browse(TOPIC).messages:
        print(f"kept until {row.expires_at}: {row.size} bytes")
    newest = client.browse(TOPIC, descending=True, limit=1).messages[0]
    print(f"after the newest: {unread(client, 'alice', newest.id)}")

    client.delete_topic(TOPIC)

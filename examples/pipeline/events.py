"""Publish audit events, like those of several programs, to the topic audit/events until this program is stopped.

BROKER_URL=http://127.0.0.1:8080 python examples/pipeline/events.py
"""

import json
import os
import random
import threading
import uuid

from broker.client import SyncClient

TOPIC = "audit/events"
EVENTS_A_TICK = 20
TICK_S = 0.1
PROGRAMS = {"importer": 40, "cleaner": 25, "report": 20, "console": 10, "backup": 5}
ACTIONS = {
    "importer": ["read", "write", "write"],
    "cleaner": ["read", "write", "delete"],
    "report": ["read"],
    "console": ["login", "login", "login_failed", "grant", "revoke"],
    "backup": ["read", "export"],
}
USERS = ["anna", "ben", "carl", "dora", "emil"]
ENTITIES = ["orders", "customers", "payments", "shipments", "prices"]


def event(draw: random.Random) -> str:
    """Return one event: a program, its action, the user and the entity."""
    (program,) = draw.choices(list(PROGRAMS), PROGRAMS.values())
    return json.dumps(
        {
            "program": program,
            "run": str(uuid.UUID(int=draw.getrandbits(128), version=4)),
            "user": draw.choice(USERS),
            "action": draw.choice(ACTIONS[program]),
            "entity": f"dataset:{draw.choice(ENTITIES)}",
            "duration_ms": round(draw.lognormvariate(3, 1), 1),
            "ok": draw.random() < 0.98,
        }
    )


def main() -> None:
    """Publish events at a fixed rate, without end."""
    draw = random.Random(7)  # noqa: S311 - Every run is the same.
    pause = threading.Event()
    with SyncClient(os.environ.get("BROKER_URL")) as client:
        client.create_topic(TOPIC, if_exists="keep")
        while not pause.wait(TICK_S):
            for _ in range(EVENTS_A_TICK):
                client.publish_later(TOPIC, event(draw))


if __name__ == "__main__":
    main()

"""Program states: the topic has each state once, even if a program repeats its report.

BROKER_URL=http://127.0.0.1:8080 python examples/program_states.py
"""

import json
import os

from broker.client import SyncClient

TOPIC = "examples/states"


def report(client: SyncClient, run: str, state: str) -> None:
    """Report a state. The idempotency key makes a repetition safe, also after an unknown outcome."""
    client.publish(
        TOPIC, json.dumps({"run": run, "state": state}), idempotency_key=f"{run}-{state}"
    )


with SyncClient(os.environ.get("BROKER_URL")) as client:
    client.create_topic(TOPIC, {"transactions": "refused"}, if_exists="keep")

    report(client, "run-1", "starting")
    report(client, "run-2", "starting")
    report(client, "run-1", "running")
    report(client, "run-1", "running")  # The launcher was restarted and reports again.
    report(client, "run-1", "completed")

    messages = client.poll(TOPIC)
    states = {}
    for message in messages:
        event = json.loads(message.payload)
        states[event["run"]] = event["state"]
    print(f"{len(messages)} reports: {states}")

    client.delete_topic(TOPIC)

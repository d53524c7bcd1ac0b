"""Dataset accesses for lineage: programs report their reads and writes, and do not wait for the broker.

BROKER_URL=http://127.0.0.1:8080 python examples/lineage.py
"""

import json
import os
from collections import defaultdict

from broker.client import SyncClient, TailOptions

TOPIC = "examples/lineage"
ACCESSES = [
    {"program": "importer", "access": "write", "dataset": "raw"},
    {"program": "cleaner", "access": "read", "dataset": "raw"},
    {"program": "cleaner", "access": "write", "dataset": "clean"},
    {"program": "report", "access": "read", "dataset": "clean"},
]

with SyncClient(os.environ.get("BROKER_URL")) as client:
    client.create_topic(TOPIC, if_exists="keep")

    # The program goes on at once; a bounded queue holds what the broker has not acknowledged yet.
    for access in ACCESSES:
        client.publish_later(TOPIC, json.dumps(access))
    client.flush()

    readers: dict[str, list[str]] = defaultdict(list)
    writers: dict[str, list[str]] = defaultdict(list)
    for message in client.tail(TOPIC, options=TailOptions(follow=False)):
        access = json.loads(message.payload)
        table = readers if access["access"] == "read" else writers
        table[access["dataset"]].append(access["program"])
    for dataset, programs in writers.items():
        print(f"{', '.join(programs)} -> {dataset} -> {', '.join(readers[dataset])}")

    client.delete_topic(TOPIC)

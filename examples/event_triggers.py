"""Triggers on events: a job starts when new data has arrived, and only if the data's transaction was committed.

BROKER_URL=http://127.0.0.1:8080 python examples/event_triggers.py
"""

import asyncio
import os
import time

from broker.client import Client, Snapshot

TOPIC = "examples/events"


def seen_by(pointer: int, *, in_progress: list[int]) -> Snapshot:
    """Return the snapshot that a transaction service would give to a consumer that begins now."""
    return Snapshot(transaction_id=pointer, read_pointer=pointer, in_progress=in_progress)


async def main() -> None:
    """Publish events in transactions, and read them as consumers with different snapshots."""
    async with Client(os.environ.get("BROKER_URL")) as client:
        await client.create_topic(TOPIC, if_exists="keep")
        pointer = time.time_ns()  # Write pointers are nanoseconds; a service hands them out.

        # A long job stores an event for each partition. One reference then makes all of them visible.
        loading = client.transaction_publisher(pointer)
        await loading.store(TOPIC, "partition 2026-01-30")
        await loading.store(TOPIC, "partition 2026-01-31")
        await loading.publish_stored(TOPIC)

        now = pointer + 1
        waiting = await client.poll(TOPIC, snapshot=seen_by(now, in_progress=[pointer]))
        print(f"while the job is at work: {len(waiting)} events")

        committed = await client.poll(TOPIC, snapshot=seen_by(now, in_progress=[]))
        for message in committed:
            print(f"start the report for {message.payload.decode()}")

        failing = client.transaction_publisher(pointer + 2)
        await failing.publish(TOPIC, "partition 2026-02-01")
        undone = await failing.rollback()
        after = await client.poll(TOPIC, snapshot=seen_by(pointer + 3, in_progress=[]))
        print(f"a failed job: undone {undone}, {len(after) - len(committed)} events more")

        await client.delete_topic(TOPIC)


asyncio.run(main())

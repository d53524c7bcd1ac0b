"""Count events by user in windows of 10 seconds, by the time in the event. Late events go to a topic."""

from typing import Any

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json, start_of, time_of

EVENTS = "examples/events"
COUNTS = "examples/event-counts"
LATE = "examples/events-late"


def job() -> Job:
    """Return the job. It reads one event in each micro-batch, so that the sample's last event is late."""
    builder = StreamBuilder("window-count", lateness="2s")
    events = builder.source(EVENTS, Json(), maxOffsetsPerTrigger="1")
    users = events.select_timestamp(time_of).key_by(lambda event: event["user"])
    counts = users.window(tumbling("10s"), late=LATE).count()
    counts.to_stream(_count).sink(COUNTS, Json())
    return builder.build()


def _count(user: str, count: int, window: Any) -> dict[str, Any]:
    return {"user": user, "count": count, "start": start_of(window)}


def publish(client: SyncClient) -> None:
    """Publish the sample. At 11 s the first window stays open for one more second; at 60 s it is over.

    The next micro-batch closes a window.
    """
    events = [("a", 1), ("b", 4), ("a", 11), ("a", 9), ("c", 60), ("c", 61), ("a", 8)]
    for user, seconds in events:
        publish_json(client, EVENTS, {"user": user, "time": after_noon(seconds)})

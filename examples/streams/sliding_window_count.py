"""Count clicks by user in windows of 5 seconds, one every 2 seconds."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, sliding
from examples.streams.samples import after_noon, publish_json

CLICKS = "examples/clicks"
COUNTS = "examples/click-counts"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("sliding-window-count")
    clicks = builder.source(CLICKS, Json("time TIMESTAMP, user STRING")).select_timestamp("time")
    counts = clicks.key_by("user").window(sliding("5s", "2s")).count()
    counts.to_stream("struct(key AS user, value AS count, window.start AS start)").sink(
        COUNTS, Json()
    )
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample; its last click closes the windows before it."""
    clicks = [("a", 5), ("a", 6), ("b", 9), ("c", 60)]
    publish_json(client, CLICKS, *({"user": user, "time": after_noon(at)} for user, at in clicks))

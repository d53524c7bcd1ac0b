"""Count page views by user and session: a session ends after 5 seconds without a view."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, session
from examples.streams.samples import after_noon, publish_json

VIEWS = "examples/views"
COUNTS = "examples/session-counts"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("session-window-count")
    views = builder.source(VIEWS, Json("time TIMESTAMP, user STRING")).select_timestamp("time")
    counts = views.key_by("user").window(session("5s")).count()
    counts.to_stream(
        "struct(key AS user, value AS count, window.start AS start, window.end AS end)"
    ).sink(COUNTS, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample: the sessions of a and b overlap, and a comes back."""
    views = [("a", 1), ("b", 2), ("a", 5), ("b", 3), ("a", 20), ("c", 60)]
    publish_json(client, VIEWS, *({"user": user, "time": after_noon(at)} for user, at in views))

"""Count words in windows of 15 seconds. The functions are SQL, which Spark runs by itself."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json

LINES = "examples/timed-lines"
COUNTS = "examples/window-word-counts"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("window-word-count")
    lines = builder.source(LINES, Json("time TIMESTAMP, line STRING")).select_timestamp("time")
    words = lines.flat_map("split(line, ' ')").key_by("value")
    counts = words.window(tumbling("15s")).count()
    counts.to_stream("struct(key AS word, value AS count, window.start AS start)").sink(
        COUNTS, Json()
    )
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample; its last line closes the windows before it."""
    lines = [(1, "to be or"), (14, "not to be"), (15, "be"), (60, "end")]
    publish_json(client, LINES, *({"time": after_noon(at), "line": line} for at, line in lines))

"""Words are counted: whenever a word comes, its count so far is published."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, Text

LINES = "examples/lines"
COUNTS = "examples/word-counts"


def job(offsets: str = "earliest", *, prints: bool = False) -> Job:
    """Return the job. It begins with the topic's first message, or only with what comes (``latest``)."""
    builder = StreamBuilder("word-count")
    words = builder.source(LINES, Text(), startingOffsets=offsets).flat_map(str.split)
    counts = words.key_by(str.lower).count().to_stream()
    if prints:
        counts.print()
    else:
        counts.sink(COUNTS, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample."""
    client.publish(LINES, ["To be or not to be", "that is the question"])

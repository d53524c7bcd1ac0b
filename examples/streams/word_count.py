"""Count words, and publish a word's count so far each time the word comes."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, Text

LINES = "examples/lines"
COUNTS = "examples/word-counts"


def job(offsets: str = "earliest", *, prints: bool = False) -> Job:
    """Return the job. It begins with the topic's first message, or with the next one (``latest``)."""
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

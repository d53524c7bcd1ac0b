"""Stream jobs over topics: RocketMQ Streams' stream-building interface (RIP-58), run by Spark.

A program writes a job with StreamBuilder, and starts it with a Spark session. Spark does state, checkpoints,
exactly-once and scaling. ``broker.spark`` has the sources and sinks. This package needs the extra ``streams``.
"""

from broker.errors import importing

with importing("streams"):
    from broker.streams.accumulators import Accumulator
    from broker.streams.builder import (
        GroupedStream,
        Stream,
        StreamBuilder,
        WindowedStream,
    )
    from broker.streams.changes import JobChanged
    from broker.streams.job import Job
    from broker.streams.joins import JoinedStream
    from broker.streams.operators import Processor, State
    from broker.streams.serdes import Bytes, Json, Serde, Text
    from broker.streams.windows import Window, session, sliding, tumbling

__all__ = [
    "Accumulator",
    "Bytes",
    "GroupedStream",
    "Job",
    "JobChanged",
    "JoinedStream",
    "Json",
    "Processor",
    "Serde",
    "State",
    "Stream",
    "StreamBuilder",
    "Text",
    "Window",
    "WindowedStream",
    "session",
    "sliding",
    "tumbling",
]

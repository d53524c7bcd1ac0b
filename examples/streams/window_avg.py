"""Average grades by subject and minute."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json

GRADES = "examples/grades"
AVERAGES = "examples/average-grades"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("window-avg")
    grades = builder.source(GRADES, Json("time TIMESTAMP, subject STRING, grade DOUBLE"))
    subjects = grades.select_timestamp("time").key_by("subject").window(tumbling("1m"))
    averages = subjects.avg("grade")
    averages.to_stream("struct(key AS subject, value AS average)").sink(AVERAGES, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample; its last grade closes the window before it."""
    grades = [("art", 1, 10), ("art", 2, 20), ("art", 59, 30), ("physics", 3, 7), ("end", 120, 0)]
    publish_json(
        client,
        GRADES,
        *({"subject": name, "time": after_noon(at), "grade": grade} for name, at, grade in grades),
    )

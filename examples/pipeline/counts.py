"""A streaming job: counts audit events by program and window, from one topic to another, exactly once.

    BROKER_URL=http://127.0.0.1:8080 CHECKPOINT=./counts python examples/pipeline/counts.py

The job publishes a window when it has read an event of a later window. The publish time of a message rises with its
place in the topic, so no event is late. After a stop or a crash the job goes on from its checkpoint.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, struct, to_json, window

EVENTS = "audit/events"
COUNTS = "audit/counts"
WINDOW_S = 5
EVENT = "program STRING, user STRING, action STRING, entity STRING, ok BOOLEAN"

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
url = os.environ.get("BROKER_URL", "http://127.0.0.1:8080")
spark = (
    SparkSession.builder.master("local[2]")
    .appName("counts")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)

events = (
    spark.readStream.format("tms")
    .option("url", url)
    .option("topic", EVENTS)
    .option("startingOffsets", "earliest")
    .load()
    .select("timestamp", from_json(col("value").cast("string"), EVENT).alias("event"))
)
counts = (
    events.withWatermark("timestamp", "0 seconds")
    .groupBy(window("timestamp", f"{WINDOW_S} seconds"), "event.program")
    .agg(count("*").alias("events"))
    .select(to_json(struct("window.start", "window.end", "program", "events")).alias("value"))
)
query = (
    counts.writeStream.format("tms")
    .option("url", url)
    .option("topic", COUNTS)
    .option("checkpointLocation", os.environ.get("CHECKPOINT", "./counts"))
    .start()
)
query.awaitTermination()

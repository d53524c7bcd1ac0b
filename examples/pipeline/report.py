"""A batch job: counts the audit events of a time range by program.

    BROKER_URL=http://127.0.0.1:8080 python examples/pipeline/report.py [FROM_MS [TO_MS]]

Times are milliseconds since 1970, the end exclusive. Prints a program and its count in each line.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, get_json_object

EVENTS = "audit/events"

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
url = os.environ.get("BROKER_URL", "http://127.0.0.1:8080")
spark = (
    SparkSession.builder.master("local[2]")
    .appName("report")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)

events = spark.read.format("tms").option("url", url).option("topic", EVENTS)
for option, time_ms in zip(("startingTimestamp", "endingTimestamp"), sys.argv[1:], strict=False):
    events = events.option(option, time_ms)
program = get_json_object(col("value").cast("string"), "$.program").alias("program")
for row in events.load().groupBy(program).count().sort("program").collect():
    print(row.program, row["count"])
spark.stop()

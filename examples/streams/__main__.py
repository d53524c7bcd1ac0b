"""Runs an example: ``python -m examples.streams NAME [--url URL]``."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from broker.client import SyncClient, TopicExists
from examples.streams import running

ROOT = Path(__file__).parents[2]
FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Writes checkpoints without a new process for each file."""
URL = "http://127.0.0.1:8080"


def session() -> SparkSession:
    """Start Spark. Its workers import the examples, too."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return (
        SparkSession.builder.master("local[2]")
        .appName("examples")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.checkpointFileManagerClass", FILES)
        .getOrCreate()
    )


def show(name: str, url: str) -> None:
    """Run an example, and print its output."""
    print(running.example(name).job().explain())
    with tempfile.TemporaryDirectory() as checkpoint, SyncClient(url) as client:
        spark = session()
        found = running.run(name, spark, client, url, checkpoint)
        spark.stop()
    for topic, messages in found.items():
        print(f"\n{topic}")
        for message in messages:
            key = "" if message.key is None else f"{message.key.decode()}\t"
            print(f"  {key}{message.payload.decode()}")


def main() -> int:
    """Run the example that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.streams", description=__doc__)
    parser.add_argument("name", choices=running.NAMES)
    parser.add_argument("--url", default=os.environ.get("BROKER_URL", URL))
    given = parser.parse_args()
    if shutil.which("java") is None:
        print("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)")
        return 1
    try:
        show(given.name, given.url)
    except TopicExists as error:
        print(f"{error}: an earlier run was killed. Delete the topics of the namespace examples.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Start Spark for tests: small, and with all its files in one folder."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from tests.kit.servers import quick_spark

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Writes checkpoints without a new process for each file."""


def spark_session(folder: Path, master: str = "local[2]", **settings: str) -> SparkSession:
    """Start Spark in this process, with all its files in a folder."""
    return _with(SparkSession.builder.master(master), folder, settings).getOrCreate()


def connected_session(folder: Path, master: str) -> SparkSession:
    """Start a server of Spark Connect, and a session of it."""
    return _with(SparkSession.builder.remote(master), folder, {}).getOrCreate()


def _with(
    builder: SparkSession.Builder, folder: Path, settings: Mapping[str, str]
) -> SparkSession.Builder:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # On a busy machine Spark takes longer than a worker's default wait of 15 s.
    os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = "120"
    os.environ.update(quick_spark.environment())
    quick = " ".join(quick_spark.java_options())
    given = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": f"{quick} -Djava.io.tmpdir={folder}",
        "spark.executor.extraJavaOptions": quick,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "FATAL",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": FILES,
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        **settings,
    }
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.appName("tests")

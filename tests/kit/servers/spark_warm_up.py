"""``python -m tests.kit.servers.spark_warm_up FOLDER ARCHIVE``: archive the classes of Spark; see quick_spark.py.

A batch and streams run, with state and Python in them. Then the JVM writes the archive.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from typing_extensions import override

from broker.local.servers import jvm
from tests.integration.spark.sessions import spark_session


class _Offset(InputPartition):
    def __init__(self, begin: int, end: int) -> None:
        self.begin = begin
        self.end = end


class _Reader(DataSourceReader):
    @override
    def read(self, partition: Any) -> Iterator[tuple[int]]:
        return iter([(1,), (2,)])


class _StreamReader(DataSourceStreamReader):
    @override
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    @override
    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:
        return {"n": 10}

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Offset(start["n"], end["n"])]

    @override
    def read(self, partition: Any) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(partition.begin, partition.end)])


class _StreamWriter(DataSourceStreamWriter):
    @override
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    @override
    def commit(self, messages: Any, batch_id: int) -> None:
        pass


class _Numbers(DataSource):
    """A source and a sink in Python."""

    @classmethod
    @override
    def name(cls) -> str:
        return "numbers"

    @override
    def schema(self) -> str:
        return "number INT"

    @override
    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()

    @override
    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _StreamReader()

    @override
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return _StreamWriter()


def main(folder: Path, target: Path) -> None:
    """Run the jobs in a folder, and write the archive."""
    options = " ".join((*jvm.QUICK, f"-Djava.io.tmpdir={folder}", jvm.RECORDING))
    spark = spark_session(folder, **{"spark.driver.extraJavaOptions": options})
    spark.dataSource.register(_Numbers)

    def take(batch: DataFrame, _: int) -> None:
        batch.collect()

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    numbers = spark.readStream.format("numbers").load()
    counts = numbers.mapInArrow(same, numbers.schema).groupBy("number").count()
    counted = counts.writeStream.outputMode("update").foreachBatch(take)
    copied = numbers.writeStream.format("numbers")
    for name, job in (("counts", counted), ("copies", copied)):
        query = job.option("checkpointLocation", str(folder / name)).start()
        query.processAllAvailable()
        query.stop()
    spark.read.format("numbers").load().selectExpr("sum(number)").collect()
    (java,) = [each for each in psutil.Process().children() if each.name() == "java"]
    jvm.write_archive(java.pid, target)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Spark's source and sink: topics in streaming and batch queries, through PySpark.

The driver plans; the executors read and store. All of them are clients of the broker, in Python processes that Spark
starts. This package needs the extra ``spark``.
"""

from broker.errors import importing

with importing("spark"):
    from broker.spark.datasource import TmsDataSource
    from broker.spark.foreachbatch import publish

__all__ = ["TmsDataSource", "publish"]

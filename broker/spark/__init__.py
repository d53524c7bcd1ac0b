"""Spark's source and sink: topics in streaming and batch queries, through PySpark.

The driver plans, executors read and store: all of them are clients of the broker, each in the processes
that Spark starts for it. Needs the extra ``spark``.
"""

from broker.spark.datasource import TmsDataSource
from broker.spark.foreachbatch import publish

__all__ = ["TmsDataSource", "publish"]

"""The format ``tms``: topics as sources and sinks of Spark.

::

    spark.readStream.format("tms").option("url", …).option("topic", "shop/orders").load()

Spark finds the format by the module ``pyspark_tms``. Spark asks this class for a reader or writer for each part of a
query. It sends these objects between processes, so they hold options and no connection.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType
from typing_extensions import override

from broker.spark.batch import PushingBatchReader, TmsBatchReader
from broker.spark.beats import check_nullable
from broker.spark.format_options import sink_options, source_options
from broker.spark.record_batches import SCHEMA, arrow_schema
from broker.spark.sink import TmsBatchWriter, TmsStreamWriter
from broker.spark.stream import TmsStreamReader


class TmsDataSource(DataSource):
    """The entry of the format ``tms``: Spark makes one for each query that names the format."""

    @classmethod
    @override
    def name(cls) -> str:
        """Return the name of the format."""
        return "tms"

    @override
    def schema(self) -> StructType:
        """Return the columns of a source."""
        return SCHEMA

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises ValueError for options that it can't have."""
        options = source_options(self.options, streaming=False)
        reader = PushingBatchReader if options.push_down else TmsBatchReader
        return reader(options, arrow_schema(schema))

    @override
    def streamReader(self, schema: StructType) -> TmsStreamReader:
        """Return the reader of a streaming query. Raises ValueError for options or columns it can't have."""
        options = source_options(self.options, streaming=True)
        columns = arrow_schema(schema)
        if options.beat_interval_s is not None:
            check_nullable(columns)
        return TmsStreamReader(options, columns)

    @override
    def writer(self, schema: StructType, overwrite: bool) -> TmsBatchWriter:
        """Return the writer of a batch query. Raises ValueError for options or columns that it can't publish."""
        if overwrite:
            raise ValueError(
                'A topic is never overwritten: use .mode("append"), or delete the topic first.'
            )
        return TmsBatchWriter(sink_options(self.options, streaming=False), schema)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> TmsStreamWriter:
        """Return the writer of a micro-batch. In complete mode (overwrite) it publishes the whole result each time.

        Raises:
            ValueError: the writer can't publish these columns, or an option is wrong.
        """
        return TmsStreamWriter(sink_options(self.options, streaming=True), schema)

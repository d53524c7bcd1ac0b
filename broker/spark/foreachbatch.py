"""Publish from ``foreachBatch``, for output in update mode: Spark does not allow this mode for a Python sink.

::

    def publish_counts(frame, batch_id):
        publish(frame, batch_id, url="http://127.0.0.1:8080", topic="shop/counts")

    counts.writeStream.outputMode("update").foreachBatch(publish_counts).start()

Spark may run a batch again after a crash. The broker knows a publish by the query's id, the name given here and the
number of the batch. So it stores a batch once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from broker.spark.sink import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def publish(
    frame: DataFrame,
    batch_id: int,
    *,
    query_id: str | None = None,
    name: str = "",
    **options: str,
) -> None:
    """Publish a micro-batch once, even if Spark runs it several times.

    Args:
        frame: the rows, see ``broker.spark.sink_rows``.
        batch_id: the number of the batch, from ``foreachBatch``.
        query_id: a text for the query that stays the same as long as its checkpoint. By default it is the query's own
            id. Spark Connect does not give that id, so there ``query_id`` is needed.
        name: distinguishes several publishes of one batch to one topic.
        options: the options of the sink: ``url``, ``topic`` and so on.

    Raises:
        ValueError: ``query_id`` is not given, and the query's own id is not known.
    """
    producer = "/".join(part for part in (query_id or _query_of(frame), name) if part)
    writer = frame.write.format("tms").options(**options)
    writer.option("dedupKey", f"{producer}/{batch_id}").mode("append").save()


def _query_of(frame: DataFrame) -> str:
    try:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:  # Spark Connect has no context.
        query = None
    if query is None:
        raise ValueError(
            "The query's id is not known here: call publish inside foreachBatch, or give query_id, a "
            "text that stays the same for as long as the query's checkpoint."
        )
    return query

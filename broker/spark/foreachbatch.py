"""Publishing from ``foreachBatch``: for output in update mode, which Spark allows to no Python sink.

::

    def publish_counts(frame, batch_id):
        publish(frame, batch_id, url="http://127.0.0.1:8080", topic="shop/counts")

    counts.writeStream.outputMode("update").foreachBatch(publish_counts).start()

Spark may run a batch once more after a crash. What was published is known by the query's id, the name given
here and the number of the batch, so that it is published once.
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
    """Publish a micro-batch, once however often it is run.

    Args:
        frame: the rows, see ``broker.spark.sink_rows``.
        batch_id: its number, as ``foreachBatch`` is given it.
        query_id: what stands for the query, for as long as its checkpoint; by default the query's own id,
            which Spark Connect does not tell.
        name: tells publishes of one batch to one topic from each other.
        options: those of the sink: ``url``, ``topic`` and so on.

    Raises:
        ValueError: the query's id is not known, and was not given.
    """
    producer = "/".join(part for part in (query_id or _query_of(frame), name) if part)
    writer = frame.write.format("tms").options(**options)
    writer.option("dedupKey", f"{producer}/{batch_id}").mode("append").save()


def _query_of(frame: DataFrame) -> str:
    try:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:  # Of Spark Connect, which has no context.
        query = None
    if query is None:
        raise ValueError(
            "The query's id is not known here: call publish inside foreachBatch, or give query_id, a "
            "text that stays the same for as long as the query's checkpoint."
        )
    return query

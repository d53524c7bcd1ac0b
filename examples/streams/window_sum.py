"""Add amounts by account in windows of 10 seconds."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json

TRANSFERS = "examples/transfers"
SUMS = "examples/transfer-sums"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("window-sum")
    transfers = builder.source(TRANSFERS, Json("time TIMESTAMP, account STRING, cents BIGINT"))
    accounts = transfers.select_timestamp("time").filter("cents <> 0").key_by("account")
    sums = accounts.window(tumbling("10s")).sum("cents")
    sums.to_stream("struct(key AS account, value AS cents, window.start AS start)").sink(
        SUMS, Json()
    )
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample; its last transfer closes the windows before it."""
    transfers = [("a", 1, 500), ("a", 9, -200), ("b", 3, 70), ("a", 10, 1), ("c", 60, 1)]
    publish_json(
        client,
        TRANSFERS,
        *({"account": name, "time": after_noon(at), "cents": c} for name, at, c in transfers),
    )

"""Count orders by customer in windows of 30 seconds, one every 10 seconds; add their amounts in windows of 100 seconds.

The sums are by customer and type of order.
"""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, sliding, tumbling
from examples.streams.samples import after_noon, publish_json

ORDERS = "examples/orders"
COUNTS = "examples/order-counts"
SUMS = "examples/order-sums"


def job() -> Job:
    """Return the job: two branches of one stream."""
    builder = StreamBuilder("order-counts")
    schema = "time TIMESTAMP, customer STRING, type STRING, amount BIGINT"
    orders = builder.source(ORDERS, Json(schema)).select_timestamp("time")
    counts = orders.key_by("customer").window(sliding("30s", "10s")).count()
    counts.to_stream("struct(key AS customer, value AS orders, window.start AS start)").sink(
        COUNTS, Json()
    )
    sums = orders.key_by("concat(customer, '@', type)").window(tumbling("100s")).sum("amount")
    sums.sink(SUMS, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample; its last order closes the windows before it. A window of 100 s begins at 12:00."""
    orders = [
        ("ann", "book", 5, 10),
        ("ann", "book", 25, 20),
        ("bob", "tool", 31, 7),
        ("ann", "tool", 99, 5),
        ("end", "-", 300, 0),
    ]
    publish_json(
        client,
        ORDERS,
        *(
            {"customer": customer, "type": kind, "time": after_noon(at), "amount": amount}
            for customer, kind, at, amount in orders
        ),
    )

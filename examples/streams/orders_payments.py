"""Join orders with their payments of the same minute; an order without a full payment stays open."""

from typing import Any

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json, time_of

ORDERS = "examples/placed-orders"
PAYMENTS = "examples/payments"
PAID = "examples/orders-paid"
OPEN = "examples/orders-open"


def job() -> Job:
    """Return the job. A left join pairs each order with each payment, or with None when the minute is over."""
    builder = StreamBuilder("orders-payments")
    orders = builder.source(ORDERS, Json()).select_timestamp(time_of)
    payments = builder.source(PAYMENTS, Json()).select_timestamp(time_of)
    joined = orders.left_join(payments).where(_number).equal_to(_number).window(tumbling("1m"))
    paid, still_open = joined.apply(_state).branch(
        lambda order: order["paid"] >= order["amount"], lambda _: True
    )
    paid.sink(PAID, Json())
    still_open.sink(OPEN, Json())
    return builder.build()


def _number(value: dict[str, Any]) -> int:
    return int(value["order"])


def _state(order: dict[str, Any], payment: dict[str, Any] | None) -> dict[str, Any]:
    paid = 0 if payment is None else payment["paid"]
    return {"order": order["order"], "amount": order["amount"], "paid": paid}


def publish(client: SyncClient) -> None:
    """Publish the sample: order 2 is not paid in full, order 3 not at all. The last messages close the minute."""
    orders = [(1, 1, 50), (2, 2, 80), (3, 3, 20), (4, 180, 1)]
    payments = [(2, 10, 30), (1, 20, 50), (4, 181, 1)]
    publish_json(
        client,
        ORDERS,
        *({"order": n, "time": after_noon(at), "amount": amount} for n, at, amount in orders),
    )
    publish_json(
        client,
        PAYMENTS,
        *({"order": n, "time": after_noon(at), "paid": paid} for n, at, paid in payments),
    )

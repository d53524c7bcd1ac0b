"""Join prices and stocks of articles: each change with the newest value of the other side."""

from typing import Any

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder
from examples.streams.samples import publish_json

PRICES = "examples/prices"
STOCKS = "examples/stocks"
VALUES = "examples/stock-values"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("join-without-window")
    prices = builder.source(PRICES, Json())
    stocks = builder.source(STOCKS, Json())
    joined = prices.join(stocks).where(_article).equal_to(_article)
    joined.apply(_value).sink(VALUES, Json())
    return builder.build()


def _article(value: dict[str, Any]) -> str:
    return str(value["article"])


def _value(price: dict[str, Any], stock: dict[str, Any]) -> dict[str, Any]:
    return {"article": price["article"], "value": price["price"] * stock["pieces"]}


def publish(client: SyncClient) -> None:
    """Publish the sample: a price without a stock, a stock, two changes, and a stock without a price."""
    for topic, change in [
        (PRICES, {"article": "tea", "price": 3}),
        (STOCKS, {"article": "tea", "pieces": 10}),
        (PRICES, {"article": "tea", "price": 4}),
        (STOCKS, {"article": "tea", "pieces": 8}),
        (STOCKS, {"article": "jam", "pieces": 1}),
    ]:
        publish_json(client, topic, change)
        # Two topics have no order within a millisecond. So wait a few ms, by a poll of an empty topic.
        client.poll(VALUES, wait_s=0.005)

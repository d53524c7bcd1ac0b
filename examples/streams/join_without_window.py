"""Prices and stocks of articles are joined: whatever changes, with the newest of the other side."""

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
    publish_json(client, PRICES, {"article": "tea", "price": 3})
    publish_json(client, STOCKS, {"article": "tea", "pieces": 10})
    publish_json(client, PRICES, {"article": "tea", "price": 4})
    publish_json(client, STOCKS, {"article": "tea", "pieces": 8}, {"article": "jam", "pieces": 1})

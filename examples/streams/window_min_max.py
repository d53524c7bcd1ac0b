"""Find the cheapest and the dearest whole offer of each article and minute; of equal ones the first."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json, time_of

OFFERS = "examples/offers"
CHEAPEST = "examples/cheapest-offers"
DEAREST = "examples/dearest-offers"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("window-min-max")
    offers = builder.source(OFFERS, Json()).select_timestamp(time_of)
    articles = offers.key_by(lambda offer: offer["article"]).window(tumbling("1m"))
    articles.min(lambda offer: offer["price"]).sink(CHEAPEST, Json())
    articles.max(lambda offer: offer["price"]).sink(DEAREST, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample; its last offer closes the window before it."""
    offers = [
        ("tea", "Kim", 1, 4),
        ("tea", "Lou", 2, 3),
        ("tea", "Max", 3, 3),
        ("jam", "Kim", 4, 9),
        ("end", "-", 120, 0),
    ]
    publish_json(
        client,
        OFFERS,
        *(
            {"article": article, "shop": shop, "time": after_noon(at), "price": price}
            for article, shop, at, price in offers
        ),
    )

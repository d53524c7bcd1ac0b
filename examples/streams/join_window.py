"""Join the views of an advertisement with the clicks on it: all pairs of a window of 10 seconds."""

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder, tumbling
from examples.streams.samples import after_noon, publish_json

VIEWS = "examples/advert-views"
CLICKS = "examples/advert-clicks"
PAIRS = "examples/advert-pairs"


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("join-window")
    views = builder.source(VIEWS, Json("time TIMESTAMP, advert STRING, page STRING"))
    clicks = builder.source(CLICKS, Json("time TIMESTAMP, advert STRING, user STRING"))
    pairs = (
        views.select_timestamp("time")
        .join(clicks.select_timestamp("time"))
        .where("advert")
        .equal_to("advert")
        .window(tumbling("10s"))
        .apply("struct(left.advert AS advert, left.page AS page, right.user AS user)")
    )
    pairs.sink(PAIRS, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample: the click at 12 s has no view in its window."""
    views = [("x", 1, "home"), ("x", 2, "news"), ("y", 3, "home")]
    clicks = [("x", 4, "ann"), ("x", 9, "bob"), ("y", 12, "bob")]
    publish_json(
        client, VIEWS, *({"advert": a, "time": after_noon(at), "page": p} for a, at, p in views)
    )
    publish_json(
        client, CLICKS, *({"advert": a, "time": after_noon(at), "user": u} for a, at, u in clicks)
    )

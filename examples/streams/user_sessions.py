"""Visits of users: collect the pages of each session in order, with a custom accumulator."""

from typing import Any

from typing_extensions import override

from broker.client import SyncClient
from broker.streams import Accumulator, Job, Json, StreamBuilder, Window, session
from examples.streams.samples import after_noon, publish_json, start_of, time_of

VIEWS = "examples/page-views"
VISITS = "examples/visits"
Visit = dict[str, Any]


class Pages(Accumulator[Visit, Visit]):
    """The views of one session. A view between two sessions makes them one by ``merge``."""

    def __init__(self) -> None:
        """Begin with none."""
        self.views: list[tuple[str, str]] = []

    @override
    def add(self, value: Visit) -> None:
        """Add a view."""
        self.views.append((value["time"], value["page"]))

    @override
    def merge(self, other: "Pages") -> None:
        """Add the views of another session."""
        self.views += other.views

    @override
    def result(self, window: Window | None) -> Visit:
        """Return the visit."""
        pages = [page for _, page in sorted(self.views)]
        return {"start": start_of(window), "pages": pages}


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("user-sessions")
    views = builder.source(VIEWS, Json()).select_timestamp(time_of)
    visits = views.key_by(lambda view: view["user"]).window(session("30s")).aggregate(Pages)
    visits.to_stream(lambda user, visit, _: {"user": user, **visit}).sink(VISITS, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample: ann's view at 25 s comes last of hers, and makes two sessions one."""
    views = [
        ("ann", 0, "home"),
        ("ann", 50, "cart"),
        ("bob", 10, "home"),
        ("bob", 60, "help"),
        ("ann", 25, "shoes"),
        ("end", 300, "-"),
    ]
    publish_json(
        client, VIEWS, *({"user": u, "time": after_noon(at), "page": page} for u, at, page in views)
    )

"""Find the route of a method and a path, and the names in the path.

There are few different paths and many requests. So the router caches its result for each path, and a known path costs
one look-up. A full cache forgets its oldest path, so a client that sends ever new paths can't fill the memory.

The router splits a path at its slashes first, and then percent-decodes each segment, so ``%2F`` can't make a topic's
name look like two segments. HEAD takes the route of GET. As in the original, several slashes in a row count as one, except at the beginning, and a
slash at the end is ignored.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from broker.access.meter import Meter
from broker.access.quotas import QuotaKind
from broker.config.sections import Config
from broker.errors import MethodNotAllowed, NotFound
from broker.http.reply import Answer
from broker.http.request import NO_NAMES, PathNames, Request
from broker.model import check_namespace, check_topic
from broker.operations.operation import DeclaredOperation
from broker.topics.reserved import TRANSACTIONS
from broker.topics.topics import Topics
from broker.transactions.service_calls import AskedService

if TYPE_CHECKING:
    from broker.api.routed import Routed

PATHS_KEPT_MAX = 20_000
KEPT_PATH_CHARACTERS_MAX = 500
SEGMENTS_MAX = 12
_OF_TRANSACTIONS = ("", "v1", "transactions")
_SLASHES = re.compile("(?<=.)/{2,}")

Handler = Callable[[Request], Awaitable[Answer]]


class NodeParts(NamedTuple):
    """The parts of a node that handlers about topics need.

    ``service`` is the transaction service that the node asks. ``check_pointer`` takes a write pointer and a deadline. It
    raises TransactionNotInProgress if nothing may be written under the pointer. ``meter`` keeps the quotas; None: there are none.
    """

    topics: Topics
    config: Config
    routed: Routed
    service: AskedService
    check_pointer: Callable[[int, float | None], Awaitable[None]]
    meter: Meter | None = None


class TopicHandlers:
    """Handlers about topics. A method with the name of an operation answers it."""

    def __init__(self, parts: NodeParts) -> None:
        """Keep the parts of the node."""
        self._parts = parts
        self._topics = parts.topics

    def _check_quota(self, request: Request, kind: QuotaKind, count: int) -> None:
        """Raise QuotaExceeded if the caller, or the topic, may not have so many, with a new one."""
        if self._parts.meter is not None:
            self._parts.meter.check(request.principal, kind, count, request.topic)


class Route(NamedTuple):
    """An operation and its handler on this node."""

    operation: DeclaredOperation
    handler: Handler


class RouteMatch(NamedTuple):
    """A route, and the names in the path."""

    route: Route
    names: PathNames


class Router:
    """The table of routes."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """Keep the routes by the shape of their paths."""
        self.routes: Sequence[Route] = tuple(routes)
        self._shapes: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        self._kept: OrderedDict[str, RouteMatch] = OrderedDict()
        shapes: dict[tuple[str, ...], dict[str, Route]] = {}
        for route in self.routes:
            method, template = route.operation.method, route.operation.template
            methods = shapes.setdefault(tuple(template.split("/")), {})
            assert method not in methods, f"two routes for {method} {template}"
            methods[method] = route
        # Sort literal segments before parameters, so that the more exact template is tried first.
        self._shapes = sorted(
            shapes.items(), key=lambda item: [part[:1] == "{" for part in item[0]]
        )

    def find(self, method: str, path: str) -> RouteMatch:
        """Return the route of a raw path, without its query.

        Raises:
            NotFound: no template fits.
            MethodNotAllowed: a template fits, but not this method.
            BadName: the namespace or topic in the path is not a valid name.
        """
        key = f"{method} {path}"
        found = self._kept.get(key)
        if found is None:
            found = self._find(method, path)
            if len(self._kept) >= PATHS_KEPT_MAX:
                self._kept.popitem(last=False)
            if len(key) <= KEPT_PATH_CHARACTERS_MAX:
                self._kept[key] = found
        return found

    def methods(self, path: str) -> list[str]:
        """Return the methods that a path has, for the header Allow."""
        segments = _segments(path)
        found = {m for shape, by in self._shapes if _fits(shape, segments) for m in by}
        return sorted(found | {"HEAD"} if "GET" in found else found)

    def _find(self, method: str, path: str) -> RouteMatch:
        segments = _segments(path)
        path_known = False
        for shape, methods in self._shapes:
            if _fits(shape, segments):
                path_known = True
                if route := methods.get(method) or (
                    methods.get("GET") if method == "HEAD" else None
                ):
                    return RouteMatch(route, _names(shape, segments))
        if path_known:
            raise MethodNotAllowed(path)
        raise NotFound(f"Problem accessing: {path}. Reason: Not Found")


def _segments(path: str) -> list[str]:
    if "//" in path:
        path = _SLASHES.sub("/", path)
    if len(path) > 1 and path.endswith("/"):
        path = path[:-1]
    segments = path.split("/", SEGMENTS_MAX)
    if "%" not in path:
        return segments
    # Bytes that are not UTF-8 become U+FFFD, which no valid name has.
    return [unquote(segment, errors="replace") for segment in segments]


def _fits(shape: tuple[str, ...], segments: list[str]) -> bool:
    return len(shape) == len(segments) and all(
        part == segment or (part[:1] == "{" and segment != "")
        for part, segment in zip(shape, segments, strict=True)
    )


def _names(shape: tuple[str, ...], segments: list[str]) -> PathNames:
    given = dict(zip(shape, segments, strict=True))
    namespace = given.get("{namespace}")
    if shape[:3] == _OF_TRANSACTIONS:
        # The leader of this reserved topic also leads the transaction service.
        return PathNames(topic=TRANSACTIONS, transaction=given.get("{transaction}", ""))
    if namespace is None:
        node = given.get("{node}")
        who = given.get("{who}", given.get("{token}"))
        if who is not None:
            return PathNames(who=who)
        return NO_NAMES if node is None else PathNames(node=node)
    topic = given.get("{topic}")
    if topic is None:
        return PathNames(check_namespace(namespace))
    return PathNames(
        namespace,
        check_topic(namespace, topic),
        stage=given.get("{stage}", ""),
        cursor=given.get("{cursor}", ""),
    )

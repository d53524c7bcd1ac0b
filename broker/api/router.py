"""From a method and a path to a route and the names in the path.

Paths are few in form and few in number, while requests are many: what was found for a path is kept, so
that a known path costs one look-up. The memory is emptied when it is full, so that inventing paths
costs no more than the look-up was worth.

A path is cut at its slashes first and percent-decoded piece by piece, so that ``%2F`` can't make a
topic's name look like two segments. As in the original, several slashes in a row are one, except
at the beginning, and one at the end is ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from broker.api.access import Action
from broker.errors import BadRequest, MethodNotAllowed, NotFound
from broker.http.reply import Answer
from broker.http.request import NO_NAMES, PathNames, Request
from broker.model import check_namespace, check_topic
from broker.topics.reserved import TRANSACTIONS

PATHS_KEPT_MAX = 20_000
KEPT_PATH_CHARACTERS_MAX = 500
SEGMENTS_MAX = 12
SHOWN_MAX = 80
"""Characters of an unknown parameter that an error repeats."""
_OF_TRANSACTIONS = ("", "v1", "transactions")
_SLASHES = re.compile("(?<=.)/{2,}")

Handler = Callable[[Request], Awaitable[Answer]]


class Route(NamedTuple):
    """One operation of the interface; ``name`` is its entry in the OpenAPI document.

    ``query``: the names of the query parameters that it takes. ``body_bytes_max``: the largest body, as sent and
    as inflated; None: as large as the configuration allows.
    """

    name: str
    method: str
    template: str
    action: Action
    handler: Handler
    query: tuple[str, ...] = ()
    body_bytes_max: int | None = None

    def check_query(self, given: Iterable[str]) -> None:
        """Refuse parameters that would be overlooked. Raises BadRequest, with the nearest name."""
        for name in given:
            if name not in self.query:
                raise BadRequest(self._unknown(name))

    def _unknown(self, name: str) -> str:
        shown = name[:SHOWN_MAX]
        near = difflib.get_close_matches(shown, self.query, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        takes = ", ".join(self.query) or "none"
        return (
            f"{shown}: there is no such parameter{meant} "
            f"{self.method} {self.template} takes {takes}."
        )


class RouteMatch(NamedTuple):
    """A route and the names that the path gave."""

    route: Route
    names: PathNames


class Router:
    """The table of routes."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """Keep the routes by the shape of their paths."""
        self.routes: Sequence[Route] = tuple(routes)
        self._shapes: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        self._kept: dict[str, RouteMatch] = {}
        shapes: dict[tuple[str, ...], dict[str, Route]] = {}
        for route in self.routes:
            shape = tuple(route.template.split("/"))
            methods = shapes.setdefault(shape, {})
            assert route.method not in methods, f"two routes for {route.method} {route.template}"
            methods[route.method] = route
        # Literal segments sort before parameters, so that the more exact template wins.
        self._shapes = sorted(
            shapes.items(), key=lambda item: [part[:1] == "{" for part in item[0]]
        )

    def find(self, method: str, path: str) -> RouteMatch:
        """Return the route of a raw path, without its query.

        Raises:
            NotFound: no template fits.
            MethodNotAllowed: a template fits, but not this method.
            BadName: the path has a namespace or topic that is no valid name.
        """
        key = f"{method} {path}"
        found = self._kept.get(key)
        if found is None:
            found = self._find(method, path)
            if len(self._kept) >= PATHS_KEPT_MAX:
                self._kept.clear()
            if len(key) <= KEPT_PATH_CHARACTERS_MAX:
                self._kept[key] = found
        return found

    def methods(self, path: str) -> list[str]:
        """Return the methods that a path has, for the header Allow."""
        segments = _segments(path)
        return sorted({m for shape, by in self._shapes if _fits(shape, segments) for m in by})

    def _find(self, method: str, path: str) -> RouteMatch:
        segments = _segments(path)
        path_known = False
        for shape, methods in self._shapes:
            if _fits(shape, segments):
                path_known = True
                if method in methods:
                    return RouteMatch(methods[method], _names(shape, segments))
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
    # What is no UTF-8 becomes U+FFFD, which no name may have.
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
        # The topic whose leader answers.
        return PathNames(topic=TRANSACTIONS, transaction=given.get("{transaction}", ""))
    if namespace is None:
        node = given.get("{node}")
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

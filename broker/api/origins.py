"""Decide which web pages may use this node, by headers that no page can set itself.

A browser sends the requests of any page to any address that the user's machine reaches, loopback included::

    Origin: http://other.example      the page's origin: refused unless it is the node's own, or configured
    Sec-Fetch-Site: cross-site        a page of another site, also where the browser sends no Origin: refused
    Host: other.example:8080          the name in the URL: refused unless it is a name of this node

The name in ``Host`` is checked because of DNS rebinding. Once the page is loaded, the owner of the name may point it to
127.0.0.1. Then the browser takes the page and the node for one origin. So a node that listens on loopback checks
the name. Any other node is reached by the names of services and load balancers, and does not check it. Nor are health
and metrics checked: probes come under any name. A numeric address can't be pointed to another machine, so it always
passes. Requests without these headers pass, since they come from programs: a browser always sends
``Host``, and sends ``Origin`` with each request that could change something. Only in HTTP/1.0 may ``Host`` be absent;
the parser refuses other requests without it. ``Origin: null`` is refused, since it may come from any page.

Pages of configured origins (``server.cors_origins``) get the answers of the Fetch standard: a reply to the
preflight, and headers on every reply, also on refusals and streams. Credentials are never allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from broker.config.sections import EVERY_ADDRESS, Config
from broker.config.text_forms import is_loopback
from broker.errors import Forbidden
from broker.http.reply import Headers, Reply
from broker.operations.parameters import GENERATION, TIMEOUT
from broker.operations.table import OPERATIONS

HOST: Final = "Host"
ORIGIN: Final = "Origin"
FETCH_SITE: Final = "Sec-Fetch-Site"
WANTED_METHOD: Final = "Access-Control-Request-Method"
"""The header that makes an OPTIONS request a preflight."""
PREFLIGHT_LASTS_S: Final = 600
_HEADERS: Final = [each for operation in OPERATIONS for each in operation.parameters]
HEADERS_TAKEN: Final = sorted(
    {"Accept", "Content-Encoding", "Content-Type", "X-Request-Id", TIMEOUT.name, GENERATION.name}
    | {each.name for each in _HEADERS if each.place == "header"}
)
"""Headers that a page may send."""
HOSTS_KEPT_MAX: Final = 1000
_VARIES: Final = ("Vary", ORIGIN)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]/@\s]+)(:\d{1,5})?")


class Origins:
    """Checks the origin and the host of requests. It remembers a bounded number of hosts that passed."""

    def __init__(self, names: Iterable[str] | None, origins: Iterable[str]) -> None:
        """Accept these names of the node (hosts without ports; None: any), and pages of these other origins."""
        self._names = None if names is None else frozenset(_plain(name) for name in names)
        self._origins = frozenset(canonical(origin) for origin in origins)
        self._passed: set[str] = set()

    @classmethod
    def of(cls, config: Config, machine: str) -> Origins:
        """Return the rules for a configuration and the name of the machine."""
        on_loopback = is_loopback(config.server.host)
        return cls(names_of(config, machine) if on_loopback else None, config.server.cors_origins)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise Forbidden if a browser sent the request for a page that is not allowed."""
        origin = headers.get(ORIGIN)
        if origin is None:
            if headers.get(FETCH_SITE, "").lower() != "cross-site":
                return
            origin = "another site"
        elif self._is_ours(origin, headers.get(HOST)):
            return
        raise Forbidden(
            f"A page of {origin!a:.200} may not use this broker. To allow it, add its origin to "
            "server.cors_origins at every node."
        )

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise Forbidden if the request was sent to a name that is not the node's."""
        host = headers.get(HOST)
        if self._names is not None and host is not None and host not in self._passed:
            self._check_name(host, self._names)

    def headers(self, headers: Mapping[str, str]) -> Headers:
        """Return the CORS header lines of a reply to a request with these headers; empty without configured origins."""
        if not self._origins:
            return ()
        origin = canonical(headers.get(ORIGIN, ""))
        if origin not in self._origins:
            return (_VARIES,)
        return (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", "*"),
            _VARIES,
        )

    def is_preflight(self, headers: Mapping[str, str]) -> bool:
        """Return whether an OPTIONS request is a preflight for a page of a configured origin."""
        return WANTED_METHOD in headers and canonical(headers.get(ORIGIN, "")) in self._origins

    def _check_name(self, host: str, names: Collection[str]) -> None:
        match = _AUTHORITY.fullmatch(host)
        name = _plain(match[1]) if match else ""
        if name not in names and not _is_address(name):
            raise Forbidden(
                f"The name in Host is not a name of this node: {host!a:.200}. If clients reach the node by "
                "that name, add the name to server.host_names."
            )
        if len(self._passed) >= HOSTS_KEPT_MAX:
            self._passed.clear()
        self._passed.add(host)

    def _is_ours(self, origin: str, host: str | None) -> bool:
        told = canonical(origin)
        if told in self._origins:
            return True
        scheme, _, authority = told.partition("://")
        # Compare without the scheme: a proxy in front of the node may speak TLS, and then the schemes differ.
        return host is not None and canonical(f"{scheme}://{host}") == f"{scheme}://{authority}"


def names_of(config: Config, machine: str) -> set[str]:
    """Return the names of a node: those of its machine and address, and the configured ones."""
    server, url = config.server, config.cluster.advertised_url
    names = {"localhost", machine, machine.partition(".")[0], *server.host_names}
    if server.host not in EVERY_ADDRESS:
        names.add(server.host)
    if url is not None:
        names.add(urlsplit(url).hostname or "")
    return names - {""}


def preflight_reply(methods: Iterable[str]) -> Reply:
    """Answer a preflight for a path that has these methods."""
    return Reply(
        headers=(
            ("Access-Control-Allow-Methods", ", ".join(methods)),
            ("Access-Control-Allow-Headers", ", ".join(HEADERS_TAKEN)),
            ("Access-Control-Max-Age", str(PREFLIGHT_LASTS_S)),
        )
    )


def canonical(origin: str) -> str:
    """Return an origin as browsers write it: in lower case, without the scheme's default port."""
    origin = origin.lower()
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition("://")[0], "\n"))


def _plain(name: str) -> str:
    return name.strip("[]").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

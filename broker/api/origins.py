"""Which pages in browsers may use this node, by the two headers that no page can set itself.

A browser sends what any page asks to any address that the user's machine reaches, loopback too::

    Origin: http://other.example      the page's address: refused unless it is the node's own, or configured
    Host: other.example:8080          the name in the URL: refused unless the node is known by it

The name counts because its owner may let it lead to 127.0.0.1 once the page is loaded (DNS rebinding): to
the browser the page and the node then have the same origin. An address in digits leads to no other machine,
so it always passes. Requests without these headers come from programs, and pass: a browser
sends ``Host`` always, and ``Origin`` with all that could change something. ``Origin: null`` may be any page's.

Pages of configured origins (``server.cors_origins``) get what the Fetch standard asks for: an answer to the
preflight, and headers on every reply, refusals and streams among them. Credentials are never allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from broker.config.sections import EVERY_ADDRESS, Config
from broker.errors import Forbidden
from broker.http.reply import Reply

HOST: Final = "Host"
ORIGIN: Final = "Origin"
WANTED_METHOD: Final = "Access-Control-Request-Method"
"""What makes a request with the method OPTIONS a preflight."""
PREFLIGHT_LASTS_S: Final = 600
HEADERS_TAKEN: Final = (
    "Accept",
    "Content-Encoding",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "Producer-Id",
    "Producer-Number",
    "Request-Timeout",
    "X-Request-Id",
)
"""Headers that a page may send."""
HOSTS_KEPT_MAX: Final = 1000
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]/@\s]+)(:\d{1,5})?")


class Origins:
    """Decides by names; what it keeps beside them is a bounded number of hosts that passed."""

    def __init__(self, names: Iterable[str], origins: Iterable[str]) -> None:
        """Be known by ``names`` (hosts without ports), and serve pages of ``origins`` too."""
        self._names = frozenset(_plain(name) for name in names)
        self._origins = frozenset(canonical(origin) for origin in origins)
        self._passed: set[str] = set()

    @classmethod
    def of(cls, config: Config, machine: str) -> Origins:
        """Decide as configured, on a machine of this name."""
        return cls(names_of(config, machine), config.server.cors_origins)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise Forbidden for what another page than allowed made a browser send."""
        host = headers.get(HOST)
        if host is not None and host not in self._passed:
            self._check_host(host)
        origin = headers.get(ORIGIN)
        if origin is not None and not self._is_ours(origin, host):
            raise Forbidden(
                f"A page of {origin!a:.200} may not use this broker. To let it, add its origin to "
                "server.cors_origins at every node."
            )

    def lines(self, headers: Mapping[str, str]) -> str:
        """Return what the head of each reply has for a page: lines with their ends, or nothing."""
        if not self._origins:
            return ""
        origin = canonical(headers.get(ORIGIN, ""))
        if origin not in self._origins:
            return "Vary: Origin\r\n"
        return (
            f"Access-Control-Allow-Origin: {origin}\r\n"
            "Access-Control-Expose-Headers: *\r\n"
            "Vary: Origin\r\n"
        )

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether a browser asks if a page of a configured origin may send a request."""
        return (
            method == "OPTIONS"
            and WANTED_METHOD in headers
            and canonical(headers.get(ORIGIN, "")) in self._origins
        )

    def _check_host(self, host: str) -> None:
        match = _AUTHORITY.fullmatch(host)
        name = _plain(match[1]) if match else ""
        if name not in self._names and not _is_address(name):
            raise Forbidden(
                f"This node is not known by the name in Host, {host!a:.200}. If clients reach it by "
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
        # A proxy in front may speak TLS: then the page's scheme is not the node's.
        return host is not None and canonical(f"{scheme}://{host}") == f"{scheme}://{authority}"


def names_of(config: Config, machine: str) -> set[str]:
    """Return the names by which a node is known: its own, and those that are configured."""
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
    """Return an origin as browsers write it: in small letters, without the scheme's own port."""
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

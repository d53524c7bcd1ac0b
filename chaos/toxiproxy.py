"""The control interface of Toxiproxy: proxies, and what is wrong with them.

A client of our own, for toxiproxy-python (0.1.1, the only release) keeps the server's address in a class,
so that one process can drive one server only; waits for ever; takes every status but 404 and 409 for
success; and does not know PATCH. What is used of the interface is five requests.

**Toxics** act on one direction of a proxy's connections: *upstream* is what the client sends to the server,
*downstream* what it gets back. Those that hold data back give it out when they are removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, Literal, NamedTuple

TIMEOUT_S: Final = 5.0

Stream = Literal["upstream", "downstream"]
STREAMS: Final[tuple[Stream, Stream]] = ("upstream", "downstream")


class ToxiproxyFailed(Exception):
    """Toxiproxy did not do what it was asked; the text has its answer."""


class ToxiproxySilent(ToxiproxyFailed):
    """Toxiproxy gave no answer at all."""


class Proxy(NamedTuple):
    """Where a proxy listens, and where it leads to: ``host:port`` both."""

    name: str
    listen: str
    upstream: str


class Toxic(NamedTuple):
    """What goes wrong in one direction of a proxy.

    ``kind`` and ``attributes`` are Toxiproxy's: latency {latency, jitter} in ms, bandwidth {rate} in KB/s,
    slow_close {delay} in ms, timeout {timeout} in ms, reset_peer {timeout} in ms, slicer {average_size,
    size_variation, delay}, limit_data {bytes}. ``toxicity`` is the share of connections that it hits.
    """

    kind: str
    stream: Stream
    attributes: Mapping[str, int]
    toxicity: float = 1.0
    label: str = ""

    @property
    def name(self) -> str:
        """What it is called: one of a label, or of a kind, in each direction."""
        return f"{self.label or self.kind}_{self.stream}"


class Toxiproxy:
    """A running Toxiproxy. Every call blocks, and raises ToxiproxyFailed."""

    def __init__(self, host: str, port: int) -> None:
        """Keep where its control interface listens."""
        self._host = host
        self._port = port

    def populate(self, proxies: Iterable[Proxy]) -> dict[str, Proxy]:
        """Make proxies; return them by name, a listening port of 0 replaced by the one it got."""
        asked = [{**proxy._asdict(), "enabled": True} for proxy in proxies]
        told = self._ask("POST", "/populate", asked)
        return {
            one["name"]: Proxy(one["name"], one["listen"], one["upstream"])
            for one in told["proxies"]
        }

    def enable(self, proxy: str, *, enabled: bool) -> None:
        """Let a proxy serve; or end its connections and refuse new ones."""
        self._ask("PATCH", f"/proxies/{proxy}", {"enabled": enabled})

    def add(self, proxy: str, toxic: Toxic) -> None:
        """Let something go wrong, in place of what has the same name."""
        self.remove(proxy, toxic.name)
        asked = {
            "name": toxic.name,
            "type": toxic.kind,
            "stream": toxic.stream,
            "toxicity": toxic.toxicity,
            "attributes": dict(toxic.attributes),
        }
        self._ask("POST", f"/proxies/{proxy}/toxics", asked)

    def remove(self, proxy: str, toxic: str) -> None:
        """Take a toxic away; one that is not there needs no taking away."""
        self._ask("DELETE", f"/proxies/{proxy}/toxics/{toxic}", missing_ok=True)

    def reset(self) -> None:
        """Enable every proxy, and take every toxic away."""
        self._ask("POST", "/reset")

    def toxics(self) -> dict[str, list[str]]:
        """Return the names of all toxics by proxy, and ``disabled`` for a proxy that is off."""
        told = self._ask("GET", "/proxies")
        return {
            name: [
                *(toxic["name"] for toxic in one["toxics"]),
                *(() if one["enabled"] else ("disabled",)),
            ]
            for name, one in told.items()
        }

    def _ask(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        except (OSError, HTTPException) as error:
            raise ToxiproxySilent(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if reply.status == 404 and missing_ok:
            return None
        if reply.status >= 300:
            raise ToxiproxyFailed(
                f"{method} {path}: {reply.status} {text.decode(errors='replace')}"
            )
        return json.loads(text) if text else None

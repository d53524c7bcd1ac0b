"""The control interface of Toxiproxy: proxies, and what is wrong with them.

Requests go through the consumer of toxiproxy-python (0.1.1, the only release), which this module subclasses.
The package keeps the address of the server in a class, so each Toxiproxy makes a subclass with its own address.
The package sets no time-out, raises errors for 400, 404 and 409 only, and follows the proxy settings of the
environment; the subclass sets a time-out, refuses every status from 300 up, and connects directly.
The package's own Proxy and Toxiproxy are not used: they call the consumer by its name, so never a subclass.

**Toxics** act on one direction of a proxy's connections: *upstream* is what the client sends to the server,
*downstream* what it gets back. Those that hold data back give it out when they are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

TIMEOUT_S: Final = 5.0

Stream = Literal["upstream", "downstream"]
STREAMS: Final[tuple[Stream, Stream]] = ("upstream", "downstream")


class ToxiproxyFailed(Exception):
    """Toxiproxy did not do what it was asked; the text has its answer."""


class ToxiproxySilent(ToxiproxyFailed):
    """Toxiproxy gave no answer at all."""


class ToxiproxyMissing(ToxiproxyFailed):
    """Toxiproxy has no such proxy or toxic."""


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


class _Consumer(APIConsumer):  # type: ignore[misc]  # The package ships no types.
    """The requests of one server. Each one blocks, and raises ToxiproxyFailed."""

    @classmethod
    def get(cls, url: str, params: Any = None, **options: Any) -> Any:
        return cls._answer(super().get, url, params=params, **options)

    @classmethod
    def post(cls, url: str, data: Any = None, json: Any = None, **options: Any) -> Any:
        return cls._answer(super().post, url, data=data, json=json, **options)

    @classmethod
    def delete(cls, url: str, **options: Any) -> Any:
        return cls._answer(super().delete, url, **options)

    @classmethod
    def _answer(cls, request: Callable[..., Any], url: str, **options: Any) -> Any:
        try:
            reply = request(url, timeout=TIMEOUT_S, proxies={"no_proxy": cls.host}, **options)
        except NotFound as error:
            raise ToxiproxyMissing(f"{url}: 404 {error}") from error
        except (InvalidToxic, ProxyExists) as error:
            raise ToxiproxyFailed(f"{url}: {type(error).__name__} {error}") from error
        except OSError as error:  # All errors of requests are.
            raise ToxiproxySilent(f"{url}: {error!r}") from error
        if reply.status_code >= 300:
            raise ToxiproxyFailed(f"{url}: {reply.status_code} {reply.text}")
        return reply


class Toxiproxy:
    """A running Toxiproxy. Every call blocks, and raises ToxiproxyFailed."""

    def __init__(self, host: str, port: int) -> None:
        """Keep where its control interface listens."""
        self._consumer: type[_Consumer] = type(
            "Consumer", (_Consumer,), {"host": host, "port": port}
        )

    def populate(self, proxies: Iterable[Proxy]) -> dict[str, Proxy]:
        """Make proxies; return them by name, a listening port of 0 replaced by the one it got."""
        asked = [{**proxy._asdict(), "enabled": True} for proxy in proxies]
        told = self._consumer.post("/populate", json=asked).json()
        return {
            one["name"]: Proxy(one["name"], one["listen"], one["upstream"])
            for one in told["proxies"]
        }

    def enable(self, proxy: str, *, enabled: bool) -> None:
        """Let a proxy serve; or end its connections and refuse new ones."""
        self._consumer.post(f"/proxies/{proxy}", json={"enabled": enabled})

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
        self._consumer.post(f"/proxies/{proxy}/toxics", json=asked)

    def remove(self, proxy: str, toxic: str) -> None:
        """Take a toxic away; one that is not there needs no taking away."""
        with suppress(ToxiproxyMissing):
            self._consumer.delete(f"/proxies/{proxy}/toxics/{toxic}")

    def reset(self) -> None:
        """Enable every proxy, and take every toxic away."""
        self._consumer.post("/reset")

    def toxics(self) -> dict[str, list[str]]:
        """Return the names of all toxics by proxy, and ``disabled`` for a proxy that is off."""
        told = self._consumer.get("/proxies").json()
        return {
            name: [
                *(toxic["name"] for toxic in one["toxics"]),
                *(() if one["enabled"] else ("disabled",)),
            ]
            for name, one in told.items()
        }

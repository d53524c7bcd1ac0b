"""The control interface of Toxiproxy: its proxies and their toxics.

Requests go through the consumer of toxiproxy-python (0.1.1, the only release), which this module subclasses.
The package keeps the address of the server in a class, so each Toxiproxy makes a subclass with its own address.
The package sets no time-out, raises errors for 400, 404 and 409 only, and follows the proxy settings of the
environment; the subclass sets a time-out, refuses every status from 300 up, and connects directly.
The package's own Proxy and Toxiproxy are not used: they call the consumer by its name, so never a subclass.

**Toxics** are faults of one direction of a proxy's connections. *upstream* is from the client to the server,
*downstream* from the server to the client. A toxic that holds data back releases it when it is removed.
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
    """Toxiproxy refused a request; the text has its answer."""


class ToxiproxySilent(ToxiproxyFailed):
    """Toxiproxy did not answer."""


class ToxiproxyMissing(ToxiproxyFailed):
    """Toxiproxy has no proxy or toxic of this name."""


class Proxy(NamedTuple):
    """A proxy: its own address, and that of its server, both as ``host:port``."""

    name: str
    listen: str
    upstream: str


class Toxic(NamedTuple):
    """A fault of one direction of a proxy.

    ``kind`` and ``attributes`` are Toxiproxy's: latency {latency, jitter} in ms, bandwidth {rate} in KB/s,
    slow_close {delay} in ms, timeout {timeout} in ms, reset_peer {timeout} in ms, slicer {average_size,
    size_variation, delay}, limit_data {bytes}. ``toxicity`` is the share of connections with the fault.
    """

    kind: str
    stream: Stream
    attributes: Mapping[str, int]
    toxicity: float = 1.0
    label: str = ""

    @property
    def name(self) -> str:
        """Return its name: its label, or else its kind, and its direction."""
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
        except OSError as error:  # All errors of the package requests are OSErrors.
            raise ToxiproxySilent(f"{url}: {error!r}") from error
        if reply.status_code >= 300:
            raise ToxiproxyFailed(f"{url}: {reply.status_code} {reply.text}")
        return reply


class Toxiproxy:
    """A running Toxiproxy. Every call blocks, and raises ToxiproxyFailed."""

    def __init__(self, host: str, port: int) -> None:
        """Begin with the address of its control interface."""
        self._consumer: type[_Consumer] = type(
            "Consumer", (_Consumer,), {"host": host, "port": port}
        )

    def populate(self, proxies: Iterable[Proxy]) -> dict[str, Proxy]:
        """Create proxies; return them by name, with real ports in place of 0."""
        asked = [{**proxy._asdict(), "enabled": True} for proxy in proxies]
        told = self._consumer.post("/populate", json=asked).json()
        return {
            one["name"]: Proxy(one["name"], one["listen"], one["upstream"])
            for one in told["proxies"]
        }

    def enable(self, proxy: str, *, enabled: bool) -> None:
        """Enable a proxy, or end its connections and refuse new ones."""
        self._consumer.post(f"/proxies/{proxy}", json={"enabled": enabled})

    def add(self, proxy: str, toxic: Toxic) -> None:
        """Add a toxic, in place of one of the same name."""
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
        """Remove a toxic; do nothing if there is none."""
        with suppress(ToxiproxyMissing):
            self._consumer.delete(f"/proxies/{proxy}/toxics/{toxic}")

    def reset(self) -> None:
        """Enable every proxy, and remove every toxic."""
        self._consumer.post("/reset")

    def toxics(self) -> dict[str, list[str]]:
        """Return the names of each proxy's toxics, and ``disabled`` for a disabled proxy."""
        told = self._consumer.get("/proxies").json()
        return {
            name: [
                *(toxic["name"] for toxic in one["toxics"]),
                *(() if one["enabled"] else ("disabled",)),
            ]
            for name, one in told.items()
        }

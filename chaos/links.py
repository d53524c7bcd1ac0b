"""The connections of a cluster, each through its own proxy, and the faults of them.

::

                   ┌─ client>broker-1 ─▶ broker-1 ─ broker-1>zookeeper-1 ─▶ zookeeper-1
        clients ───┤                     │    ▲  └─ broker-1>thrift-1 ────▶ thrift-1
                   └─ client>broker-2 …  └─ broker-1>broker-2 ─▶ broker-2

A **link** is a pair: the process that opens the connections, and the process that accepts them. A node
advertises the proxy for its clients. The ``peer_urls`` of the other nodes name the proxies by which they
reach it. So each pair of processes can be cut alone.

A link is cut *whole* or *one-way*, in the direction ``up`` (from → to) or ``down``. Then nothing passes, the
connections stay open, and held-back data arrives when the link is healed, as after a pulled cable.

Toxiproxy 2.12 may hang for ever when connections end while their toxics change. Then this module restarts it
(``revive``), which ends every connection and heals every link, and repeats the request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from chaos.toxiproxy import STREAMS, Proxy, Stream, Toxic, Toxiproxy, ToxiproxySilent

Told = TypeVar("Told")

CLIENT: Final = "client"
Direction = Literal["both", "up", "down"]
Pair = Literal["node-zookeeper", "node-hbase", "node-node", "client-node"]
PAIRS: Final[tuple[Pair, ...]] = ("node-zookeeper", "node-hbase", "node-node", "client-node")

_STREAMS: Final[Mapping[Direction, tuple[Stream, ...]]] = {
    "both": STREAMS,
    "up": ("upstream",),
    "down": ("downstream",),
}


class Link(NamedTuple):
    """The opener and the accepter of connections, by process name; ``client`` stands for all clients."""

    opener: str
    accepter: str

    @property
    def proxy(self) -> str:
        """Return the name of its proxy."""
        return f"{self.opener}>{self.accepter}"

    @property
    def pair(self) -> Pair:
        """Return the kinds of processes that it connects."""
        if self.opener == CLIENT:
            return "client-node"
        if self.accepter.startswith("broker-"):
            return "node-node"
        return "node-zookeeper" if self.accepter.startswith("zookeeper") else "node-hbase"


def links_of(
    nodes: Sequence[str],
    zookeepers: Sequence[str],
    gateways: Sequence[str],
    processors: Sequence[str] = (),
) -> list[Link]:
    """Return every link of a cluster. Rowlog ``processors`` open connections, and accept none."""
    found = [Link(CLIENT, node) for node in nodes]
    found += [Link(each, other) for each in processors for other in (*zookeepers, *gateways)]
    for node in nodes:
        found += [Link(node, other) for other in (*zookeepers, *gateways)]
        found += [Link(node, other) for other in nodes if other != node]
    return found


class Links:
    """The links of one cluster, which go through one Toxiproxy."""

    def __init__(
        self,
        proxy: Toxiproxy,
        addresses: Mapping[Link, str],
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Begin with the address of each link's proxy, and the function that restarts Toxiproxy."""
        self._proxy = proxy
        self._revive = revive
        self._reviving = threading.Lock()
        self.revived = 0
        self.addresses = dict(addresses)

    def of(
        self, pair: Pair | None = None, *, opener: str | None = None, accepter: str | None = None
    ) -> list[Link]:
        """Return the links of a kind, of an opener, to an accepter; None matches all."""
        return [
            link
            for link in self.addresses
            if pair in (None, link.pair)
            and opener in (None, link.opener)
            and accepter in (None, link.accepter)
        ]

    def pairs(self) -> list[Pair]:
        """Return the kinds of links that the cluster has."""
        return [pair for pair in PAIRS if self.of(pair)]

    def around(self, name: str | None, pair: Pair) -> list[Link]:
        """Return the links of a kind that begin or end at a process; None returns all of that kind."""
        return [link for link in self.of(pair) if name is None or name in link]

    async def cut(self, links: Iterable[Link], direction: Direction = "both") -> None:
        """Let nothing pass. Connections stay open; new ones are accepted, and get no data."""
        await self.spoil(links, silence(direction))

    async def spoil(self, links: Iterable[Link], toxics: Sequence[Toxic]) -> None:
        """Add toxics. Raises ToxiproxyFailed, like all methods here."""
        proxies = [link.proxy for link in links]
        await self._each(
            [(self._proxy.add, (proxy, toxic)) for proxy in proxies for toxic in toxics],
        )

    async def mend(self, links: Iterable[Link], toxics: Sequence[Toxic]) -> None:
        """Remove toxics."""
        proxies = [link.proxy for link in links]
        await self._each(
            [(self._proxy.remove, (proxy, toxic.name)) for proxy in proxies for toxic in toxics],
        )

    async def heal(self, links: Iterable[Link], direction: Direction = "both") -> None:
        """Undo ``cut``, and let the held-back data pass."""
        await self.mend(links, silence(direction))

    async def close(self, links: Iterable[Link]) -> None:
        """End the connections, and refuse new ones until ``open``."""
        await self._each([(self._enable, (link.proxy, False)) for link in links])

    async def open(self, links: Iterable[Link]) -> None:
        """Accept connections again."""
        await self._each([(self._enable, (link.proxy, True)) for link in links])

    async def drop(self, links: Iterable[Link]) -> None:
        """End the connections, and accept new ones at once."""
        links = list(links)
        await self.close(links)
        await self.open(links)

    async def reset(self) -> None:
        """Heal everything."""
        await self._ask(self._proxy.reset)

    async def spoilt(self) -> dict[str, list[str]]:
        """Return the present toxics by the name of the proxy; empty without a fault."""
        told = await self._ask(self._proxy.toxics)
        return {name: toxics for name, toxics in told.items() if toxics}

    def _enable(self, proxy: str, enabled: bool) -> None:
        self._proxy.enable(proxy, enabled=enabled)

    async def _each(self, calls: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        """Make blocking calls one after another, in a thread."""

        def work() -> None:
            for call, arguments in calls:
                call(*arguments)

        await self._ask(work)

    async def _ask(self, work: Callable[[], Told]) -> Told:
        return await asyncio.to_thread(self._asked, work)

    def _asked(self, work: Callable[[], Told]) -> Told:
        before = self.revived
        try:
            return work()
        except ToxiproxySilent:
            if self._revive is None:
                raise
        with self._reviving:
            if self.revived == before:
                self._revive()
                self.revived += 1
        return work()


def silence(direction: Direction = "both") -> list[Toxic]:
    """Return the toxics of a cut link."""
    return [
        Toxic("bandwidth", stream, {"rate": 0}, label="silence") for stream in _STREAMS[direction]
    ]


def proxies_of(
    links: Sequence[Link], host: str, upstreams: Mapping[str, str], ports: Sequence[int]
) -> list[Proxy]:
    """Return the proxies for Toxiproxy: a port for each link, and the address of its accepter."""
    return [
        Proxy(link.proxy, f"{host}:{port}", upstreams[link.accepter])
        for link, port in zip(links, ports, strict=True)
    ]

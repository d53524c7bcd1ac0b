"""The connections of a cluster, each through a proxy of its own, and how they are broken.

::

                   ┌─ client>broker-1 ─▶ broker-1 ─ broker-1>zookeeper-1 ─▶ zookeeper-1
        clients ───┤                     │    ▲  └─ broker-1>thrift-1 ────▶ thrift-1
                   └─ client>broker-2 …  └─ broker-1>broker-2 ─▶ broker-2

A **link** is (from, to): who opens its connections, and who accepts them. What a node advertises is the
proxy by which clients reach it; by which other nodes do is in their ``peer_urls``. So each pair can be cut
alone. A link is cut *whole* or *one-way*, in the direction ``up`` (from → to) or ``down``: nothing passes,
connections stay, and what was held back arrives when it is healed, as with a cable that was pulled.

Toxiproxy 2.12 may stop answering for good when connections end while their toxics change. Then it is
started anew (``revive``), which ends every connection and heals every link, and is asked again.
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
    """Who opens connections to whom, by the names of processes; ``client`` is everyone outside."""

    opener: str
    accepter: str

    @property
    def proxy(self) -> str:
        """The name of its proxy."""
        return f"{self.opener}>{self.accepter}"

    @property
    def pair(self) -> Pair:
        """What kind of processes it connects."""
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
    """Return every link of a cluster; ``processors`` are those of a workload, which no one opens connections to."""
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
        """Keep where the proxy of each link listens, and how Toxiproxy is started anew."""
        self._proxy = proxy
        self._revive = revive
        self._reviving = threading.Lock()
        self.revived = 0
        self.addresses = dict(addresses)

    def of(
        self, pair: Pair | None = None, *, opener: str | None = None, accepter: str | None = None
    ) -> list[Link]:
        """Return the links of a kind, from someone, to someone."""
        return [
            link
            for link in self.addresses
            if pair in (None, link.pair)
            and opener in (None, link.opener)
            and accepter in (None, link.accepter)
        ]

    def pairs(self) -> list[Pair]:
        """Return the kinds of links that there are."""
        return [pair for pair in PAIRS if self.of(pair)]

    def around(self, name: str, pair: Pair) -> list[Link]:
        """Return the links of a kind that begin or end at a process."""
        return [link for link in self.of(pair) if name in link]

    async def cut(self, links: Iterable[Link], direction: Direction = "both") -> None:
        """Let nothing pass; connections stay open, and new ones are accepted and get nothing."""
        await self.spoil(links, _silence(direction))

    async def spoil(self, links: Iterable[Link], toxics: Sequence[Toxic]) -> None:
        """Let something go wrong. Raises ToxiproxyFailed, as all of these do."""
        proxies = [link.proxy for link in links]
        await self._each(
            [(self._proxy.add, (proxy, toxic)) for proxy in proxies for toxic in toxics],
        )

    async def mend(self, links: Iterable[Link], toxics: Sequence[Toxic]) -> None:
        """Take away what went wrong."""
        proxies = [link.proxy for link in links]
        await self._each(
            [(self._proxy.remove, (proxy, toxic.name)) for proxy in proxies for toxic in toxics],
        )

    async def heal(self, links: Iterable[Link], direction: Direction = "both") -> None:
        """Let everything pass again that ``cut`` held back."""
        await self.mend(links, _silence(direction))

    async def close(self, links: Iterable[Link]) -> None:
        """End the connections and refuse new ones, until ``open``."""
        await self._each([(self._enable, (link.proxy, False)) for link in links])

    async def open(self, links: Iterable[Link]) -> None:
        """Let connections in again."""
        await self._each([(self._enable, (link.proxy, True)) for link in links])

    async def drop(self, links: Iterable[Link]) -> None:
        """End the connections; new ones are welcome at once."""
        links = list(links)
        await self.close(links)
        await self.open(links)

    async def reset(self) -> None:
        """Heal everything."""
        await self._ask(self._proxy.reset)

    async def spoilt(self) -> dict[str, list[str]]:
        """Return what is wrong now, by the name of the proxy; empty when all is well."""
        told = await self._ask(self._proxy.toxics)
        return {name: toxics for name, toxics in told.items() if toxics}

    def _enable(self, proxy: str, enabled: bool) -> None:
        self._proxy.enable(proxy, enabled=enabled)

    async def _each(self, calls: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        """Do calls that block one after the other, without holding up the loop."""

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


def _silence(direction: Direction) -> list[Toxic]:
    return [
        Toxic("bandwidth", stream, {"rate": 0}, label="silence") for stream in _STREAMS[direction]
    ]


def proxies_of(
    links: Sequence[Link], host: str, upstreams: Mapping[str, str], ports: Sequence[int]
) -> list[Proxy]:
    """Return what is asked of Toxiproxy: a port for each link, to where its accepter listens."""
    return [
        Proxy(link.proxy, f"{host}:{port}", upstreams[link.accepter])
        for link, port in zip(links, ports, strict=True)
    ]

"""What the nodes of a proxied cluster are told of the world: proxies, each node its own.

::

    zookeeper_hosts, hbase_gateways   a node's own proxies, one for each server
    advertised_url                    the proxy by which clients reach it
    peer_urls                         for each other node: what that advertises = this node's proxy to it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.local.plan import ListenAddress
from broker.local.servers import ToxiproxyServer
from broker.local.servers.process import HOST, free_ports
from chaos.links import CLIENT, Link, Links, links_of, proxies_of
from chaos.toxiproxy import Toxiproxy


@dataclass(frozen=True, slots=True)
class Wiring:
    """Who is there, and where everyone listens: the nodes (spare ones too), and what they use."""

    brokers: Sequence[str]
    zookeepers: Sequence[str]
    gateways: Sequence[str]
    upstreams: Mapping[str, str]
    processors: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        places: Iterable[ListenAddress],
        gateway: ListenAddress | None = None,
        processors: Sequence[str] = (),
    ) -> Wiring:
        """Wire the places of a cluster, and a workload's own processes.

        ``gateway`` is that of an HBase which is one process.
        """
        all_places = [*places, *(() if gateway is None else (gateway,))]
        names = [place.name for place in all_places]
        thrift = [name for name in names if name.startswith("thrift-")]
        return cls(
            [name for name in names if name.startswith("broker-")],
            [name for name in names if name.startswith("zookeeper-")],
            thrift if gateway is None else [gateway.name],
            {place.name: place.address for place in all_places},
            processors,
        )

    def links(self) -> list[Link]:
        """Return every link that needs a proxy."""
        return links_of(self.brokers, self.zookeepers, self.gateways, self.processors)

    def settings(self, node: str, where: Mapping[Link, str]) -> dict[str, Any]:
        """Return the addresses in a node's configuration; ``where`` each proxy listens."""
        return {
            "cluster.advertised_url": client_url(node, where),
            "cluster.zookeeper_hosts": [where[Link(node, one)] for one in self.zookeepers],
            "hbase.hbase_gateways": [where[Link(node, one)] for one in self.gateways],
        }

    def beneath(self, processor: str, where: Mapping[Link, str]) -> dict[str, Any]:
        """Return how a workload's own process reaches HBase and ZooKeeper."""
        return {
            "zookeeper": [where[Link(processor, one)] for one in self.zookeepers],
            "thrift2": [where[Link(processor, one)] for one in self.gateways],
        }

    def environment(self, node: str, where: Mapping[Link, str]) -> dict[str, str]:
        """Return by which variables a node is told how it reaches the others."""
        peers = ",".join(
            f"{client_url(other, where)}=http://{where[Link(node, other)]}"
            for other in self.brokers
            if other != node
        )
        return {"BROKER_CLUSTER__PEER_URLS": peers}


def client_url(node: str, where: Mapping[Link, str]) -> str:
    """Return where clients reach a node."""
    return f"http://{where[Link(CLIENT, node)]}"


def proxied(server: ToxiproxyServer, links: Sequence[Link], upstreams: Mapping[str, str]) -> Links:
    """Make a proxy for each link, on a port that stays its own when Toxiproxy is started anew.

    Raises:
        ToxiproxyFailed: It did not take them.
    """
    proxy = Toxiproxy(HOST, server.port)
    wanted = proxies_of(links, HOST, upstreams, free_ports(len(links)))

    def revive() -> None:
        server.kill()
        server.start()
        proxy.populate(wanted)

    proxy.populate(wanted)
    where = {link: one.listen for link, one in zip(links, wanted, strict=True)}
    return Links(proxy, where, revive)

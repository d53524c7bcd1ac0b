"""The addresses in the settings of a proxied cluster's nodes: each node has its own proxies.

::

    zookeeper_hosts, hbase_gateways   a node's own proxies, one for each server
    advertised_url                    the proxy for its clients
    peer_urls                         for each other node: its advertised URL = this node's proxy to it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.local.plan import ListenAddress
from broker.local.servers.process import HOST, free_ports
from chaos.links import CLIENT, Link, Links, links_of, proxies_of
from chaos.toxiproxy import Toxiproxy
from chaos.toxiproxy_server import ToxiproxyServer


@dataclass(frozen=True, slots=True)
class Wiring:
    """The processes of a cluster and their true addresses: nodes with spare ones, ZooKeeper, HBase."""

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
        """Return the wiring of a cluster and of a workload's processors.

        ``gateway`` is the address of an HBase that is one process.
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
        """Return the addresses in a node's settings; ``where`` has the addresses of the proxies."""
        return {
            "cluster.advertised_url": client_url(node, where),
            "cluster.zookeeper_hosts": [where[Link(node, one)] for one in self.zookeepers],
            "hbase.hbase_gateways": [where[Link(node, one)] for one in self.gateways],
        }

    def beneath(self, processor: str, where: Mapping[Link, str]) -> dict[str, Any]:
        """Return the addresses of HBase and ZooKeeper for a workload's processor."""
        return {
            "zookeeper": [where[Link(processor, one)] for one in self.zookeepers],
            "thrift2": [where[Link(processor, one)] for one in self.gateways],
        }

    def environment(self, node: str, where: Mapping[Link, str]) -> dict[str, str]:
        """Return the environment variable with a node's addresses of the other nodes."""
        peers = ",".join(
            f"{client_url(other, where)}=http://{where[Link(node, other)]}"
            for other in self.brokers
            if other != node
        )
        return {"BROKER_CLUSTER__PEER_URLS": peers}


def client_url(node: str, where: Mapping[Link, str]) -> str:
    """Return the address of a node, for clients."""
    return f"http://{where[Link(CLIENT, node)]}"


def proxied(server: ToxiproxyServer, links: Sequence[Link], upstreams: Mapping[str, str]) -> Links:
    """Create a proxy for each link, on a port that stays the same when Toxiproxy is restarted.

    Raises:
        ToxiproxyFailed: Toxiproxy refused the proxies.
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

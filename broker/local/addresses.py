"""The addresses of a local cluster: free ports of loopback, or, for nodes, the ports that the user chose.

The ports are stored in the cluster's folder. A cluster that is started there again gets the same ports, because its
data contain them: HBase identifies a region server by host and port. If another program has taken one of them
meanwhile, only this one is replaced.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final

from broker.local.plan import SMALL, ClusterLayout, Folders, ListenAddress, Settings
from broker.local.servers import jvm
from broker.local.servers.process import HOST, ServerFailed, free_ports

PORTS_OF_ONE: Final = 3
"""The ports of one process."""
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The number of processes of each kind; ``first_port`` is the first node's port, None for free ports.

    ``spares`` are further nodes that have an address but are not started with the others.
    """

    nodes: int = 3
    spares: int = 0
    zookeepers: int = 1
    region_servers: int = 1
    gateways: int = 1
    first_port: int | None = None

    def names(self) -> Iterator[str]:
        """Yield the names of all processes."""
        yield from (f"zookeeper-{number}" for number in range(1, self.zookeepers + 1))
        yield "hbase-master"
        yield from (f"hbase-regionserver-{number}" for number in range(1, self.region_servers + 1))
        yield from (f"thrift-{number}" for number in range(1, self.gateways + 1))
        yield from (f"broker-{number}" for number in range(1, self.nodes + self.spares + 1))


def local_layout(
    folder: Path,
    sizes: Sizes,
    *,
    settings: Settings,
    own_settings: dict[str, Settings],
    gateway: ListenAddress | None = None,
) -> ClusterLayout:
    """Return the layout of a cluster in a folder.

    Args:
        folder: The folder for all files.
        sizes: The number of processes of each kind.
        settings: Settings of every node.
        own_settings: Settings of single nodes, by name.
        gateway: The gateway of an HBase that exists already.

    Raises:
        ServerFailed: A port that the user chose is in use.
        ServerMissing: HBase is not fetched.
    """
    places = reserve(folder, sizes)
    data = folder / "data"
    archived = jvm.sharing()
    return ClusterLayout(
        zookeepers=_group(places, "zookeeper-"),
        master=places["hbase-master"],
        region_servers=_group(places, "hbase-regionserver-"),
        gateways=_group(places, "thrift-") if gateway is None else [gateway],
        brokers=_group(places, "broker-"),
        java=jvm.java(),
        bind=HOST,
        zookeeper_folders={
            place.name: Folders(str(folder / place.name), str(data / place.name))
            for place in _group(places, "zookeeper-")
        },
        hbase_folder=str(folder / "hbase"),
        hbase_root=f"file://{data}/hbase",
        scratch=str(folder / "scratch"),
        broker_folder=str(folder),
        jars=jvm.shared_class_path(),
        options={kind: (*options, *archived) for kind, options in SMALL.items()},
        settings=settings,
        own_settings=own_settings,
    )


def _group(places: dict[str, ListenAddress], prefix: str) -> list[ListenAddress]:
    return [place for name, place in places.items() if name.startswith(prefix)]


def reserve(folder: Path, sizes: Sizes) -> dict[str, ListenAddress]:
    """Choose and store the addresses of a cluster; a second call before it runs returns the same ones.

    Raises:
        ServerFailed: A port that the user chose is in use, or is none; or the stored ones can't be read.
    """
    names = list(sizes.names())
    stored, chosen = _stored_ports(folder), _chosen_ports(sizes)
    known = {*chain(*stored.values()), *chosen.values()}
    ports: dict[str, list[int]] = {}
    for name in names:
        kept: list[int | None] = [*stored.get(name, [None] * PORTS_OF_ONE)]
        ports[name] = [
            _new_port(known)
            if port is None or port in chosen.values() or not _is_free(port)
            else port
            for port in kept
        ]
        if name in chosen:
            ports[name][0] = chosen[name]
    (folder / "ports.json").write_text(json.dumps(ports))
    return {
        name: ListenAddress(name, HOST, ports[name][0], (ports[name][1], ports[name][2]))
        for name in names
    }


def _stored_ports(folder: Path) -> dict[str, list[int]]:
    file = folder / "ports.json"
    try:
        kept = json.loads(file.read_text())
        return {name: [int(port) for port in ports] for name, ports in kept.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise ServerFailed(f"{file} is damaged; give the cluster another folder") from error


def _new_port(known: set[int]) -> int:
    """Return a free port that is none of the known ones, which may be free until their processes start."""
    return next(port for _ in count() for port in free_ports(1) if port not in known)


def _chosen_ports(sizes: Sizes) -> dict[str, int]:
    """Return the nodes' ports that the user chose. Raises ServerFailed if one is in use."""
    if sizes.first_port is None:
        return {}
    return {
        f"broker-{number + 1}": _checked_port(sizes.first_port + number)
        for number in range(sizes.nodes)
    }


def _checked_port(port: int) -> int:
    if not 0 < port <= PORT_MAX:
        raise ServerFailed(f"there is no port {port}; choose others with --ports, or --ports free")
    if not _is_free(port):
        raise ServerFailed(f"port {port} is in use; choose others with --ports, or --ports free")
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True

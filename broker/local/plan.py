"""The plan of a cluster: its commands, files and addresses. Pure functions; nothing is started here.

::

    zookeeper-1..N ◀── hbase-master, hbase-regionserver-1..N ◀── thrift-1..N ◀── broker-1..N

The same functions describe two clusters. The cluster on one machine has free ports of loopback and its own folders.
The cluster of docker-compose.cluster.yml has names of services as addresses. A ``ClusterLayout`` holds all their
differences. A test compares the compose file with this plan.

Every Java program takes its options from files, so that its command line stays short::

    java @CONF/java.options @CONF/class-path -Xmx256m MAIN …
         the JVM's flags    -cp all jars:CONF

All processes of HBase share one configuration; the address of each is on its command line. The brokers use HBase
only through Thrift-2 gateways. There is no Thrift-1 gateway: it never syncs a write to disk, and its reads were no
faster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from broker.local.servers import hbase, jvm, zookeeper
from broker.local.servers.process import HOST

MASTER_MAIN: Final = "org.apache.hadoop.hbase.master.HMaster"
REGION_SERVER_MAIN: Final = "org.apache.hadoop.hbase.regionserver.HRegionServer"

Settings = Mapping[str, Any]
"""Values of a node's configuration by ``section.key``."""


class ProcessKind(StrEnum):
    """The kind of a process of the cluster."""

    ZOOKEEPER = "zookeeper"
    MASTER = "hbase-master"
    REGION_SERVER = "hbase-regionserver"
    GATEWAY = "thrift"
    BROKER = "broker"
    PROCESSOR = "rowlog"
    """A process that processes a rowlog, for a workload; it joins a cluster later."""


class ListenAddress(NamedTuple):
    """The address of one process; ``peer_ports`` are the ports of a ZooKeeper for its ensemble."""

    name: str
    host: str
    port: int
    peer_ports: tuple[int, int] = (0, 0)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


class Folders(NamedTuple):
    """The folders of a ZooKeeper's configuration and data."""

    configuration: str
    data: str


class Program(NamedTuple):
    """One process: its command line, and the files that it needs, by path."""

    name: str
    kind: ProcessKind
    place: ListenAddress
    argv: tuple[str, ...]
    files: Mapping[str, str]
    url: str | None = None


HEAPS_MIB: Final[Mapping[ProcessKind, int]] = {
    ProcessKind.ZOOKEEPER: 64,
    ProcessKind.MASTER: 192,
    ProcessKind.REGION_SERVER: 384,
    ProcessKind.GATEWAY: 128,
}


def _small(kind: ProcessKind) -> tuple[str, ...]:
    return (*jvm.QUICK, f"-Xmx{HEAPS_MIB[kind]}m")


SMALL: Final[Mapping[ProcessKind, tuple[str, ...]]] = {kind: _small(kind) for kind in HEAPS_MIB}
"""Options of JVMs that start fast and use little memory: several clusters share two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLayout:
    """The differences between clusters.

    Attributes:
        zookeepers: The address of one ZooKeeper, or of each in an ensemble.
        master, region_servers, gateways, brokers: The addresses of the other processes.
        java: The program java.
        bind: The address that every process listens on.
        zookeeper_folders: The folders of each ZooKeeper, by its name.
        hbase_folder: The folder of HBase's configuration.
        hbase_root: The URL of the folder of HBase's data.
        scratch: A folder for temporary files of HBase.
        broker_folder: The folder of the nodes' files.
        jars: The class path before the configuration.
        options: JVM options by kind.
        zookeeper_settings: Settings of every ZooKeeper.
        settings: Settings of every node; they override those of the layout.
        own_settings: Settings of single nodes, by name; they override ``settings``.
        mutant: The guard that every node lacks, see broker/testing/mutants.py; "" for none.
    """

    zookeepers: Sequence[ListenAddress]
    master: ListenAddress
    region_servers: Sequence[ListenAddress]
    gateways: Sequence[ListenAddress]
    brokers: Sequence[ListenAddress]
    java: str
    bind: str
    zookeeper_folders: Mapping[str, Folders]
    hbase_folder: str
    hbase_root: str
    scratch: str
    broker_folder: str
    jars: str
    options: Mapping[ProcessKind, Sequence[str]] = field(default_factory=lambda: SMALL)
    zookeeper_settings: Mapping[str, str] = field(default_factory=lambda: zookeeper.SETTINGS)
    settings: Settings = field(default_factory=dict)
    own_settings: Mapping[str, Settings] = field(default_factory=dict)
    mutant: str = ""


def programs(layout: ClusterLayout) -> list[Program]:
    """Describe all processes; each depends only on earlier ones."""
    return [
        *(zookeeper_program(layout, place) for place in layout.zookeepers),
        *hbase_programs(layout),
        *(broker_program(layout, place) for place in layout.brokers),
    ]


def hbase_programs(layout: ClusterLayout) -> list[Program]:
    """Describe the processes of HBase."""
    return [
        master_program(layout),
        *(region_server_program(layout, place) for place in layout.region_servers),
        *(gateway_program(layout, place) for place in layout.gateways),
    ]


def zookeeper_program(layout: ClusterLayout, place: ListenAddress) -> Program:
    """Describe one ZooKeeper."""
    conf, data = layout.zookeeper_folders[place.name]
    files = {
        **_java_files(layout, conf, zookeeper.LOG4J),
        f"{conf}/zoo.cfg": zookeeper.properties(zoo_cfg(layout, place)),
        f"{data}/myid": str(1 + list(layout.zookeepers).index(place)),
    }
    argv = java_command(layout, conf, ProcessKind.ZOOKEEPER, zookeeper.MAIN, f"{conf}/zoo.cfg")
    return Program(place.name, ProcessKind.ZOOKEEPER, place, argv, files)


def zoo_cfg(layout: ClusterLayout, place: ListenAddress) -> dict[str, str]:
    """Return the properties of one ZooKeeper."""
    ensemble = {
        f"server.{number}": f"{other.host}:{other.peer_ports[0]}:{other.peer_ports[1]}"
        for number, other in enumerate(layout.zookeepers, 1)
        if len(layout.zookeepers) > 1
    }
    return {
        **layout.zookeeper_settings,
        "dataDir": layout.zookeeper_folders[place.name].data,
        "clientPort": str(place.port),
        "clientPortAddress": layout.bind,
        **ensemble,
    }


def master_program(layout: ClusterLayout) -> Program:
    """Describe HBase's master."""
    place = layout.master
    return _hbase_program(
        layout,
        ProcessKind.MASTER,
        place,
        MASTER_MAIN,
        *_defined("hbase.master", place),
        "start",
    )


def region_server_program(layout: ClusterLayout, place: ListenAddress) -> Program:
    """Describe one of HBase's region servers."""
    return _hbase_program(
        layout,
        ProcessKind.REGION_SERVER,
        place,
        REGION_SERVER_MAIN,
        *_defined("hbase.regionserver", place),
        "start",
    )


def gateway_program(layout: ClusterLayout, place: ListenAddress) -> Program:
    """Describe one Thrift-2 gateway."""
    listening = ("-p", str(place.port), "-b", layout.bind, "--infoport", "-1")
    return _hbase_program(
        layout, ProcessKind.GATEWAY, place, hbase.GATEWAY_MAIN, "start", *listening
    )


def hbase_site(layout: ClusterLayout) -> dict[str, str]:
    """Return the configuration that all processes of HBase share."""
    local = {"hbase.master.hostname", "hbase.regionserver.hostname"}
    return {
        **{key: value for key, value in hbase.SITE.items() if key not in local},
        "hbase.cluster.distributed": "true",
        "hbase.ipc.client.connect.max.retries": "0",
        "hbase.master.ipc.address": layout.bind,
        "hbase.regionserver.ipc.address": layout.bind,
        "hbase.rootdir": layout.hbase_root,
        "hbase.tmp.dir": layout.scratch,
        # Each address has its port, so that the ZooKeepers of one machine can have different ports.
        "hbase.zookeeper.quorum": ",".join(place.address for place in layout.zookeepers),
        "zookeeper.znode.parent": "/hbase",
    }


def broker_program(layout: ClusterLayout, place: ListenAddress) -> Program:
    """Describe one node."""
    file = f"{layout.broker_folder}/{place.name}.toml"
    argv = (sys.executable, *command_line(layout.mutant), "serve", "--config", file)
    files = {file: toml(node_settings(layout, place))}
    return Program(place.name, ProcessKind.BROKER, place, argv, files, f"http://{place.address}")


def command_line(mutant: str) -> tuple[str, ...]:
    """Return Python's arguments that run the command line, with a mutant in force if one is named."""
    return ("-m", "broker.testing.mutants", mutant) if mutant else ("-m", "broker.cli")


def node_settings(layout: ClusterLayout, place: ListenAddress) -> dict[str, Any]:
    """Return the settings of a node that differ from the defaults."""
    return {
        "server.port": place.port,
        "cluster.advertised_url": f"http://{place.address}",
        **common_settings(layout),
        **layout.own_settings.get(place.name, {}),
    }


def common_settings(layout: ClusterLayout) -> dict[str, Any]:
    """Return the settings of all nodes; the command that makes their tables uses the same settings."""
    return {
        "server.host": layout.bind,
        "cluster.zookeeper_hosts": [zookeeper.address for zookeeper in layout.zookeepers],
        "hbase.hbase_gateways": [gateway.address for gateway in layout.gateways],
        **layout.settings,
    }


def toml(settings: Settings) -> str:
    """Return settings as TOML. Values are scalars and lists of text, which TOML writes like JSON."""
    sections: dict[str, list[str]] = {}
    for dotted, value in settings.items():
        section, _, name = dotted.partition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join("\n".join([f"[{section}]", *lines, ""]) for section, lines in sections.items())


def java_options() -> str:
    """Return the JVM flags of every server, as the text of a file for ``java @FILE``."""
    words = list(hbase.JVM)
    lines = []
    while words:
        word = words.pop(0)
        lines.append(f"{word} {words.pop(0)}" if word.startswith("--add-") else word)
    return "".join(f"{line}\n" for line in lines)


def _java_files(layout: ClusterLayout, conf: str, log4j: str) -> dict[str, str]:
    return {
        f"{conf}/java.options": java_options(),
        f"{conf}/class-path": f'-cp "{layout.jars}:{conf}"\n',
        f"{conf}/log4j.properties": log4j,
    }


def java_command(
    layout: ClusterLayout, conf: str, kind: ProcessKind, main: str, *words: str
) -> tuple[str, ...]:
    """Return the command line of a Java program, with its options from files of the folder ``conf``."""
    files = (f"@{conf}/java.options", f"@{conf}/class-path")
    return (layout.java, *files, *layout.options[kind], main, *words)


def _hbase_program(
    layout: ClusterLayout, kind: ProcessKind, place: ListenAddress, main: str, *words: str
) -> Program:
    conf = layout.hbase_folder
    files = {
        **_java_files(layout, conf, hbase.LOG4J),
        f"{conf}/hbase-site.xml": hbase.site_xml(hbase_site(layout)),
    }
    return Program(place.name, kind, place, java_command(layout, conf, kind, main, *words), files)


def _defined(prefix: str, place: ListenAddress) -> tuple[str, ...]:
    host = "localhost" if place.host == HOST else place.host
    return ("-D", f"{prefix}.hostname={host}", "-D", f"{prefix}.port={place.port}")

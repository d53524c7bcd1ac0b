"""The ports of a cluster that is started again in its folder."""

from __future__ import annotations

import socket
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from broker.local.addresses import Sizes, reserve
from broker.local.plan import (
    ClusterLayout,
    Folders,
    ListenAddress,
    ProcessKind,
    hbase_site,
    java_options,
    node_settings,
    programs,
    toml,
    zoo_cfg,
)
from broker.local.servers import ServerFailed
from broker.local.servers.process import HOST, free_ports

LAYOUT = ClusterLayout(
    zookeepers=[ListenAddress("zookeeper-1", "127.0.0.1", 2181, (2888, 3888))],
    master=ListenAddress("hbase-master", "127.0.0.1", 16000),
    region_servers=[ListenAddress("hbase-regionserver-1", "127.0.0.1", 16020)],
    gateways=[
        ListenAddress("thrift-1", "127.0.0.1", 9090),
        ListenAddress("thrift-2", "127.0.0.1", 9091),
    ],
    brokers=[
        ListenAddress("broker-1", "127.0.0.1", 8081),
        ListenAddress("broker-2", "127.0.0.1", 8082),
    ],
    java="java",
    bind="127.0.0.1",
    zookeeper_folders={
        "zookeeper-1": Folders("/c/zookeeper-1", "/c/data/zookeeper-1"),
        "zookeeper-2": Folders("/c/zookeeper-2", "/c/data/zookeeper-2"),
    },
    hbase_folder="/c/hbase",
    hbase_root="file:///c/data/hbase",
    scratch="/c/scratch",
    broker_folder="/c",
    jars="/lib/a.jar:/lib/b.jar",
)


def test_processes_are_in_the_order_of_their_dependencies() -> None:
    assert [(program.name, program.kind) for program in programs(LAYOUT)] == [
        ("zookeeper-1", ProcessKind.ZOOKEEPER),
        ("hbase-master", ProcessKind.MASTER),
        ("hbase-regionserver-1", ProcessKind.REGION_SERVER),
        ("thrift-1", ProcessKind.GATEWAY),
        ("thrift-2", ProcessKind.GATEWAY),
        ("broker-1", ProcessKind.BROKER),
        ("broker-2", ProcessKind.BROKER),
    ]
    assert [program.url for program in programs(LAYOUT)][-2:] == [
        "http://127.0.0.1:8081",
        "http://127.0.0.1:8082",
    ]


def test_the_class_path_of_java_has_the_configuration_behind_all_jars() -> None:
    master = next(program for program in programs(LAYOUT) if program.kind is ProcessKind.MASTER)
    assert master.argv[:3] == ("java", "@/c/hbase/java.options", "@/c/hbase/class-path")
    assert master.files["/c/hbase/class-path"] == '-cp "/lib/a.jar:/lib/b.jar:/c/hbase"\n'
    assert "hbase.master.port=16000" in master.argv
    assert all(len(line.split()) <= 2 for line in java_options().splitlines())


def test_only_several_zookeepers_form_an_ensemble() -> None:
    first = LAYOUT.zookeepers[0]
    assert not [key for key in zoo_cfg(LAYOUT, first) if key.startswith("server.")]
    second = ListenAddress("zookeeper-2", "127.0.0.1", 2182, (2889, 3889))
    both = replace(LAYOUT, zookeepers=[first, second])
    assert zoo_cfg(both, second)["server.1"] == "127.0.0.1:2888:3888"
    files = [program.files for program in programs(both)[:2]]
    assert [files[0]["/c/data/zookeeper-1/myid"], files[1]["/c/data/zookeeper-2/myid"]] == [
        "1",
        "2",
    ]
    assert hbase_site(both)["hbase.zookeeper.quorum"] == "127.0.0.1:2181,127.0.0.1:2182"


def test_hbase_syncs_its_log_and_files() -> None:
    site = hbase_site(LAYOUT)
    assert site["hbase.wal.hsync"] == site["hbase.hfile.hsync"] == "true"


def test_settings_of_one_node_override_those_of_all_nodes() -> None:
    layout = replace(
        LAYOUT,
        settings={"cluster.session_timeout_ms": 2000, "limits.body_bytes_max": 5},
        own_settings={"broker-2": {"cluster.session_timeout_ms": 3000}},
    )
    first, second = (node_settings(layout, place) for place in layout.brokers)
    assert first["cluster.session_timeout_ms"] == 2000
    assert second["cluster.session_timeout_ms"] == 3000
    assert second["limits.body_bytes_max"] == 5
    assert second["hbase.hbase_gateways"] == ["127.0.0.1:9090", "127.0.0.1:9091"]


def test_settings_are_read_back_from_their_file() -> None:
    settings = {"a.text": 'q"\\', "a.list": ["x", "y"], "b.flag": True, "b.number": 1.5}
    assert tomllib.loads(toml(settings)) == {
        "a": {"text": 'q"\\', "list": ["x", "y"]},
        "b": {"flag": True, "number": 1.5},
    }


def ports(folder: Path, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    return {name: (place.port, *place.peer_ports) for name, place in reserve(folder, sizes).items()}


def test_a_cluster_gets_its_ports_again(tmp_path: Path) -> None:
    first = ports(tmp_path, Sizes())
    assert ports(tmp_path, Sizes()) == first
    larger = ports(tmp_path, Sizes(nodes=4, region_servers=2))
    assert {name: larger[name] for name in first} == first
    used = [port for each in larger.values() for port in each]
    assert len(set(used)) == len(used) == 3 * len(larger)


def test_only_a_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    first = ports(tmp_path, Sizes())
    with socket.create_server((HOST, first["thrift-1"][1])):
        second = ports(tmp_path, Sizes())
    taken = first.pop("thrift-1")
    replaced = second.pop("thrift-1")
    assert second == first
    assert [a == b for a, b in zip(taken, replaced, strict=True)] == [True, False, True]


def test_former_ports_of_nodes_may_be_in_use_if_the_user_chooses_others(tmp_path: Path) -> None:
    first = ports(tmp_path, Sizes())
    (chosen,) = free_ports(1)
    with socket.create_server((HOST, first["broker-1"][0])):
        second = ports(tmp_path, Sizes(nodes=1, first_port=chosen))
    assert second.pop("broker-1") == (chosen, *first["broker-1"][1:])
    assert second == {name: first[name] for name in second}


def test_a_chosen_port_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerFailed, match=f"port {port} is in use"):
            reserve(tmp_path, Sizes(nodes=1, first_port=port))


def test_a_chosen_port_is_given_to_no_other_process(tmp_path: Path) -> None:
    first = ports(tmp_path, Sizes())
    chosen = first["hbase-master"][0]
    second = ports(tmp_path, Sizes(nodes=1, first_port=chosen))
    assert second["broker-1"][0] == chosen
    assert second["hbase-master"][0] != chosen

"""The ports of a cluster that is started again in its folder."""

import socket
from pathlib import Path

import pytest

from broker.local.addresses import Sizes, reserve
from broker.local.servers import ServerFailed
from broker.local.servers.process import HOST, free_ports


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

from broker.local.plan import ListenAddress
from chaos.links import Link
from chaos.proxies import Wiring

PLACES = [
    ListenAddress(name, "127.0.0.1", port)
    for port, name in enumerate(["zookeeper-1", "hbase-master", "thrift-1", "broker-1", "broker-2"])
]


def wired(gateway: ListenAddress | None = None) -> tuple[Wiring, dict[Link, str]]:
    wiring = Wiring.of(PLACES, gateway)
    return wiring, {link: f"proxy:{number}" for number, link in enumerate(wiring.links())}


def test_a_nodes_settings_have_only_its_own_proxies() -> None:
    wiring, where = wired()
    assert wiring.settings("broker-2", where) == {
        "cluster.advertised_url": f"http://{where[Link('client', 'broker-2')]}",
        "cluster.zookeeper_hosts": [where[Link("broker-2", "zookeeper-1")]],
        "hbase.hbase_gateways": [where[Link("broker-2", "thrift-1")]],
    }


def test_a_node_reaches_another_by_its_own_proxy() -> None:
    wiring, where = wired()
    theirs, mine = where[Link("client", "broker-2")], where[Link("broker-1", "broker-2")]
    assert wiring.environment("broker-1", where) == {
        "BROKER_CLUSTER__PEER_URLS": f"http://{theirs}=http://{mine}"
    }


def test_a_rowlog_processor_has_its_own_proxies_and_accepts_no_connections() -> None:
    wiring = Wiring.of(PLACES, None, ["rowlog-1"])
    where = {link: link.proxy for link in wiring.links()}
    assert wiring.beneath("rowlog-1", where) == {
        "zookeeper": ["rowlog-1>zookeeper-1"],
        "thrift2": ["rowlog-1>thrift-1"],
    }
    assert not [link for link in where if link.accepter == "rowlog-1"]


def test_an_hbase_that_is_one_process_is_the_only_gateway() -> None:
    wiring, where = wired(ListenAddress("hbase", "127.0.0.1", 99))
    assert wiring.settings("broker-1", where)["hbase.hbase_gateways"] == [
        where[Link("broker-1", "hbase")]
    ]
    assert wiring.upstreams["hbase"] == "127.0.0.1:99"

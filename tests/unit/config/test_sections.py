from dataclasses import replace
from pathlib import Path

import pytest

from broker.config.sections import (
    PROPERTIES_BYTES_MAX,
    TRANSACTIONS,
    ClusterConfig,
    Config,
    ConfigError,
    Durability,
    HBaseConfig,
    LimitsConfig,
    MetricsConfig,
    Role,
    ServerConfig,
    StorageConfig,
    TopicsConfig,
    TransactionsConfig,
    iter_keys,
)
from broker.config.sources import load
from broker.config.text_forms import parse_address
from broker.model import TransactionUse
from broker.wire import topics


def test_the_defaults_are_valid() -> None:
    assert Config().server.host == "127.0.0.1"
    assert Config().topics.topic_ttl_default_s == 604_800


def test_key_names_and_flags_are_unique() -> None:
    keys = list(iter_keys())
    assert len({key.name for key in keys}) == len(keys)
    assert len({key.flag for key in keys}) == len(keys)


def test_flags_omit_the_unit_of_seconds() -> None:
    flags = {key.name: key.flag for key in iter_keys()}
    assert flags["transaction_life_max_s"] == "--transaction-life-max"
    assert flags["data_dir"] == "--data-dir"
    assert flags["id_lead_ms_max"] == "--id-lead-ms-max"


@pytest.mark.parametrize("key", list(iter_keys()), ids=lambda key: key.dotted)
def test_every_key_has_a_description_of_one_line(key) -> None:
    assert key.doc.endswith((".", ")."))
    assert "\n" not in key.doc
    assert len(key.doc) < 100


@pytest.mark.parametrize("key", [key for key in iter_keys() if key.least], ids=lambda k: k.dotted)
def test_a_number_below_its_least_is_refused_by_name(key) -> None:
    whole = key.type is int or key.type == int | None
    with pytest.raises(ConfigError, match=f"{key.dotted} = .* must be at least"):
        load(flags={key.dotted: str(int(key.least) - 1 if whole else key.least / 2)})


@pytest.mark.parametrize(
    "key", [key for key in iter_keys() if key.type is float], ids=lambda key: key.dotted
)
@pytest.mark.parametrize("text", ["inf", "nan", "-inf"])
def test_an_invalid_number_is_refused_by_name(key, text) -> None:
    with pytest.raises(ConfigError, match=f"{key.dotted} = {text} must be"):
        load(flags={key.dotted: text})


def test_a_window_is_never_shorter_than_two_deadlines() -> None:
    with pytest.raises(ConfigError, match="idempotency_window_s = 59 must be at least twice"):
        Config(topics=TopicsConfig(idempotency_window_s=59))
    assert Config(topics=TopicsConfig(idempotency_window_s=60)).topics.idempotency_window_s == 60


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"server": ServerConfig(port=65_536)}, "server.port"),
        ({"server": ServerConfig(host="a\0b")}, r"server.host = 'a\\x00b' has a NUL character"),
        ({"storage": StorageConfig(data_dir=Path("a\0"))}, "storage.data_dir = .* has a NUL"),
        ({"server": ServerConfig(host="")}, "server.host: '' is not an address to listen on"),
        ({"server": ServerConfig(host_names=("a:80",))}, "server.host_names: 'a:80'"),
        ({"server": ServerConfig(host_names=("http://a",))}, "server.host_names: 'http://a'"),
        (
            {"server": ServerConfig(cors_origins=("*",))},
            r"server.cors_origins: '\*' is not an origin",
        ),
        ({"server": ServerConfig(cors_origins=("null",))}, "server.cors_origins: 'null'"),
        ({"server": ServerConfig(cors_origins=("http://a/",))}, "no slash at the end"),
        ({"topics": TopicsConfig(topic_ttl_default_s=2**31)}, "topics.topic_ttl_default_s"),
        ({"topics": TopicsConfig(topic_properties_default={"ttl": "9"})}, "set the ttl with"),
        ({"topics": TopicsConfig(topic_properties_default={"generation": "9"})}, "generation"),
        (
            {"topics": TopicsConfig(topic_properties_default={"team": "x" * 65_533})},
            "topic_properties_default: names and values have 65537 bytes; 65536 are allowed",
        ),
        (
            {"topics": TopicsConfig(topic_properties_default={"transactions": "never"})},
            "transactions = never is not one of optional, required, refused",
        ),
        ({"metrics": MetricsConfig(metrics_topics=("a/b", "a.b"))}, "'a.b' is not namespace/topic"),
        ({"metrics": MetricsConfig(metrics_topics=("a/b/c",))}, "'a/b/c' is not namespace/topic"),
        ({"limits": LimitsConfig(body_inflated_bytes_max=1024)}, "limits.body_inflated_bytes_max"),
        ({"limits": LimitsConfig(queued_bytes_max=1024)}, "limits.queued_bytes_max"),
        ({"cluster": ClusterConfig(zookeeper_hosts=("zk:2181",))}, "hbase.hbase_gateways"),
        ({"cluster": ClusterConfig(instance_id=256)}, "cluster.instance_id"),
        ({"cluster": ClusterConfig(zookeeper_root="broker")}, "cluster.zookeeper_root"),
        (
            {"cluster": ClusterConfig(advertised_url="node1:8080")},
            "cluster.advertised_url: 'node1:8080'",
        ),
        (
            {"cluster": ClusterConfig(peer_urls={"http://a:1": "http://"})},
            "cluster.peer_urls: 'http://'",
        ),
        (
            {
                "server": ServerConfig(host="0.0.0.0"),
                "cluster": ClusterConfig(zookeeper_hosts=("zk:2181",)),
                "hbase": HBaseConfig(hbase_gateways=("h:9090",)),
            },
            "cluster.advertised_url must be set if server.host = '0.0.0.0'",
        ),
        ({"server": ServerConfig(host="10.0.0.1")}, "access.access_mode must be set"),
        ({"transactions": TransactionsConfig(thrift_port=65_536)}, "thrift_port = 65536"),
        (
            {"transactions": TransactionsConfig(thrift_port=8080)},
            "thrift_port = 8080 must differ from server.port",
        ),
        (
            {
                "server": ServerConfig(role=Role.TOPICS),
                "transactions": TransactionsConfig(thrift_port=0),
            },
            "transactions.thrift_port: a node with server.role = topics",
        ),
        ({"hbase": HBaseConfig(hbase_regions=257)}, "hbase.hbase_regions"),
        ({"hbase": HBaseConfig(hbase_gateways=("here",))}, "hbase.hbase_gateways: 'here'"),
        ({"hbase": HBaseConfig(hbase_gateways=("here:x",))}, "hbase.hbase_gateways: 'here:x'"),
    ],
)
def test_a_contradiction_names_its_key(changes, named) -> None:
    with pytest.raises(ConfigError, match=named):
        replace(Config(), **changes)


def test_default_properties_have_the_limits_of_a_topic() -> None:
    assert set(TRANSACTIONS) == set(TransactionUse)
    assert PROPERTIES_BYTES_MAX == topics.PROPERTIES_BYTES_MAX
    for use in TransactionUse:
        Config(topics=TopicsConfig(topic_properties_default={"transactions": use, "team": "x"}))


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Config(server=ServerConfig(port=-1, headers_max=0))
    assert "server.port" in str(raised.value)
    assert "server.headers_max" in str(raised.value)


def test_a_node_with_zookeeper_belongs_to_a_cluster() -> None:
    assert not Config().cluster.is_on
    flags = {
        "cluster.zookeeper_hosts": "zk1:2181, zk2:2181",
        "hbase.hbase_gateways": "h:9090",
        "hbase.durability": "flushed",
        "cluster.instance_id": "7",
    }
    config = load(flags=flags).config
    assert config.cluster.is_on
    assert config.cluster.zookeeper_hosts == ("zk1:2181", "zk2:2181")
    assert config.cluster.instance_id == 7
    assert config.hbase.durability is Durability.FLUSHED


def test_an_address_has_a_host_and_a_port() -> None:
    assert parse_address("host:80") == ("host", 80)
    assert parse_address("[::1]:80") == ("::1", 80)
    for text in ("host", "host:0", ":80", "a..b:80", f"{'a' * 64}:80"):
        with pytest.raises(ValueError, match="is not host:port"):
            parse_address(text)

"""A node in this process: its reports, and the order of its start and end."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.clock import Clock
from broker.config.sections import (
    AccessConfig,
    AccessMode,
    ClusterConfig,
    Config,
    HBaseConfig,
    MetricsConfig,
    ServerConfig,
    StorageConfig,
    SweepConfig,
    TransactionsConfig,
)
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.errors import StorageCorrupt, Unavailable
from broker.local.servers import free_ports
from broker.metrics import Metrics
from broker.node import node, servers
from broker.node.ground import Ground, Stores
from broker.node.node import Node
from broker.storage.leveldb.table import LevelDBTable
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Records
from tests.kit.bench import HookedTable
from tests.kit.serving import Http, RawHttp, topic_path


def config(
    directory: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    access_mode: AccessMode | None = None,
) -> Config:
    return Config(
        access=AccessConfig(access_mode=access_mode),
        server=ServerConfig(host=host, port=port),
        storage=StorageConfig(data_dir=directory),
        sweep=SweepConfig(sweep_interval_s=0.1, sweep_rest_s=0),
    )


@asynccontextmanager
async def started(wanted: Config) -> AsyncIterator[Node]:
    one = Node(wanted)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


async def test_a_node_logs_its_start_and_its_end(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with started(config(tmp_path)):
            pass
    events = [(line["log_level"], line["event"]) for line in lines if "sweep" not in line["event"]]
    assert events == [
        ("info", "opening store"),
        ("info", "node started"),
        ("info", "node draining"),
        ("info", "node stopped"),
    ]
    assert lines[0]["data_dir"] == str(tmp_path)
    assert lines[0]["log_bytes"] == 0


async def test_a_store_that_other_users_may_read_is_a_warning(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "notes.txt").touch()
    with capture_logs() as lines:
        async with started(config(directory)):
            pass
    (warning,) = [line for line in lines if line["log_level"] == "warning"]
    assert "other users may read the store" in warning["event"]
    assert warning["data_dir"] == str(directory)


async def test_listening_beyond_loopback_is_a_warning(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with started(config(tmp_path, access_mode=AccessMode.OPEN, host="0.0.0.0")) as one:
            assert one.url == f"http://127.0.0.1:{one.port}"
    (warning,) = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert "beyond loopback with access_mode = open" in warning


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "reached"), [("::", ["127.0.0.1", "::1"]), ("[::1]", ["::1"]), ("::1", ["::1"])]
)
async def test_a_node_listens_at_addresses_of_ipv6_and_at_all(
    tmp_path: Path, host: str, reached: list[str]
) -> None:
    async with started(config(tmp_path, access_mode=AccessMode.OPEN, host=host)) as one:
        assert one.url == f"http://[::1]:{one.port}"
        for address in reached:
            reader, writer = await asyncio.open_connection(address, one.port)
            writer.write(f"GET /ping HTTP/1.1\r\nHost: [::1]:{one.port}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_a_store_that_opens_slowly_is_logged_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "OPENING_LOG_EVERY_S", 0.01)
    warned_twice, opened = asyncio.Event(), servers.open_table

    async def slowly(*arguments: object, **named: object) -> LevelDBTable:
        async with asyncio.timeout(30):
            await warned_twice.wait()
        return await opened(*arguments, **named)  # type: ignore[arg-type]

    lines: list[str] = []

    def warn(event: str, **_: object) -> None:
        lines.append(event)
        if len(lines) == 2:
            warned_twice.set()

    monkeypatch.setattr(servers, "open_table", slowly)
    monkeypatch.setattr(servers.log, "warning", warn)
    async with started(config(tmp_path)):
        assert lines[:2] == ["store is still being opened"] * 2


async def test_a_second_node_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with started(config(tmp_path)):
        with pytest.raises(Unavailable, match="in use by another process"):
            await Node(config(tmp_path)).start()


async def test_a_node_whose_address_is_in_use_closes_its_store(tmp_path: Path) -> None:
    async with started(config(tmp_path / "one")) as one:
        with pytest.raises(OSError, match="in use"):
            await Node(config(tmp_path / "two", port=one.port)).start()
        async with started(config(tmp_path / "two")):
            pass


async def test_damaged_data_are_not_served(tmp_path: Path) -> None:
    async with started(config(tmp_path)):
        pass
    (tmp_path / "db" / "CURRENT").unlink()
    with pytest.raises(StorageCorrupt, match="is damaged: "):
        await Node(config(tmp_path)).start()


@pytest.mark.slow
async def test_a_node_sweeps_again_after_a_failed_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = asyncio.Event()

    async def sweep(_: object) -> node.SweepReport:
        swept.set()
        raise ZeroDivisionError("the sweep fails")

    monkeypatch.setattr(node.Sweeper, "sweep", sweep)
    with capture_logs() as lines:
        async with started(config(tmp_path)):
            for _ in range(2):
                async with asyncio.timeout(30):
                    await swept.wait()
                swept.clear()
    assert [line["event"] for line in lines].count("sweep failed") >= 1


async def test_a_sweep_logs_a_skipped_topic_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = asyncio.Event()

    async def sweep(_: object) -> node.SweepReport:
        return node.SweepReport(topics=2, skipped=1, problem="a:b: lost")

    monkeypatch.setattr(node.Sweeper, "sweep", sweep)
    with capture_logs() as lines:
        async with started(config(tmp_path)) as one, asyncio.timeout(30):
            monkeypatch.setattr(one.metrics.swept, "add", lambda *_: swept.set())
            await swept.wait()
    line = next(line for line in lines if line["event"] == "swept")
    assert (line["topics"], line["skipped"], line["problem"]) == (2, 1, "a:b: lost")


async def test_a_node_is_ready_until_it_stops(tmp_path: Path) -> None:
    one = Node(config(tmp_path))
    await one.start()
    async with Http(one.port) as http, RawHttp(one.port) as slow:
        assert (await http("GET", "/readyz")).status == 200
        # A stopping node answers a request of which it has read a byte.
        await slow.send(b"GET /readyz HTTP/1.1\r\n")
        assert (await http("GET", "/healthz")).status == 200
        stopping = asyncio.ensure_future(one.stop())
        await slow.send(b"Host: localhost\r\n\r\n")
        refused = await slow.reply()
        assert refused.status == 503
        assert b"stopping" in refused.body
        await stopping


async def metrics(http: Http) -> dict[str, float]:
    """Return the values of ``/metrics`` by name and labels, without the label of the node."""
    text = (await http("GET", "/metrics")).body.decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    node_label = re.compile(r'\{node="standalone"\}|,node="standalone"')
    return {node_label.sub("", name): float(value) for name, _, value in lines}


async def test_a_node_counts_its_requests_and_events(tmp_path: Path) -> None:
    text = {"Content-Type": "text/plain"}
    counting = replace(config(tmp_path), metrics=MetricsConfig(metrics_topics=("default/t",)))
    async with started(counting) as one, Http(one.port) as http, asyncio.timeout(30):
        for topic in ("t", "idle"):
            assert (await http("PUT", topic_path(topic))).status == 200
        several = b'{"messages": ["four", "and", "twenty"]}'
        json_type = {"Content-Type": "application/json"}
        assert (await http("POST", topic_path("t", "publish"), several, json_type)).status == 200
        assert (await http("POST", topic_path("t", "publish"), b"one", text)).status == 200
        assert (await http("POST", topic_path("none", "publish"), b"lost", text)).status == 404
        assert (await http("POST", topic_path("t", "poll"), b"{}", json_type)).status == 200
        waiting = asyncio.create_task(
            http("POST", topic_path("idle", "poll") + "?wait=60", b"{}", json_type)
        )
        while (seen := await metrics(http))["broker_waiting_polls"] != 1:
            pass
        assert (await http("POST", topic_path("idle", "publish"), b"wakes", text)).status == 200
        await waiting
        after = await metrics(http)
    assert {
        name: seen[name]
        for name in (
            'broker_requests_total{code="ok",kind="publish"}',
            'broker_requests_total{code="ok",kind="poll"}',
            'broker_requests_total{code="topic_not_found",kind="publish"}',
            'broker_request_seconds_count{kind="publish"}',
            'broker_messages_total{kind="publish"}',
            'broker_messages_total{kind="poll"}',
            'broker_message_bytes_total{kind="publish"}',
            'broker_topic_messages_total{kind="publish",topic="default/t"}',
            "broker_batch_messages_count",
            "broker_batch_messages_sum",
        )
    } == {
        'broker_requests_total{code="ok",kind="publish"}': 2,
        'broker_requests_total{code="ok",kind="poll"}': 1,
        'broker_requests_total{code="topic_not_found",kind="publish"}': 1,
        'broker_request_seconds_count{kind="publish"}': 3,
        'broker_messages_total{kind="publish"}': 4,
        'broker_messages_total{kind="poll"}': 4,
        'broker_message_bytes_total{kind="publish"}': len("fourandtwentyone"),
        'broker_topic_messages_total{kind="publish",topic="default/t"}': 4,
        "broker_batch_messages_count": 2,
        "broker_batch_messages_sum": 4,
    }
    assert seen['broker_cache_reads_total{kind="hit"}'] >= 1
    assert seen["broker_cache_bytes"] > len("fourandtwentyone")
    assert seen["broker_connections"] >= 2
    assert after["broker_sync_seconds_count"] > seen["broker_sync_seconds_count"] >= 2
    assert after["broker_waiting_polls"] == after["broker_queued_bytes"] == 0
    assert after['broker_messages_total{kind="poll"}'] == 5


async def test_the_reference_lists_exactly_the_metrics_of_a_node(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    async with started(config(tmp_path)) as one, Http(one.port) as http:
        text = (await http("GET", "/metrics")).body.decode()
    rows = [line for line in page.splitlines() if line.startswith("| `broker_")]
    listed = {name for row in rows for name in re.findall(r"`(broker_\w+)`", row)}
    assert listed == set(re.findall(r"^# TYPE (broker_\w+) ", text, re.MULTILINE))


def test_a_stopped_node_leaves_no_thread(tmp_path: Path) -> None:
    async def live() -> None:
        async with started(config(tmp_path)):
            pass

    asyncio.run(live())
    left = [thread.name for thread in threading.enumerate() if "leveldb" in thread.name]
    assert left == []


class SilentServers:
    """Storage that can stop answering, and coordination in this process."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_closed = False
        self.table = HookedTable(MemoryTable(is_alone=False))

    async def stores(self, _: object) -> Stores:
        logs = Logs(self.table, self.clock)
        return Stores(logs, Records(logs.resolver), self.close)

    async def coordinator(self) -> TreeCoordinator:
        return MemoryCoordination(self.clock).session()

    def fall_silent(self) -> None:
        self.table.on("head", self._silent)

    async def _silent(self, *_: object, **__: object) -> bool:
        await asyncio.Event().wait()
        raise AssertionError("this event is never set")

    async def close(self) -> None:
        self.is_closed = True


async def test_a_node_of_a_cluster_stops_even_if_storage_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node, "CLOSE_TOPICS_S_MIN", 0.05)
    made: list[SilentServers] = []

    def ground(config: Config, clock: Clock, metrics: Metrics) -> Ground:
        made.append(SilentServers(clock))
        return Ground(config, clock, metrics, made[0])

    wanted = Config(
        server=ServerConfig(port=0, drain_s=0.1),
        cluster=ClusterConfig(zookeeper_hosts=("zk:2181",)),
        hbase=HBaseConfig(hbase_gateways=("h:9090",)),
    )
    one = Node(wanted, ground=ground)
    await one.start()
    async with Http(one.port) as http:
        assert (await http("PUT", topic_path("t"))).status == 200
        text = {"Content-Type": "text/plain"}
        assert (await http("POST", topic_path("t", "publish"), b"m", text)).status == 200
    made[0].fall_silent()
    with capture_logs() as lines:
        async with asyncio.timeout(30):
            await one.stop()
    assert "topics were not closed: storage does not answer" in [line["event"] for line in lines]
    assert made[0].is_closed


def with_thrift(directory: Path, port: int | None) -> Config:
    return replace(config(directory), transactions=TransactionsConfig(thrift_port=port))


async def test_the_service_for_tephra_listens_on_the_configured_port(tmp_path: Path) -> None:
    async with started(config(tmp_path / "off")) as one:
        assert one.thrift_port is None
    with capture_logs() as lines:
        async with started(with_thrift(tmp_path / "on", 0)) as one:
            assert one.thrift_port
            _, writer = await asyncio.open_connection("127.0.0.1", one.thrift_port)
            writer.close()
            text = one.metrics.render()
    assert b"broker_thrift_connections{" in text
    (line,) = [line for line in lines if line["event"] == "thrift service started"]
    assert (line["host"], line["port"]) == ("127.0.0.1", one.thrift_port)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", one.thrift_port)


async def test_a_node_whose_thrift_port_is_in_use_closes_its_store(tmp_path: Path) -> None:
    async with started(with_thrift(tmp_path / "one", 0)) as one:
        with pytest.raises(OSError, match="ddress already in use"):
            await Node(with_thrift(tmp_path / "two", one.thrift_port)).start()
    # Its store is not locked any more.
    async with started(config(tmp_path / "two")):
        pass


async def test_listeners_are_closed_if_the_node_does_not_start(tmp_path: Path) -> None:
    async with started(with_thrift(tmp_path / "one", 0)) as one:
        (free,) = free_ports(1)
        wanted = with_thrift(tmp_path / "two", free)
        with pytest.raises(OSError, match="ddress already in use"):
            await Node(replace(wanted, server=ServerConfig(port=one.port))).start()
    async with started(with_thrift(tmp_path / "two", free)) as two:
        assert two.thrift_port == free


async def test_the_error_for_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("broker.transactions.tephra_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "thriftpy2", None)
    with pytest.raises(Unavailable, match=r"needs the package 'thriftpy2': .*tms-broker\[tephra\]"):
        await Node(with_thrift(tmp_path / "data", 0)).start()


async def test_a_node_alone_is_a_cluster_of_one(tmp_path: Path) -> None:
    text, body = {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}
    async with started(config(tmp_path)) as one, Http(one.port) as http:
        assert (await http("PUT", topic_path("t"))).status == 200
        published = await http("POST", topic_path("t", "publish"), b"m", text)
        assert published.status == 200
        # Its clients reach it already, perhaps under an address that it does not know.
        assert "Broker-Leader" not in published.headers
        (row,) = (await http("GET", "/v1/cluster?topics=yes")).json["nodes"]
        assert (row["node"], row["url"], row["state"]) == (0, one.url, "serving")
        assert row["view"]["topics"] == [{"topic": "default/t", "epoch": 1}]
        assert (row["view"]["slots_led"], row["view"]["zookeeper"]["contact"]) == (1, "connected")
        assert (await http("POST", "/v1/cluster/nodes/0/drain")).status == 400
        pinned = await http("PUT", "/v1/cluster/pins/default/t", b'{"node": 0}', body)
        assert (pinned.status, pinned.json["node"]) == (200, 0)
        assert (await http("POST", topic_path("t", "publish"), b"m", text)).status == 200
        assert [pin["lives"] for pin in (await http("GET", "/v1/cluster/pins")).json["pins"]] == [
            True
        ]

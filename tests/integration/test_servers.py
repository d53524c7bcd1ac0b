"""Each real server starts, answers a real call, and leaves no process."""

import socket
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from broker.local.servers import zookeeper
from broker.testing.hbase_server import HBaseServer
from broker.testing.server_process import ServerProcess
from chaos.toxiproxy_server import ToxiproxyServer
from tests.kit.servers import (
    JavaClient,
    JavaError,
    KafkaServer,
    RedisServer,
    TmsServer,
    ZooKeeperServer,
    thrift2_idl,
)

pytestmark = pytest.mark.integration

AVRO = {"Content-Type": "avro/binary"}
PUBLISH_A_B = bytes.fromhex("02040261026200")
POLL_ALL = bytes.fromhex("040100feffffff0f02")


def call(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers or AVRO)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def assert_gone(server: ServerProcess, port: int) -> None:
    assert not Path(f"/proc/{server.pid}").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_the_original_server_answers_the_vectors_of_its_wire(tms_server: TmsServer) -> None:
    topic = "/v1/namespaces/vectors/topics/t"
    port = tms_server.port
    assert call(port, "PUT", topic) == (200, b"")
    assert call(port, "PUT", topic)[0] == 409
    assert call(port, "GET", topic) == (200, b'{"generation":"1","ttl":"604800"}')
    assert call(port, "POST", f"{topic}/publish", PUBLISH_A_B) == (200, b"")
    status, body = call(port, "POST", f"{topic}/poll", POLL_ALL)
    assert status == 200
    # Blocks of id (20 bytes, length 0x28) and payload (length 0x02), then the final zero block.
    first, second = body[2:22], body[25:45]
    assert body == b"\x04\x28" + first + b"\x02a\x28" + second + b"\x02b\x00"
    assert first < second


@pytest.mark.nightly
@pytest.mark.server("tms")
def test_the_original_server_keeps_its_data_through_a_kill(tmp_path: Path) -> None:
    with TmsServer(folder=tmp_path, overrides={"messaging.topic.default.ttl.seconds": "77"}) as tms:
        assert call(tms.port, "PUT", "/v1/namespaces/n/topics/t")[0] == 200
        tms.kill()
        tms.start()
        status, properties = call(tms.port, "GET", "/v1/namespaces/n/topics/t")
        assert (status, properties) == (200, b'{"generation":"1","ttl":"77"}')
        port = tms.port
    assert_gone(tms, port)


def test_the_java_client_works_against_the_original_server(
    tms_server: TmsServer, java_client: JavaClient
) -> None:
    topics = java_client.at(tms_server.port, namespace="java")
    topics.create("t", ttl="60")
    assert topics.get("t") == {"generation": "1", "ttl": "60"}
    assert topics.list() == ["t"]
    topics.update("t", ttl="3600")
    assert topics.publish("t", b"a", b"\x00\xff") is None
    pointer = time.time_ns()
    published = topics.publish("t", b"in a transaction", write_pointer=pointer)
    assert published is not None
    assert published.write_pointer == pointer
    topics.store("t", b"s0", b"s1", write_pointer=pointer + 1)
    topics.publish("t", write_pointer=pointer + 1)
    everything = topics.fetch("t")
    payloads = [payload for _, payload in everything]
    assert payloads == [b"a", b"\x00\xff", b"in a transaction", b"s0", b"s1"]
    assert topics.fetch("t", start=everything[0][0], inclusive=False, limit=1) == everything[1:2]
    topics.delete("t")


def test_the_java_client_reads_under_a_snapshot_and_rolls_back(
    tms_server: TmsServer, java_client: JavaClient
) -> None:
    topics = java_client.at(tms_server.port, namespace="snapshots")
    topics.create("t")
    pointer = time.time_ns()
    published = topics.publish("t", b"m", write_pointer=pointer)
    assert published is not None
    snapshot = {
        "read_pointer": pointer,
        "transaction_id": pointer + 1,
        "invalids": [],
        "in_progress": [],
        "first_short": 2**63 - 1,
    }
    assert topics.fetch("t", transaction={**snapshot, "in_progress": [pointer]}) == []
    assert len(topics.fetch("t", transaction=snapshot)) == 1
    topics.rollback("t", published)
    assert topics.fetch("t", transaction=snapshot) == []
    assert len(topics.fetch("t")) == 1


def test_an_exception_of_the_java_client_arrives_by_its_name(
    tms_server: TmsServer, java_client: JavaClient
) -> None:
    topics = java_client.at(tms_server.port, namespace="errors")
    topics.create("t")
    for name, attempt in (
        ("TopicAlreadyExistsException", lambda: topics.create("t")),
        ("TopicNotFoundException", lambda: topics.get("nosuch")),
        ("TopicNotFoundException", lambda: topics.fetch("nosuch")),
        ("IllegalArgumentException", lambda: topics.publish("t")),
        ("ServiceUnavailableException", lambda: java_client.at(1).list()),
    ):
        with pytest.raises(JavaError) as caught:
            attempt()
        assert caught.value.simple_name == name


@pytest.mark.server("tms")
def test_the_java_client_leaves_no_process() -> None:
    with JavaClient() as client:
        pid = client.pid
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.server("hbase")
def test_zookeeper_serves_and_ends() -> None:
    with ZooKeeperServer() as server:
        assert "Mode: standalone" in zookeeper.ask("127.0.0.1", server.port, "srvr")
    assert_gone(server, server.port)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.server("hbase")
def test_hbase_keeps_a_synced_row_through_a_kill() -> None:
    thriftpy2 = pytest.importorskip("thriftpy2")
    rpc = pytest.importorskip("thriftpy2.rpc")
    idl = thriftpy2.load(str(thrift2_idl()), module_name="hbase2_thrift")

    def gateway(server: HBaseServer) -> object:
        return rpc.client_context(
            idl.THBaseService, "127.0.0.1", server.thrift2_port, socket_timeout=30_000
        )

    with HBaseServer() as server:
        with gateway(server) as client:
            name = idl.TTableName(qualifier=b"t")
            family = idl.TColumnFamilyDescriptor(name=b"d", maxVersions=1)
            client.createTable(idl.TTableDescriptor(tableName=name, columns=[family]), [b"\x08"])
            cell = idl.TColumnValue(family=b"d", qualifier=b"q", value=b"v")
            put = idl.TPut(row=b"r", columnValues=[cell], durability=idl.TDurability.FSYNC_WAL)
            assert client.checkAndPut(b"t", b"r", b"d", b"q", None, put)
            assert not client.checkAndPut(b"t", b"r", b"d", b"q", None, put)
        server.kill()
        server.start()
        with gateway(server) as client:
            row = client.get(b"t", idl.TGet(row=b"r"))
            assert [cell.value for cell in row.columnValues] == [b"v"]
    for port in (server.zookeeper_port, server.thrift1_port, server.thrift2_port):
        assert_gone(server, port)


# The peers of the benchmarks, and the servers of the fault tests: not in the quick run.


@pytest.mark.nightly
@pytest.mark.server("redis")
def test_redis_serves_and_ends() -> None:
    with RedisServer() as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"XADD s * f v\r\n")
        assert client.recv(100).startswith(b"$")
    assert_gone(server, server.port)


@pytest.mark.nightly
@pytest.mark.server("kafka")
async def test_kafka_serves_and_ends() -> None:
    aiokafka = pytest.importorskip("aiokafka")
    with KafkaServer() as server:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=server.bootstrap, acks="all")
        await producer.start()
        try:
            assert (await producer.send_and_wait("t", b"m")).offset == 0
        finally:
            await producer.stop()
    assert_gone(server, server.port)


@pytest.mark.nightly
@pytest.mark.server("toxiproxy")
def test_toxiproxy_serves_and_ends() -> None:
    with ToxiproxyServer() as server:
        assert call(server.port, "GET", "/proxies") == (200, b"{}")
    assert_gone(server, server.port)

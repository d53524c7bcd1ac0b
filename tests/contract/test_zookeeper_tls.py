"""A real ZooKeeper that serves TLS alone and asks for certificates; the znodes are the broker's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

from broker.clock import SystemClock
from broker.config.tls_section import NO_TLS, TlsConfig
from broker.coordination import zookeeper
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.ports import NodeInfo
from broker.errors import Unavailable
from broker.http.certificates import BadCertificates
from tests.kit import certificates
from tests.kit.servers.ensemble import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.server("hbase")]
CREDENTIALS = ("broker", "pass:word")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    folder = tmp_path_factory.mktemp("tls")
    files = certificates.write(folder)
    password = folder / "password"
    password.write_text(":".join(CREDENTIALS) + "\n")
    password.chmod(0o600)
    return TlsConfig(
        zookeeper_ca=files.ca,
        zookeeper_certificate=files.certificate,
        zookeeper_key=files.key,
        zookeeper_credentials=password,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tls=certificates.write(tmp_path_factory.mktemp("server"))) as server:
        yield server


async def connected(
    server: ZooKeeperServer, tls: TlsConfig, connect_s: float = 15.0
) -> TreeCoordinator:
    return await zookeeper.connect(
        [server.hosts],
        root="/some/broker",
        session_timeout_ms=4000,
        clock=SystemClock(),
        tls=tls,
        connect_s=connect_s,
    )


@pytest.fixture
async def node(server: ZooKeeperServer, tls: TlsConfig) -> AsyncIterator[TreeCoordinator]:
    node = await connected(server, tls)
    yield node
    await node.close()


def every_path(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from every_path(client, f"{path}/{name}")


async def test_every_znode_belongs_to_the_brokers_user_alone(
    node: TreeCoordinator, tls: TlsConfig
) -> None:
    membership = await node.join(NodeInfo(0, "incarnation", "https://a:1", "test", 1))
    deadline = SystemClock().monotonic() + 30
    leases = await asyncio.gather(*(node.acquire(f"slot/{each}", deadline) for each in range(50)))
    assert all(leases)
    client = node.tree._client  # type: ignore[attr-defined]
    paths = await asyncio.to_thread(lambda: list(every_path(client, "/some")))
    assert len(paths) > 50
    wanted = [make_digest_acl(*CREDENTIALS, all=True)]
    for path in paths:
        acls, _ = await asyncio.to_thread(client.get_acls, path)
        assert acls == wanted, path
    await membership.leave()


async def test_another_user_neither_reads_nor_changes_them(
    server: ZooKeeperServer, node: TreeCoordinator, tls: TlsConfig
) -> None:
    await node.join(NodeInfo(1, "incarnation", "https://a:1", "test", 1))
    stranger = await connected_tree(server, replace(tls, zookeeper_credentials=None))
    client = stranger._client

    def attack() -> None:
        with pytest.raises(NoAuthError):
            client.get_children("/some/broker/nodes")
        with pytest.raises(NoAuthError):
            client.create("/some/broker/nodes/200", b"{}")
        with pytest.raises(NoAuthError):
            client.set("/some/broker", b"")

    try:
        await asyncio.to_thread(attack)
    finally:
        await stranger.close()


async def connected_tree(server: ZooKeeperServer, tls: TlsConfig) -> zookeeper.ZooKeeperTree:
    tree = zookeeper.ZooKeeperTree(
        [server.hosts], session_timeout_ms=4000, clock=SystemClock(), tls=tls
    )
    await tree.open()
    return tree


async def test_a_server_of_another_ca_gets_no_session(
    server: ZooKeeperServer, tls: TlsConfig, tmp_path: Path
) -> None:
    other = certificates.write(tmp_path, ca=trustme.CA())
    for wrong in (replace(tls, zookeeper_ca=other.ca), NO_TLS):
        with pytest.raises(Unavailable, match="No ZooKeeper answered"):
            await connected(server, wrong, connect_s=1.0)


async def test_a_file_without_user_and_password_is_named_but_not_shown(
    server: ZooKeeperServer, tls: TlsConfig, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_text("canary")
    with pytest.raises(BadCertificates, match="bad' must have one line") as caught:
        await connected(server, replace(tls, zookeeper_credentials=bad))
    assert "canary" not in str(caught.value)

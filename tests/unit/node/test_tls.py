"""A node in this process whose listeners have TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from broker.client import Client
from broker.config.sections import Config, ConfigError, ServerConfig, StorageConfig
from broker.config.tls_section import ClientCertificates, TlsConfig
from broker.errors import TaskFailed, Unavailable
from broker.http.certificates import PeerCertificate
from broker.node import start_problems
from broker.node.node import Node
from broker.node.tls_files import Certificates
from tests.kit import certificates
from tests.kit.certificates import Files
from tests.kit.serving import eventually


def config(folder: Path, files: Files, **tls: object) -> Config:
    section = TlsConfig(tls_certificate=files.certificate, tls_key=files.key, tls_peer_ca=files.ca)
    return Config(
        server=ServerConfig(port=0),
        storage=StorageConfig(data_dir=folder / "data"),
        tls=replace(section, **tls),  # type: ignore[arg-type]
    )


@asynccontextmanager
async def started(wanted: Config) -> AsyncIterator[Node]:
    node = Node(wanted)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return certificates.write(tmp_path)


def client(node: Node, files: Files | None, deadline_s: float = 30.0) -> Client:
    ca = str(files.ca) if files else ""
    return Client(node.url, ca_file=ca, deadline_s=deadline_s)


async def test_a_client_that_trusts_the_ca_publishes_and_polls(
    tmp_path: Path, files: Files
) -> None:
    async with started(config(tmp_path, files)) as node:
        assert node.url.startswith("https://127.0.0.1:")
        async with client(node, files) as one:
            await one.create_topic("t")
            large = os.urandom(3_000_000)
            await one.publish("t", large)
            await one.publish("t", b"x")
            assert [each.payload for each in await one.poll("t")] == [large, b"x"]


async def test_a_client_that_trusts_another_ca_sends_nothing(tmp_path: Path, files: Files) -> None:
    async with started(config(tmp_path, files)) as node, client(node, None, 0.3) as one:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await one.publish("t", b"x")


async def test_a_client_checks_the_name_in_the_certificate(tmp_path: Path) -> None:
    files = certificates.write(tmp_path, "other.example")
    async with started(config(tmp_path, files)) as node, client(node, files, 0.3) as one:
        with pytest.raises(Unavailable, match=r"certificate is not valid for '127\.0\.0\.1'"):
            await one.publish("t", b"x")


async def test_plain_http_gets_no_answer(tmp_path: Path, files: Files) -> None:
    async with started(config(tmp_path, files)) as node:
        with socket.create_connection(("127.0.0.1", node.port)) as plain:
            plain.setblocking(False)
            plain.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
            loop, told = node.stopped.get_loop(), b""
            while piece := await loop.sock_recv(plain, 1024):
                told += piece
            assert b"HTTP" not in told


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    tmp_path: Path, files: Files
) -> None:
    wanted = config(
        tmp_path,
        files,
        tls_client_ca=files.ca,
        tls_client_certificates=ClientCertificates.REQUIRED,
    )
    async with started(wanted) as node:
        async with client(node, files, 0.3) as one:
            # The outcome is not unknown: a server that refuses the handshake reads no request.
            with pytest.raises(Unavailable, match="refused the TLS handshake"):
                await one.publish("t", b"x")
        shown = certificates.write(tmp_path, "alice@example.org", name="alice", cn="alice")
        own = {"certificate_file": str(shown.certificate), "key_file": str(shown.key)}
        async with Client(node.url, ca_file=str(files.ca), **own) as one:  # type: ignore[arg-type]
            await one.create_topic("t")
            assert node._server is not None
            (remote,) = [each.remote for each in node._server.open]
            assert remote.certificate is not None
        names = PeerCertificate.of(remote.certificate)
        assert (names.common_name, names.emails) == ("alice", ("alice@example.org",))


async def test_a_new_certificate_is_served_without_a_restart_or_a_cut(
    tmp_path: Path, files: Files
) -> None:
    wanted = config(tmp_path, files, tls_reload_s=0.1)
    async with started(wanted) as node, client(node, files) as one:
        await one.create_topic("t")
        await one.publish("t", b"opens the connection")
        other = trustme.CA()
        # Between its two files the new certificate has the key of the old one. The old one stays.
        issued = other.issue_cert("127.0.0.1")
        with capture_logs() as lines:
            files.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
            await eventually(lambda: lines, lambda: "not noticed")
            assert lines[0]["event"] == "certificates not reloaded: the old ones stay"
            await handshake(node.port, certificates.trusting())
            files.key.write_bytes(issued.private_key_pem.bytes())
            node.reload_certificates()  # As SIGHUP does.
            assert lines[1]["event"] == "certificates reloaded"
        await one.publish("t", b"on the open connection")
        await handshake(node.port, certificates.trusting(ca=other))
        with pytest.raises(ssl.SSLCertVerificationError):
            await handshake(node.port, certificates.trusting())


async def handshake(port: int, context: ssl.SSLContext) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    with closing(writer):
        pass


def test_a_start_names_a_file_that_it_cant_use(tmp_path: Path, files: Files) -> None:
    wanted = config(tmp_path, files)
    certificates.write(tmp_path, name="other").key.replace(files.key)
    with (
        pytest.raises(TaskFailed, match=r"node\.key.*the key belongs to another certificate"),
        start_problems.told(wanted),
    ):
        Certificates(wanted.tls)


def test_a_key_that_other_users_may_read_is_a_warning(tmp_path: Path, files: Files) -> None:
    with capture_logs() as lines:
        Certificates(config(tmp_path, files).tls)
    assert not lines
    files.key.chmod(0o640)
    with capture_logs() as lines:
        Certificates(config(tmp_path, files).tls)
    assert [(line["log_level"], line["path"]) for line in lines] == [("warning", str(files.key))]


@pytest.mark.parametrize(
    ("tls", "problem"),
    [
        ({"tls_key": Path("k")}, "tls.tls_key needs tls.tls_certificate"),
        ({"zookeeper_certificate": Path("c")}, "needs tls.zookeeper_ca"),
        ({"tls_client_certificates": ClientCertificates.OPTIONAL}, "needs tls.tls_client_ca"),
    ],
)
def test_contradictions_are_named(tls: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Config(tls=TlsConfig(**tls))  # type: ignore[arg-type]

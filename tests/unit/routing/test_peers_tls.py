"""Nodes reach each other over TLS: the certificate must have the host of the URL that the node advertises."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.http.answer import NotSent
from broker.routing.peers import HttpPeers
from tests.kit import certificates
from tests.unit.routing.test_peers import Ask, Counting


@asynccontextmanager
async def served(tls: ssl.SSLContext | None) -> AsyncIterator[Counting]:
    counting = Counting()
    server = await asyncio.start_server(counting.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    counting.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield counting
    finally:
        server.close()


async def refusal(peers: HttpPeers, url: str) -> str:
    with pytest.raises(NotSent) as caught:
        await peers.exchange(url, Ask(), 5)
    await peers.close()
    return str(caught.value)


async def test_a_node_shows_its_certificate_and_checks_the_others(tmp_path: Path) -> None:
    own = certificates.write(tmp_path, "127.0.0.1")
    async with served(certificates.serving(own, ssl.CERT_REQUIRED)) as server:
        context = certificates.trusting(own)
        peers = HttpPeers(tls=lambda: context, only_tls=True)
        assert (await peers.exchange(server.url, Ask(), 5)).body == b"ok"
        stream = await peers.stream(server.url, Ask(), 5)
        assert await stream.chunk() == b"ok"
        stream.close()
        await peers.close()


async def test_the_certificate_of_another_node_is_refused(tmp_path: Path) -> None:
    """A program may write any URL into ZooKeeper, and may have the certificate of another host."""
    async with served(certificates.serving(certificates.write(tmp_path, "b.example"))) as server:
        peers = HttpPeers(tls=certificates.trusting)
        assert "not valid for '127.0.0.1'" in await refusal(peers, server.url)
        advertised = "https://b.example:8080"
        peers = HttpPeers(tls=certificates.trusting, reached_at={advertised: server.url})
        assert (await peers.exchange(advertised, Ask(), 5)).body == b"ok"
        await peers.close()
        assert server.asked == 1


async def test_a_node_with_tls_asks_no_node_without() -> None:
    async with served(None) as server:
        peers = HttpPeers(tls=certificates.trusting, only_tls=True)
        assert "not https" in await refusal(peers, server.url)
        advertised = "https://127.0.0.1:1"
        peers = HttpPeers(
            tls=certificates.trusting, only_tls=True, reached_at={advertised: server.url}
        )
        assert "not https" in await refusal(peers, advertised)
        assert server.connections == 0

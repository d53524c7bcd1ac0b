"""A simulated cluster whose clients and nodes speak TLS alone, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.config.tls_section import ClientCertificates, TlsConfig
from broker.errors import NoLeader
from broker.testing import simulated
from tests.kit import certificates
from tests.kit.http_cluster import HttpCluster

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def secured(folder: Path, *names: str) -> tuple[TlsConfig, dict[str, str]]:
    """Return a section for nodes with these names, and the settings of a client that has a certificate."""
    files = certificates.write(folder, *names)
    section = TlsConfig(
        tls_certificate=files.certificate,
        tls_key=files.key,
        tls_client_ca=files.ca,
        tls_client_certificates=ClientCertificates.REQUIRED,
        tls_peer_ca=files.ca,
    )
    own = {
        "ca_file": str(files.ca),
        "certificate_file": str(files.certificate),
        "key_file": str(files.key),
    }
    return section, own


@simulated()
async def test_any_node_forwards_to_any_leader_over_tls(tmp_path: Path) -> None:
    section, own = secured(tmp_path, *ADDRESSES)
    async with HttpCluster(3, tls=section) as cluster:
        topics = [f"t{number}" for number in range(8)]
        ways = [cluster.client(node, follow_leaders=False, **own) for node in range(3)]
        for topic in topics:
            await ways[0].create_topic(topic)
            for way in ways:
                await way.publish(topic, b"x")
        leaders = {(await ways[0].leader(topic)).url for topic in topics}
        assert len(leaders) > 1
        assert all(url.startswith("https://") for url in leaders)
        for way in ways:
            assert [len(await way.poll(topic)) for topic in topics] == [3] * len(topics)
        async with cluster.client(1, **own) as following:
            await asyncio.gather(*(following.publish(topic, b"y") for topic in topics))
        for way in ways:
            await way.close()
        assert not cluster.forwarded(0), "the requests between nodes can be read"


@simulated()
async def test_a_node_whose_certificate_has_another_name_gets_no_request(tmp_path: Path) -> None:
    section, own = secured(tmp_path, ADDRESSES[0])
    async with HttpCluster(2, tls=section) as cluster:
        async with cluster.client(0, follow_leaders=False, deadline_s=5.0, **own) as client:
            told = []
            for number in range(8):
                try:
                    await client.create_topic(f"t{number}")
                    await client.publish(f"t{number}", b"x")
                except NoLeader as error:
                    told.append(str(error))
        assert 0 < len(told) < 8
        assert all("certificate is not valid for '10.0.0.2'" in each for each in told)

"""Gateways and servers of HBase are killed under load; the checkers judge the history."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from broker.local.addresses import Sizes
from broker.local.cluster import LocalCluster
from broker.local.plan import ProcessKind
from broker.storage.hbase.gateways import GatewayAddress
from broker.testing.hbase_server import HBaseServer
from chaos.checkers import check
from tests.integration.hbase_load import Load, loaded
from tests.kit.servers import HBaseGateway

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.server("hbase")]

HOST = "127.0.0.1"


@asynccontextmanager
async def judged(
    addresses: list[GatewayAddress], *, topics: int = 3, takeovers: float = 0.02
) -> AsyncIterator[Load]:
    """Give a load whose history must be valid at its end."""
    prefix = f"kills_{secrets.token_hex(4)}_"
    async with loaded(addresses, prefix, topics=topics, takeovers=takeovers) as load:
        await load.more(100)
        yield load
        await load.finish()
        print(load.state())  # noqa: T201  Of a run that fails, or with -s.
    verdict = check(load.history.calls())
    assert verdict.is_valid, f"{verdict.violations[:5]}; {load.state()}"


@pytest.mark.nightly
async def test_a_gateway_is_killed_and_comes_back(hbase_server: HBaseServer) -> None:
    with ExitStack() as stack:
        gateways = [stack.enter_context(HBaseGateway(hbase_server)) for _ in range(2)]
        async with judged([GatewayAddress(HOST, gateway.port) for gateway in gateways]) as load:
            gateways[0].kill()
            await load.more(100)  # The other gateway serves the calls.
            gateways[1].kill()
            await asyncio.to_thread(gateways[0].start)
            await load.more(100)
            gateways[0].suspend()
            await asyncio.to_thread(gateways[1].start)
            await load.more(100)
            gateways[0].resume()
            await load.more(100)


@asynccontextmanager
async def hbase(**sizes: int) -> AsyncIterator[LocalCluster]:
    """HBase as separate processes, without a broker."""
    cluster = LocalCluster(Sizes(nodes=0, **sizes))
    try:
        await asyncio.to_thread(cluster.__enter__)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)


def gateways_of(cluster: LocalCluster) -> list[GatewayAddress]:
    return [GatewayAddress(each.place.host, each.place.port) for each in cluster.gateways]


@pytest.mark.nightly
async def test_the_region_server_is_killed_and_comes_back() -> None:
    async with hbase() as cluster, judged(gateways_of(cluster), topics=2) as load:
        server = cluster.region_servers[0]
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await load.more(50)


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_all_processes_of_hbase_are_killed_one_after_the_other() -> None:
    async with (
        hbase(region_servers=2, gateways=2) as cluster,
        judged(gateways_of(cluster), topics=8) as load,
    ):
        one, other = cluster.region_servers
        masters = [member for member in cluster.members if member.kind is ProcessKind.MASTER]
        for victims in (
            [cluster.gateways[0]],
            cluster.gateways,
            [one],
            [one, other],
            masters,
            [*masters, one, other, *cluster.gateways],
        ):
            for victim in victims:
                await asyncio.to_thread(victim.kill)
            for victim in victims:
                await asyncio.to_thread(victim.start)
            await load.more(300)
        for paused in (one, cluster.gateways[0]):
            paused.pause()
            await load.more(20)
            paused.resume()
            await load.more(300)

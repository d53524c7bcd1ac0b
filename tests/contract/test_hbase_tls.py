"""Real gateways behind TLS. HBase 2.6's own TLS is for Thrift over HTTP alone, so a process beside them ends it."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.config.sections import HBaseConfig
from broker.errors import Unavailable
from broker.storage.hbase.store import init_hbase, open_hbase
from broker.storage.table import HEAD, Space
from broker.testing.hbase_server import HBaseServer
from tests.kit import certificates

pytestmark = pytest.mark.integration


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def port(hbase_server: HBaseServer, tmp_path: Path) -> AsyncIterator[int]:
    """The port of a process that ends TLS, asks for certificates, and passes all on to a real gateway."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams = await asyncio.open_connection("127.0.0.1", hbase_server.thrift2_port)
        await asyncio.gather(pass_on(reader, streams[1]), pass_on(streams[0], writer))

    context = certificates.serving(certificates.write(tmp_path), ssl.CERT_REQUIRED)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_rows_are_written_and_read_over_tls(port: int, tmp_path: Path) -> None:
    config = HBaseConfig(
        hbase_gateways=(f"127.0.0.1:{port}",),
        hbase_namespace=f"n{secrets.token_hex(4)}",
        hbase_regions=1,
    )
    context = certificates.trusting(certificates.write(tmp_path, name="broker"))
    await init_hbase(config, lambda: context)
    table = await open_hbase(config, SystemClock(), tls=lambda: context)
    value = secrets.token_bytes(300_000)
    assert await table.change(Space.RECORDS, b"k", None, {HEAD: value})
    found = await table.get(Space.RECORDS, b"k", [HEAD])
    assert found[HEAD].value == value
    await table.close()


async def test_a_gateway_of_another_ca_is_not_asked(port: int) -> None:
    config = HBaseConfig(hbase_gateways=(f"127.0.0.1:{port}",), hbase_call_s=0.3)
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await open_hbase(config, SystemClock(), tls=ssl.create_default_context)

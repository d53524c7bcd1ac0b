"""Tephra's Thrift service over TLS: the same frames, the same bounds, the same end."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit import certificates
from tests.kit.serving import eventually, quiet_port
from tests.unit.tephra.clients import Client, connect
from tests.unit.tephra.test_tephra_server import World
from tests.unit.tephra.test_tephra_service import message


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World()
    world.server.tls = certificates.serving(certificates.write(tmp_path))
    await world.server.start("127.0.0.1", quiet_port())
    yield world
    for client in world.clients:
        client.close()
    await world.server.close(1)


async def over_tls(world: World, context: ssl.SSLContext) -> Client:
    streams = await asyncio.open_connection("127.0.0.1", world.server.port, ssl=context)
    client = Client(*streams)
    world.clients.append(client)
    return client


async def test_calls_are_answered_in_order(world: World) -> None:
    client = await over_tls(world, certificates.trusting())
    world.script.answers = [2, 3]
    client.send(message("invalidTxSize"), message("invalidTxSize"))
    assert (await client.answer("invalidTxSize")).success == 2
    assert (await client.answer("invalidTxSize")).success == 3


async def test_a_client_without_tls_gets_no_answer(world: World) -> None:
    client = await connect(world.server.port)
    world.clients.append(client)
    client.send(message("invalidTxSize"))
    told = await client.reader.read()
    assert b"invalidTxSize" not in told
    assert not world.script.calls


async def test_the_end_closes_idle_connections(world: World) -> None:
    client = await over_tls(world, certificates.trusting())
    world.script.answers = [2]
    client.send(message("invalidTxSize"))
    await client.answer("invalidTxSize")
    world.server.begin_drain()
    assert await client.ended()
    await eventually(lambda: not world.server.open, lambda: len(world.server.open))

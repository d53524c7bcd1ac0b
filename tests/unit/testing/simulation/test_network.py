"""Connections in memory: bytes, pauses, cuts, resets, ends; and processes that pause or die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.testing.simulation.hosts import SimulatedProcess
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.network import Network
from broker.testing.simulation.world import in_world
from broker.testing.virtual_time import pass_time

ADDRESS = ("10.0.0.1", 80)


class Recording(asyncio.Protocol):
    """A protocol that records its calls, and echoes bytes if ``echoes``."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.transport: asyncio.Transport
        self.data = b""
        self.calls: list[str] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self._echoes = echoes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()
        if self._echoes:
            self.transport.write(data)

    def eof_received(self) -> None:
        self.calls.append("end")

    def pause_writing(self) -> None:
        self.calls.append("full")

    def resume_writing(self) -> None:
        self.calls.append("room")

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(error)


class Pair:
    """A listening process on one machine, and one connection to it from another."""

    def __init__(self, loop: SimLoop) -> None:
        self.network: Network = loop.network
        self.network.name(ADDRESS[0], "server")
        self.process = SimulatedProcess("server.1", "server")
        self.server: Recording

    async def connect(self, *, echoes: bool = True) -> Recording:
        async def serve() -> None:
            def made() -> Recording:
                self.server = Recording(echoes=echoes)
                return self.server

            await asyncio.get_running_loop().create_server(made, *ADDRESS)

        await self.process.begin(serve())
        with self.network.calling_from("client"):
            _, client = await asyncio.get_running_loop().create_connection(Recording, *ADDRESS)
        return client


def world(test: Callable[[Pair], Awaitable[None]]) -> Callable[[], None]:
    async def main(loop: SimLoop, _: object) -> None:
        await test(Pair(loop))

    def run() -> None:
        in_world(1, main)

    run.__name__ = test.__name__
    return run


@world
async def test_bytes_arrive_in_order_after_a_delay(pair: Pair) -> None:
    client = await pair.connect()
    began = asyncio.get_running_loop().time()
    for number in range(100):
        client.transport.write(b"%02d" % number)
    while len(client.data) < 200:
        client.changed.clear()
        await client.changed.wait()
    assert client.data == b"".join(b"%02d" % number for number in range(100))
    assert 0.001 < asyncio.get_running_loop().time() - began < 0.01


@world
async def test_a_closed_connection_ends_at_the_other_side(pair: Pair) -> None:
    client = await pair.connect(echoes=False)
    client.transport.write(b"last")
    client.transport.close()
    assert await client.ended is None
    assert await pair.server.ended is None
    assert (pair.server.data, pair.server.calls) == (b"last", ["end"])


@world
async def test_a_writer_waits_for_a_reader_that_does_not_read(pair: Pair) -> None:
    client = await pair.connect(echoes=False)
    await pass_time(0.1)
    pair.server.transport.pause_reading()
    client.transport.write(b"x" * 1_000_000)
    await pass_time(10)
    assert (client.calls, pair.server.data) == (["full"], b"")
    pair.server.transport.resume_reading()
    await pass_time(1)
    assert client.calls == ["full", "room"]
    assert len(pair.server.data) == 1_000_000


@world
async def test_a_cut_delays_the_bytes_of_one_way_and_loses_none(pair: Pair) -> None:
    client = await pair.connect()
    pair.network.cut("server", "client")
    client.transport.write(b"hello")
    await pass_time(60)
    assert (pair.server.data, client.data) == (b"hello", b"")
    pair.network.mend("server", "client")
    await pass_time(1)
    assert client.data == b"hello"


@world
async def test_a_cut_loses_a_reset_and_leaves_the_other_side_half_open(pair: Pair) -> None:
    client = await pair.connect()
    pair.network.cut("client", "server")
    client.transport.abort()
    await pass_time(60)
    assert client.ended.done()
    assert not pair.server.ended.done()
    pair.network.heal()
    pair.server.transport.write(b"are you there?")
    assert isinstance(await pair.server.ended, ConnectionResetError)


@world
async def test_a_cut_prevents_connections_until_it_ends(pair: Pair) -> None:
    await pair.connect()
    pair.network.cut("server", "client")
    with pair.network.calling_from("client"):
        connecting = asyncio.ensure_future(
            asyncio.get_running_loop().create_connection(Recording, *ADDRESS)
        )
    await pass_time(5)
    assert not connecting.done()
    pair.network.heal()
    await asyncio.wait_for(connecting, 10)


@world
async def test_a_process_gets_all_bytes_after_a_pause(pair: Pair) -> None:
    client = await pair.connect()
    pair.process.pause()
    client.transport.write(b"one")
    await pass_time(30)
    client.transport.write(b"two")
    await pass_time(30)
    assert client.data == b""
    pair.process.resume()
    await pass_time(1)
    assert client.data == b"onetwo"


@world
async def test_a_dead_process_runs_no_step_and_its_connections_are_reset(pair: Pair) -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cleaned up")

    client = await pair.connect()
    pair.process.begin(work())
    await pass_time(1)
    pair.process.die()
    pair.network.stop_process(pair.process)
    assert isinstance(await client.ended, ConnectionResetError)
    await pass_time(60)
    assert ends == []
    with pytest.raises(ConnectionRefusedError):
        await asyncio.get_running_loop().create_connection(Recording, *ADDRESS)


@world
async def test_a_machine_that_is_down_answers_nothing_until_it_is_back(pair: Pair) -> None:
    client = await pair.connect()
    pair.process.die()
    pair.network.stop_process(pair.process, silently=True)
    client.transport.write(b"hello?")
    await pass_time(60)
    assert not client.ended.done()
    pair.network.start_machine("server")
    client.transport.write(b"hello?")
    assert isinstance(await client.ended, ConnectionResetError)


@world
async def test_a_slow_way_loses_segments_and_sends_them_again(pair: Pair) -> None:
    client = await pair.connect(echoes=False)
    pair.network.slow("client", "server", 0.05, 0.5)
    for number in range(50):
        client.transport.write(b"%02d" % number)
    await pass_time(60)
    assert pair.server.data == b"".join(b"%02d" % number for number in range(50))
    assert pair.network.happened["segments_lost"] > 5


@world
async def test_stranded_bytes_arrive_after_the_bytes_of_a_later_connection(
    pair: Pair,
) -> None:
    client = await pair.connect(echoes=False)
    await pass_time(0.1)
    stranded = pair.server
    (end,) = pair.network.strand("client", "server")
    client.transport.write(b"first")
    await pass_time(1)
    pair.network.break_off([end])
    assert isinstance(await client.ended, ConnectionResetError)
    with pair.network.calling_from("client"):
        _, again = await asyncio.get_running_loop().create_connection(Recording, *ADDRESS)
    again.transport.write(b"again")
    await pass_time(60)
    assert (pair.server.data, stranded.data) == (b"again", b"")
    assert not stranded.ended.done()
    pair.network.land([end])
    await pass_time(1)
    assert stranded.data == b"first"


@world
async def test_after_healing_stranded_bytes_arrive(pair: Pair) -> None:
    client = await pair.connect()
    pair.network.strand("client", "server")
    client.transport.write(b"hello")
    await pass_time(60)
    assert pair.server.data == b""
    pair.network.heal()
    await pass_time(1)
    assert client.data == b"hello"

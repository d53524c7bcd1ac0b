"""Links through the real Toxiproxy: a cut holds data back, and healing releases it."""

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Self

import pytest

from broker.local.servers.process import HOST
from chaos import toxiproxy
from chaos.links import Link, Links
from chaos.packets import Packets, PacketsMissing
from chaos.proxies import proxied
from chaos.toxiproxy import Proxy, Toxic, Toxiproxy, ToxiproxyFailed
from chaos.toxiproxy_server import ToxiproxyServer
from tests.kit.fixtures import require

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

DEADLINE_S = 20.0
SILENCE_S = 0.3
ANSWER_S = 3.0
LINK = Link("broker-1", "broker-2")


@pytest.fixture(scope="module")
def server() -> Iterator[ToxiproxyServer]:
    require("toxiproxy")
    with ToxiproxyServer() as server:
        yield server


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(b"got " + line)
    except ConnectionError:
        pass
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.fixture
async def links(server: ToxiproxyServer) -> AsyncIterator[Links]:
    """One link to an echo server."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        await echo(reader, writer)

    listening = await asyncio.start_server(serve, HOST, 0)
    port = listening.sockets[0].getsockname()[1]
    proxy = Toxiproxy(HOST, server.port)
    yield proxied(server, [LINK], {"broker-2": f"{HOST}:{port}"})
    # End every remaining connection of the echo server.
    proxy.enable(LINK.proxy, enabled=False)
    listening.close()
    await asyncio.gather(*(task for task in serving if task is not None))
    proxy.enable(LINK.proxy, enabled=True)


class Talk:
    """A connection over the link."""

    def __init__(self, links: Links) -> None:
        self.host, _, self.port = links.addresses[LINK].partition(":")

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self.host, int(self.port))
        return self

    async def __aexit__(self, *error: object) -> None:
        await closed(self.writer)

    def say(self, line: bytes) -> None:
        self.writer.write(line + b"\n")

    async def hears(self, line: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            assert await self.reader.readline() == b"got " + line + b"\n"

    async def hears_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await self.reader.readexactly(1)

    async def ends(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                assert await self.reader.read() == b""


@pytest.mark.parametrize("direction", ["both", "up", "down"])
async def test_a_cut_link_is_silent_and_releases_its_data_when_healed(
    links: Links, direction: str
) -> None:
    async with Talk(links) as talk:
        talk.say(b"one")
        await talk.hears(b"one")
        await links.cut([LINK], direction)  # type: ignore[arg-type]
        talk.say(b"two")
        await talk.hears_nothing()
        assert await links.spoilt() != {}
        await links.heal([LINK], direction)  # type: ignore[arg-type]
        assert await links.spoilt() == {}
        await talk.hears(b"two")
        talk.say(b"three")
        await talk.hears(b"three")


async def test_drop_ends_connections_and_new_ones_can_be_opened(links: Links) -> None:
    async with Talk(links) as talk:
        talk.say(b"one")
        await talk.hears(b"one")
        await links.drop([LINK])
        await talk.ends()
    async with Talk(links) as talk:
        talk.say(b"again")
        await talk.hears(b"again")


async def test_a_closed_link_refuses_until_it_is_opened(links: Links) -> None:
    await links.close([LINK])
    with pytest.raises(ConnectionError):
        async with Talk(links):
            pass
    assert await links.spoilt() == {LINK.proxy: ["disabled"]}
    await links.reset()
    assert await links.spoilt() == {}
    async with Talk(links) as talk:
        talk.say(b"open")
        await talk.hears(b"open")


async def test_a_toxic_replaces_one_of_the_same_name(links: Links) -> None:
    for delay in (1, 2):
        await links.spoil([LINK], [Toxic("latency", "downstream", {"latency": delay})])
    assert await links.spoilt() == {LINK.proxy: ["latency_downstream"]}
    await links.reset()


async def test_a_toxiproxy_that_hangs_is_restarted(
    links: Links, server: ToxiproxyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time-out also holds for the restarted Toxiproxy, so it must suit a slow machine.
    monkeypatch.setattr(toxiproxy, "TIMEOUT_S", ANSWER_S)
    await links.cut([LINK])
    server.suspend()
    assert await links.spoilt() == {}
    assert links.revived == 1
    async with Talk(links) as talk:
        talk.say(b"again")
        await talk.hears(b"again")


def test_packets_to_a_port_are_lost_until_it_is_healed() -> None:
    if shutil.which("nft") is None or os.geteuid():
        with pytest.raises(PacketsMissing, match="nft"):
            Packets()
        return
    packets = Packets()
    with socket.create_server((HOST, 0)) as listening:
        address = listening.getsockname()
        packets.lose([address[1]], 99, "up")
        try:
            # One or two of a hundred connections may succeed at once.
            with pytest.raises(TimeoutError):
                connect(address, times=100)
            assert packets.lost() > 0
        finally:
            packets.heal()
        connect(address, timeout_s=DEADLINE_S)


def connect(address: tuple[str, int], *, times: int = 1, timeout_s: float = SILENCE_S) -> None:
    """Open connections, one after another. Raises TimeoutError."""
    for _ in range(times):
        socket.create_connection(address, timeout=timeout_s).close()


def test_a_refusal_by_toxiproxy_raises(server: ToxiproxyServer) -> None:
    proxy = Toxiproxy(HOST, server.port)
    with pytest.raises(ToxiproxyFailed, match="404"):
        proxy.enable("nobody", enabled=False)
    with pytest.raises(ToxiproxyFailed, match="404"):
        proxy.add("nobody", Toxic("none-such", "upstream", {}))
    with pytest.raises(ToxiproxyFailed):
        Toxiproxy(HOST, 1).populate([Proxy("a", f"{HOST}:0", f"{HOST}:1")])


def test_a_status_that_the_package_takes_for_success_is_a_failure(server: ToxiproxyServer) -> None:
    with socket.create_server((HOST, 0)) as taken:
        address = f"{HOST}:{taken.getsockname()[1]}"
        with pytest.raises(ToxiproxyFailed, match="500"):
            Toxiproxy(HOST, server.port).populate([Proxy("taken", address, f"{HOST}:1")])


def test_one_process_drives_two_toxiproxies_past_a_proxy_of_the_environment(
    server: ToxiproxyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://{HOST}:1")
    monkeypatch.setenv("no_proxy", "")
    with ToxiproxyServer() as other:
        first, second = (Toxiproxy(HOST, one.port) for one in (server, other))
        second.populate([Proxy("second", f"{HOST}:0", f"{HOST}:1")])
        assert second.toxics() == {"second": []}
        assert "second" not in first.toxics()

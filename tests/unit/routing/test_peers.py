import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple

import pytest

from broker.http.answer import NoAnswer, NotSent
from broker.routing import peers as peers_module
from broker.routing.peers import HttpPeers, whole
from broker.testing.virtual_time import VirtualLoop, pass_time, simulate
from tests.kit.serving import eventually


class Ask(NamedTuple):
    method: str = "GET"
    path: str = "/"
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


class Counting:
    """A server that counts connections and requests, and answers while ``may_answer`` is set."""

    def __init__(self) -> None:
        self.connections = 0
        self.closed = 0
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""

    async def has_got(self, count: int) -> None:
        """Return once so many requests have come."""
        await eventually(lambda: self.asked >= count, lambda: f"only {self.asked} have come")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                await self.may_answer.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed += 1
            writer.close()


@asynccontextmanager
async def served() -> AsyncIterator[Counting]:
    counting = Counting()
    server = await asyncio.start_server(counting.serve, "127.0.0.1", 0)
    counting.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield counting
    finally:
        server.close()  # From Python 3.12.1 on, wait_closed waits for the connections, which peers keeps.


@pytest.fixture
async def peers() -> AsyncIterator[HttpPeers]:
    peers = HttpPeers()
    yield peers
    await peers.close()


async def test_a_connection_is_used_again(peers: HttpPeers) -> None:
    async with served() as server:
        for _ in range(5):
            assert (await peers.exchange(server.url, Ask(), 5)).body == b"ok"
        relay = await peers.stream(server.url, Ask(), 5)
        assert (await whole(relay, 5)).body == b"ok"
        assert (await whole(await peers.stream(server.url, Ask(), 5), 5)).body == b"ok"
        assert server.connections == 2
        await peers.close()


async def test_an_answer_that_is_too_large_counts_as_none(
    peers: HttpPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "REPLY_BYTES_MAX", 1)
    async with served() as server:
        with pytest.raises(NoAnswer, match="more than 1 bytes"):
            await whole(await peers.stream(server.url, Ask(), 5), 5)
        await peers.close()


@pytest.mark.parametrize("size", [1, 64, 65, 1_000])
@pytest.mark.parametrize("joined_max", [0, 10_000])
async def test_the_pieces_of_an_answer_are_joined(
    size: int, joined_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pieces:
        status, headers, ended = 200, MappingProxyType({}), False

        def __init__(self) -> None:
            self.left = [b"%d." % i for i in range(size)]
            self.is_closed = False

        async def chunk(self, silence_s: float | None = None) -> bytes:
            return self.left.pop(0) if self.left else b""

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(peers_module, "JOIN_BYTES_MAX", joined_max)
    monkeypatch.setattr(peers_module, "BLOCK_BYTES", 150)
    relay = Pieces()
    assert (await whole(relay, 5)).body == b"".join(b"%d." % i for i in range(size))
    assert relay.is_closed


async def test_concurrent_requests_have_connections_of_their_own(peers: HttpPeers) -> None:
    async with served() as server:
        await asyncio.gather(*(peers.exchange(server.url, Ask(), 5) for _ in range(8)))
        await asyncio.gather(*(peers.exchange(server.url, Ask(), 5) for _ in range(8)))
        assert server.connections == 8
        await peers.close()


async def test_the_number_of_connections_is_bounded(peers: HttpPeers, monkeypatch) -> None:
    monkeypatch.setattr(peers_module, "CONNECTIONS_MAX", 2)
    async with served() as server:
        server.may_answer.clear()
        busy = [asyncio.ensure_future(peers.exchange(server.url, Ask(), 5)) for _ in range(2)]
        await server.has_got(2)
        with pytest.raises(NotSent, match="too many"):
            await peers.exchange(server.url, Ask(), 0.05)
        server.may_answer.set()
        await asyncio.gather(*busy)
        assert (await peers.exchange(server.url, Ask(), 5)).status == 200
        assert server.connections == 2
        await peers.close()


async def test_a_read_waits_only_briefly_for_a_connection(
    peers: HttpPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "STREAMS_MAX", 1)
    monkeypatch.setattr(peers_module, "CONNECT_S", 0.05)
    async with served() as server:
        server.may_answer.clear()
        waiting = asyncio.ensure_future(peers.stream(server.url, Ask(), 60))
        await server.has_got(1)
        async with asyncio.timeout(20):
            with pytest.raises(NotSent, match="too many"):
                await peers.stream(server.url, Ask(), 60)
        server.may_answer.set()
        assert (await whole(await waiting, 5)).body == b"ok"
        await peers.close()


def test_opening_a_connection_uses_up_the_time_of_a_request(monkeypatch) -> None:
    timeouts_s: list[float] = []

    class Silent:
        requests_in_flight = 0
        usable = False

        async def stream(self, ask: Ask, timeout_s: float) -> None:
            timeouts_s.append(timeout_s)
            raise NoAnswer("silence")

    async def open_connection(*_: object, **__: object) -> Silent | None:
        return await pass_time(1.5, Silent())

    async def main(_: VirtualLoop) -> None:
        with pytest.raises(NoAnswer):
            await HttpPeers().stream("http://node", Ask(), 5.0)

    monkeypatch.setattr(peers_module, "open_connection", open_connection)
    simulate(main)
    assert timeouts_s == [3.5]


async def test_a_connection_that_was_idle_for_too_long_is_not_used_again() -> None:
    async with served() as server:
        peers = HttpPeers(idle_s_max=-1)
        for _ in range(2):
            await peers.exchange(server.url, Ask(), 5)
        assert server.connections == 2
        await peers.close()


async def test_a_cancelled_request_gives_its_place_back(peers: HttpPeers, monkeypatch) -> None:
    monkeypatch.setattr(peers_module, "CONNECTIONS_MAX", 1)
    async with served() as server:
        await peers.exchange(
            server.url, Ask(), 5
        )  # So that the next request finds an open connection.
        server.may_answer.clear()
        with pytest.raises(NoAnswer, match="no answer in"):
            await peers.exchange(server.url, Ask(), 0.05)
        given_up = asyncio.ensure_future(peers.exchange(server.url, Ask(), 5))
        await server.has_got(3)
        given_up.cancel()
        await asyncio.wait((given_up,))
        server.may_answer.set()
        assert (await peers.exchange(server.url, Ask(), 5)).status == 200
        await peers.close()


async def test_closing_ends_requests_in_flight() -> None:
    async with served() as server:
        peers = HttpPeers()
        server.may_answer.clear()
        asking = asyncio.ensure_future(peers.exchange(server.url, Ask(), 5))
        await server.has_got(1)
        await peers.close()
        with pytest.raises(NoAnswer):
            await asking
        server.may_answer.set()


async def test_connections_to_a_node_that_is_gone_are_closed_after_their_requests(
    peers: HttpPeers,
) -> None:
    async with served() as gone, served() as there:
        for server in (gone, there):
            await asyncio.gather(*(peers.exchange(server.url, Ask(), 5) for _ in range(3)))
            await whole(await peers.stream(server.url, Ask(), 5), 5)
        gone.may_answer.clear()
        asking = asyncio.ensure_future(peers.exchange(gone.url, Ask(), 5))
        await gone.has_got(5)
        peers.forget_others({there.url})
        await eventually(lambda: gone.closed == 3, lambda: f"{gone.closed} were closed")
        assert not asking.done()
        gone.may_answer.set()
        assert (await asking).body == b"ok"
        await eventually(lambda: gone.closed == 4, lambda: f"{gone.closed} were closed")
        assert (await peers.exchange(gone.url, Ask(), 5)).body == b"ok"
        assert (await peers.exchange(there.url, Ask(), 5)).body == b"ok"
        assert (there.connections, there.closed) == (4, 0)
        await peers.close()


async def test_closing_ends_requests_to_nodes_that_are_gone() -> None:
    async with served() as server:
        peers = HttpPeers()
        server.may_answer.clear()
        asking = asyncio.ensure_future(peers.exchange(server.url, Ask(), 5))
        await server.has_got(1)
        peers.forget_others(())
        await peers.close()
        with pytest.raises(NoAnswer, match="this node closed"):
            await asking
        server.may_answer.set()


async def test_a_node_may_be_reached_at_another_address_than_its_url() -> None:
    async with served() as server:
        peers = HttpPeers(reached_at={"http://127.0.0.1:1": server.url})
        assert (await peers.exchange("http://127.0.0.1:1", Ask(), 5)).body == b"ok"
        assert (await peers.exchange(server.url, Ask(), 5)).body == b"ok"
        assert server.connections == 2
        await peers.close()

import asyncio
import socket
from contextlib import ExitStack

import pytest
from aiohttp import web

from broker.client import Client
from broker.http import drain
from broker.http.server import Server, listen_at
from broker.model import Poll
from broker.wire import avro
from tests.kit.bench import settle
from tests.kit.serving import Broker, Http, RawHttp, eventually, topic_path

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
OURS = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nUser-Agent: broker-client\r\n\r\n"
LONG_S = 1000.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut no client of a busy machine before it has read its last answer."""
    monkeypatch.setattr(drain, "LINGER_S", 60.0)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut clients that stay soon. Their small answers are in the kernel, which keeps them."""
    monkeypatch.setattr(drain, "LINGER_S", 0.05)


def is_last_words(data: bytes) -> bool:
    """Return whether these bytes are the answer that an idle connection of our client gets without a request."""
    head, end, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return (
        first.partition(b" ")[2] == b"408 Request Timeout"
        and {b"Broker-Outcome: refused", b"Content-Length: 0", b"Connection: close"} <= set(lines)
        and (end, body) == (b"\r\n\r\n", b"")
    )


async def pinged(raw: RawHttp, request: bytes) -> str | None:
    await raw.send(request)
    reply = await raw.reply()
    assert reply.body == b"OK.\n"
    connection: str | None = reply.headers.get("Connection")
    return connection


async def test_the_client_gets_a_408_when_the_node_stops_reading(
    broker: Broker, http: Http
) -> None:
    async with RawHttp(http.port) as raw:
        await pinged(raw, OURS)
        (connection,) = broker.server.open
        broker.server.begin_drain(LONG_S)
        await eventually(lambda: connection.dismissed, lambda: "it was not dismissed")
        # This request crosses the 408, and gets no answer.
        await raw.send(OURS)
        async with asyncio.timeout(30):
            assert is_last_words(await raw.rest())
        assert broker.server.connections == 1
    async with asyncio.timeout(30):
        await broker.server.quiet()
    assert broker.server.busy == 0


async def test_other_clients_are_still_answered(broker: Broker, http: Http) -> None:
    async with RawHttp(http.port) as raw:
        assert await pinged(raw, PING) is None
        broker.server.begin_drain(LONG_S)
        quiet = asyncio.ensure_future(broker.server.quiet())
        assert await pinged(raw, PING) == "close"
        async with asyncio.timeout(30):
            assert await raw.rest() == b""
    async with asyncio.timeout(30):
        await quiet


async def test_an_idle_connection_is_closed_after_a_while(broker: Broker, http: Http) -> None:
    async with RawHttp(http.port) as raw:
        await pinged(raw, PING)
        broker.server.begin_drain(0.01)
        async with RawHttp(http.port) as new, asyncio.timeout(30):
            assert await raw.rest() == b""
            assert await new.rest() == b""
            await broker.server.quiet()


async def test_a_request_that_has_begun_to_arrive_is_answered(broker: Broker, http: Http) -> None:
    async with RawHttp(http.port) as raw:
        await pinged(raw, PING)
        broker.server.begin_drain(0.05)
        await raw.send(PING[:1])
        await eventually(lambda: broker.server.heads, lambda: "the byte was not read")
        assert await pinged(raw, PING[1:]) == "close"


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_ignores_the_drain_is_cut(broker: Broker, http: Http) -> None:
    async with RawHttp(http.port) as raw:
        await pinged(raw, OURS)
        broker.server.begin_drain(LONG_S)
        async with asyncio.timeout(30):
            await broker.server.quiet()
        assert broker.server.connections == 0


@pytest.mark.usefixtures("impatient")
async def test_bytes_in_the_socket_are_read_before_the_close(broker: Broker, http: Http) -> None:
    with socket.create_connection(("127.0.0.1", http.port)) as plain:
        await eventually(lambda: broker.server.connections, lambda: "it was not accepted")
        # The loop has no iteration in between. So the timer is due when the bytes have arrived and are not read yet.
        plain.sendall(PING)
        broker.server.begin_drain(0.0)
        async with asyncio.timeout(30):
            await broker.server.quiet()
        assert plain.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    ("agent", "patience_s", "end"),
    [("other", 0.01, False), ("broker-client", LONG_S, True)],
    ids=["other", "ours"],
)
async def test_a_long_answer_that_began_before_the_drain_is_no_reason_to_stay(
    broker: Broker, http: Http, agent: str, patience_s: float, end: bool
) -> None:
    # A connection that stayed idle would be the last to end.
    headers = {"Content-Type": "text/plain", "Connection": "close"}
    for _ in range(20):
        await http("POST", topic_path("t", "publish"), b"x" * 900_000, headers)
    async with RawHttp(http.port) as raw:
        everything = avro.encode_poll(Poll())
        head = (
            f"POST {topic_path('t', 'poll')} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {agent}\r\n"
        )
        length = f"Content-Type: avro/binary\r\nContent-Length: {len(everything)}\r\n\r\n"
        await raw.send((head + length).encode() + everything)
        await eventually(lambda: broker.server.busy, lambda: "it was not begun")
        broker.server.begin_drain(patience_s)
        reply = await raw.reply()
        assert len(reply.body) > 18_000_000
        assert "Connection" not in reply.headers
        async with asyncio.timeout(30):
            rest = await raw.rest()
            assert is_last_words(rest) if end else rest == b""
    async with asyncio.timeout(30):
        await broker.server.quiet()


async def test_the_last_answer_arrives_despite_bytes_behind_its_request(
    broker: Broker, http: Http
) -> None:
    broker.server.begin_drain(LONG_S)
    loop, told = asyncio.get_running_loop(), b""
    with socket.socket() as one:
        one.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_connect(one, ("127.0.0.1", http.port))
            # More than the node reads at once. A close with unread bytes would make the kernel reset the connection.
            sending = asyncio.ensure_future(loop.sock_sendall(one, PING * 100_000))
            while piece := await loop.sock_recv(one, 1 << 16):
                told += piece
            await sending
    assert told.count(b"HTTP/1.1 200") == told.count(b"Connection: close") == 1


@pytest.mark.parametrize("iterations", range(6))
@pytest.mark.usefixtures("impatient")
async def test_a_client_that_is_being_accepted_when_the_listener_closes_is_answered(
    broker: Broker, http: Http, iterations: int
) -> None:
    """The listener closes ``iterations`` iterations of the loop after the kernel has the connection and its request."""
    with socket.create_connection(("127.0.0.1", http.port), timeout=30) as late:
        late.sendall(PING)
        await settle(iterations)
        await broker.server.close()
        assert late.recv(12) == b"HTTP/1.1 200"


async def test_an_end_that_is_cancelled_leaves_no_accepted_connection_open() -> None:
    async def serve(_: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError("no request was sent")

    class Protocols(web.Server):
        def __call__(self) -> web.RequestHandler:
            ending.cancel()
            return super().__call__()

    protocols = Protocols(serve)
    runner = web.ServerRunner(protocols)
    await runner.setup()
    listening = listen_at("127.0.0.1", 0)
    site = web.SockSite(runner, listening)
    await site.start()
    with ExitStack() as sockets:
        address = listening.getsockname()
        waiting = [sockets.enter_context(socket.create_connection(address, 30)) for _ in range(3)]
        ending = asyncio.ensure_future(drain.stop_accepting(listening, site, protocols))
        await asyncio.wait((ending,))
        await settle(5)
        assert ending.cancelled()
        await runner.cleanup()
        await settle(5)
        assert [each.recv(1) for each in waiting] == [b""] * 3


def unfinished() -> bytes:
    path = topic_path("t", "publish")
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n".encode()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
async def test_a_client_that_reconnects_does_not_prevent_the_end(
    broker: Broker, http: Http
) -> None:
    """Clients that know one node only. At any time one of them waits for an answer."""
    broker.server.begin_drain(LONG_S)
    with ExitStack() as sockets:
        under_way = [await arrived(broker, sockets, http.port)]
        closing = asyncio.ensure_future(broker.server.close(LONG_S))
        for _ in range(1000):
            try:
                under_way.append(await arrived(broker, sockets, http.port))
            except ConnectionRefusedError:
                break
            await finished(under_way.pop(0))
        else:
            pytest.fail("it accepts for ever")
        for one in under_way:
            await finished(one)
        async with asyncio.timeout(30):
            await closing


async def arrived(broker: Broker, sockets: ExitStack, port: int) -> socket.socket:
    """Send a request without its last byte. Raises ConnectionRefusedError."""
    one = sockets.enter_context(socket.socket())
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    before = broker.server.busy
    async with asyncio.timeout(30):
        await loop.sock_connect(one, ("127.0.0.1", port))
        await loop.sock_sendall(one, unfinished())
        await eventually(lambda: broker.server.busy > before, lambda: broker.server.busy)
    return one


async def finished(one: socket.socket) -> None:
    """Send the rest of a request and read its answer."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        await loop.sock_sendall(one, b"x")
        assert (await loop.sock_recv(one, 12)) == b"HTTP/1.1 200"


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_connects_until_the_end_is_answered(broker: Broker, http: Http) -> None:
    broker.server.begin_drain(LONG_S)
    with socket.create_connection(("127.0.0.1", http.port)) as late:  # The kernel has answered it.
        late.sendall(PING)
        await broker.server.close()
        assert late.recv(12) == b"HTTP/1.1 200"


@pytest.mark.slow
@pytest.mark.parametrize("coalesce", [True, False])
async def test_no_request_of_our_client_is_lost_or_unknown_through_drains(
    broker: Broker, coalesce: bool
) -> None:
    """Two servers of the same topics restart in turn, during publishes without keys and polls."""
    ways = [Server(broker.dispatch, broker.config, broker.clock) for _ in range(2)]
    for way in ways:
        await way.start("127.0.0.1", 0)
    ports = [way.port for way in ways]
    drained, acknowledged = asyncio.Event(), 0
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    async with Client(urls, namespace="default", coalesce=coalesce) as client:

        async def publish() -> None:
            nonlocal acknowledged
            while not drained.is_set():
                await client.publish("t", b"x")
                acknowledged += 1

        async def read() -> None:
            while not drained.is_set():
                await client.poll("t", limit=1, wait_s=0.1)

        async with asyncio.TaskGroup() as tasks:  # The first error of one ends them all.
            for _ in range(20):
                tasks.create_task(publish())
            for _ in range(5):
                tasks.create_task(read())
            for turn in range(10):
                before, at = acknowledged, turn % 2
                # Restarted only when the publishers have settled down.
                await eventually(lambda: acknowledged > before + 100, lambda: acknowledged)  # noqa: B023
                ways[at].begin_drain(0.1)
                await ways[at].close()
                ways[at] = Server(broker.dispatch, broker.config, broker.clock)
                await ways[at].start("127.0.0.1", ports[at])
            drained.set()
        assert len(await client.poll("t")) == acknowledged
    for way in ways:
        await way.close()

import asyncio
import ssl
from pathlib import Path

import pytest

from broker.client import Client, Settings, SyncClient, protocol
from broker.client import transport as transports
from broker.client.connection import ClientConnection
from broker.client.node_directory import NodeDirectory
from broker.client.transport import HttpTransport
from broker.errors import OutcomeUnknown, Unavailable
from broker.http import outbound
from broker.http.answer import NotSent
from broker.model import Poll, PublishRequest, TopicId

TOPIC = TopicId("ns1", "t1")
TLS = Path(__file__).parents[2] / "data" / "tls"
"""A certificate for 127.0.0.1 that only these tests trust."""
PUBLISH = protocol.publish(TOPIC, PublishRequest(None, [b"a"]))
POLL = protocol.poll(TOPIC, Poll())
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.fixture
async def transport(raw_broker):
    transport = HttpTransport(Settings(url=raw_broker.url, headers=(("X-Who", "me"),)))
    yield transport
    await transport.close()


@pytest.fixture
async def silence():
    """An answer that never comes."""
    over = asyncio.Event()

    async def answer():
        await over.wait()
        return b""

    yield answer
    over.set()


async def whole(transport, request):
    async with transport.stream(request, 60) as reply:
        return reply.status, b"".join([chunk async for chunk in reply.chunks])


async def test_headers_with_line_breaks_are_refused():
    for header in (("X-Who", "me\r\nX-Other: you"), ("X\nWho", "me"), ("X-Who", "me\r")):
        with pytest.raises(ValueError, match="line break"):
            HttpTransport(Settings(headers=(header,)))


async def test_writes_one_after_the_other_share_a_connection(transport, raw_broker):
    for _ in range(3):
        assert (await transport.send(PUBLISH, 5)).status == 200
    assert raw_broker.connections == 1
    assert b"X-Who: me\r\n" in raw_broker.requests[0]


@pytest.mark.parametrize(
    ("deadline_s", "several", "timeout"),
    [
        (30.0, False, None),
        (5.0, False, b"4.5"),
        (30.0, True, b"27"),
        (3600.0, True, b"300"),
    ],
)
async def test_the_request_timeout_header_follows_the_deadline(
    raw_broker, deadline_s, several, timeout
):
    url = f"{raw_broker.url},{raw_broker.url}/" if several else raw_broker.url
    transport = HttpTransport(Settings(url=url, deadline_s=deadline_s))
    await transport.send(PUBLISH, deadline_s)
    (request,) = raw_broker.requests
    head = dict(line.split(b": ") for line in request.split(b"\r\n\r\n")[0].split(b"\r\n")[1:])
    assert head.get(b"Request-Timeout") == timeout
    await transport.close()


async def test_concurrent_writes_use_own_connections_up_to_a_bound(raw_broker):
    transport = HttpTransport(Settings(url=raw_broker.url, connections_max=3))
    replies = await asyncio.gather(*[transport.send(PUBLISH, 5) for _ in range(10)])
    assert [reply.status for reply in replies] == [200] * 10
    assert raw_broker.connections == 3
    await transport.close()


async def test_a_connection_that_was_idle_for_too_long_is_not_used_again(raw_broker):
    transport = HttpTransport(Settings(url=raw_broker.url, idle_s_max=0.0))
    await transport.send(PUBLISH, 5)
    await transport.send(PUBLISH, 5)
    assert raw_broker.connections == 2
    await transport.close()


async def test_a_read_is_streamed_with_the_settings_headers(transport, raw_broker):
    raw_broker.answers.append(CHUNKED + b"2\r\nde\r\n0\r\n\r\n")
    assert await whole(transport, POLL) == (200, b"abcde")
    (request,) = raw_broker.requests
    assert b"X-Who: me\r\n" in request
    assert b"Accept-Encoding: identity\r\n" in request
    assert request.endswith(POLL.body)


async def test_reads_one_after_the_other_share_a_connection_and_writes_have_another(
    transport, raw_broker
):
    for _ in range(3):
        raw_broker.answers.append(CHUNKED + b"0\r\n\r\n")
        assert await whole(transport, POLL) == (200, b"abc")
    assert (await transport.send(PUBLISH, 5)).status == 200
    assert raw_broker.connections == 2


async def test_a_read_that_is_left_early_leaves_no_connection_behind(transport, raw_broker):
    for _ in range(2):
        raw_broker.answers.append(CHUNKED)
        async with transport.stream(POLL, 60) as reply:
            assert await anext(aiter(reply.chunks)) == b"abc"
    assert raw_broker.connections == 2
    assert raw_broker.requests[0].startswith(b"POST ")


async def test_an_answer_that_is_compressed_unasked_is_unavailable(transport, raw_broker):
    raw_broker.answers.append(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    )
    with pytest.raises(Unavailable, match="compressed"):
        await whole(transport, POLL)


@pytest.mark.slow
async def test_a_silence_within_an_answer_is_unavailable(transport, raw_broker):
    raw_broker.answers.append(CHUNKED)
    async with transport.stream(POLL, 0.2) as reply:
        chunks = aiter(reply.chunks)
        assert await anext(chunks) == b"abc"
        with pytest.raises(Unavailable, match=r"nothing came for 0\.2 s"):
            await anext(chunks)


async def test_a_slow_reader_stops_the_broker(transport, raw_broker, monkeypatch):
    size, paused = 64 * 1024 * 1024, asyncio.Event()
    pause = outbound.OutboundConnection.pause

    def noted(connection):
        paused.set()
        pause(connection)

    async def large():
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)

    monkeypatch.setattr(outbound.OutboundConnection, "pause", noted)
    raw_broker.answers.append(large)
    async with transport.stream(POLL, 60) as reply:
        async with asyncio.timeout(10):
            await paused.wait()
        got = [len(chunk) async for chunk in reply.chunks]
    assert sum(got) == size
    assert got[0] < 1024 * 1024


async def test_a_read_that_ends_early_is_unavailable(transport, raw_broker):
    raw_broker.answers.append((CHUNKED,))
    with pytest.raises(Unavailable, match="before the answer was complete"):
        await whole(transport, POLL)


async def test_a_read_of_a_client_that_is_closed_meanwhile_is_unavailable(transport, raw_broker):
    raw_broker.answers.append(CHUNKED)
    async with transport.stream(POLL, 5) as reply:
        chunks = aiter(reply.chunks)
        assert await anext(chunks) == b"abc"
        await transport.close()
        with pytest.raises(Unavailable):
            await anext(chunks)


async def test_a_close_wakes_the_reader_of_an_answer(transport, raw_broker):
    raw_broker.answers.append(CHUNKED)
    arrived = asyncio.Event()

    async def follow():
        async with transport.stream(POLL, 60) as reply:
            async for _ in reply.chunks:
                arrived.set()  # Then it waits for the next piece in the same iteration.

    following = asyncio.create_task(follow())
    async with asyncio.timeout(10):
        await arrived.wait()
        await transport.close()
        with pytest.raises(Unavailable, match="the client was closed"):
            await following


async def test_an_answer_that_has_arrived_whole_is_read_after_a_close(transport, raw_broker):
    raw_broker.answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
    async with transport.stream(POLL, 5) as reply:
        await transport.close()
        assert [chunk async for chunk in reply.chunks] == [b"abc"]


async def test_a_close_refuses_a_read_that_waits_for_a_connection(raw_broker, silence):
    transport = HttpTransport(Settings(url=raw_broker.url, connections_max=1))
    raw_broker.answers.append(silence)
    reading = asyncio.create_task(whole(transport, POLL))
    await raw_broker.wait_for(1)
    # In this order: the second read waits when the close begins.
    error, _ = await asyncio.gather(
        whole(transport, POLL), transport.close(), return_exceptions=True
    )
    assert isinstance(error, Unavailable)
    with pytest.raises(Unavailable):
        await reading


async def test_a_read_that_is_cancelled_stays_cancelled_while_the_client_closes(
    raw_broker, silence
):
    transport = HttpTransport(Settings(url=raw_broker.url))
    raw_broker.answers.append(silence)
    reading = asyncio.create_task(whole(transport, POLL))
    await raw_broker.wait_for(1)
    reading.cancel()
    await transport.close()
    await asyncio.wait({reading})
    assert reading.cancelled()


async def test_a_read_without_an_answer_is_unavailable(transport, raw_broker):
    raw_broker.answers.append(None)
    with pytest.raises(Unavailable):
        await whole(transport, POLL)


async def test_an_error_of_the_reader_is_raised_unchanged(transport):
    with pytest.raises(TimeoutError, match="mine"):
        async with transport.stream(POLL, 5):
            raise TimeoutError("mine")


async def test_a_close_ends_requests_in_flight(transport, raw_broker, silence):
    raw_broker.answers.append(silence)
    sending = asyncio.create_task(transport.send(PUBLISH, 60))
    await raw_broker.wait_for(1)
    await transport.close()
    with pytest.raises(OutcomeUnknown):
        await sending


async def test_no_request_begins_after_a_close_has_begun(transport, raw_broker):
    raw_broker.answers.append(CHUNKED + b"0\r\n\r\n")
    assert await whole(transport, POLL) == (200, b"abc")
    # They begin in this order: the first still connects, the others come after the close has begun.
    connecting, _, reading, sending = await asyncio.gather(
        transport.connect(TOPIC),
        transport.close(),
        whole(transport, POLL),
        transport.send(PUBLISH, 5),
        return_exceptions=True,
    )
    for error in (connecting, reading, sending):
        assert isinstance(error, Unavailable)
        assert "the client was closed" in error.message
    with pytest.raises(Unavailable, match="the client was closed"):
        await whole(transport, POLL)
    assert len(raw_broker.requests) == 1


async def test_without_a_listener_no_request_is_sent(raw_broker):
    url = raw_broker.url
    raw_broker.server.close()
    transport = HttpTransport(Settings(url=url))
    with pytest.raises(Unavailable):
        await transport.send(PUBLISH, 5)
    with pytest.raises(Unavailable):
        await whole(transport, POLL)
    await transport.close()


async def test_a_write_that_gets_no_connection_in_time_is_refused(raw_broker, silence):
    transport = HttpTransport(Settings(url=raw_broker.url, connections_max=1))
    raw_broker.answers.append(silence)
    sending = asyncio.create_task(transport.send(PUBLISH, 60))
    await raw_broker.wait_for(1)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match="no connection was available in time") as error:
            await transport.send(PUBLISH, 0.01)
    assert error.value.outcome == "refused"
    sending.cancel()
    async with asyncio.timeout(10):  # The refused write has left its slot free.
        assert (await transport.send(PUBLISH, 60)).status == 200
    await transport.close()


async def test_a_write_that_cannot_connect_in_time_is_refused_and_leaves_its_slot(monkeypatch):
    tried = []

    async def unreachable(*_):
        tried.append(True)
        await asyncio.Event().wait()

    monkeypatch.setattr(transports, "open_connection", unreachable)
    transport = HttpTransport(Settings(connect_timeout_s=60, connections_max=1))
    for count in (1, 2):
        async with asyncio.timeout(10):
            with pytest.raises(Unavailable, match="no connection was available in time"):
                await transport.send(PUBLISH, 0.01)
        assert len(tried) == count
    await transport.close()


async def test_the_wait_for_a_connection_counts_against_the_deadline_of_a_write(
    raw_broker, monkeypatch
):
    given, go_on = [], asyncio.Event()
    send = ClientConnection.send

    async def noted(connection, request, timeout_s):
        given.append(timeout_s)
        return await send(connection, request, timeout_s)

    async def held():
        await go_on.wait()
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    monkeypatch.setattr(ClientConnection, "send", noted)
    raw_broker.answers.append(held)
    transport = HttpTransport(Settings(url=raw_broker.url, connections_max=1))
    first = asyncio.create_task(transport.send(PUBLISH, 60))
    await raw_broker.wait_for(1)
    second = asyncio.create_task(transport.send(PUBLISH, 30))
    go_on.set()
    await asyncio.gather(first, second)
    assert 0 < given[1] < 30
    await transport.close()


async def test_a_read_that_gets_no_connection_in_time_is_unavailable(raw_broker, silence):
    transport = HttpTransport(Settings(url=raw_broker.url, connections_max=1))
    raw_broker.answers.append(silence)
    reading = asyncio.create_task(whole(transport, POLL))
    await raw_broker.wait_for(1)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            async with transport.stream(POLL, 0.01):
                pass
    reading.cancel()
    await transport.close()


async def test_all_nodes_asked_by_one_read_share_its_deadline(raw_broker, silence):
    settings = Settings(url=",".join(f"{raw_broker.url}/{name}" for name in "abc"))
    nodes = NodeDirectory(settings.urls)
    transport = HttpTransport(settings, nodes=nodes)
    await whole(transport, POLL)  # So that the next read finds an open connection.
    raw_broker.answers.extend([silence] * 3)
    asked = nodes.place(None, asyncio.get_running_loop().time())
    with pytest.raises(Unavailable):
        async with transport.stream(POLL, 0.05):
            pass
    assert len(raw_broker.requests) == 2
    # The others had no time left; the client does not count them as lost.
    assert nodes.place(None, asyncio.get_running_loop().time(), [asked]) is not None
    await transport.close()


@pytest.mark.slow
async def test_a_read_asks_as_many_silent_nodes_as_its_deadline_has_time_for(raw_broker, silence):
    url = ",".join(f"{raw_broker.url}/{name}" for name in "abc")
    raw_broker.answers.extend([silence] * 3)
    async with Client(url, deadline_s=0.2) as client:
        with pytest.raises(Unavailable):
            await client.poll("ns1/t1")
    assert len(raw_broker.requests) <= 2  # Each has half of the time.


@pytest.mark.parametrize(
    ("deadline_s", "given"), [(30.0, [3.0, 3.0, 10.0]), (2.0, [0.5, 0.5, 10.0])]
)
async def test_a_node_that_cannot_be_reached_leaves_time_for_others(monkeypatch, deadline_s, given):
    tried = []

    async def unreachable(connection, timeout_s, tls):
        tried.append(timeout_s)
        raise NotSent("connection refused")

    monkeypatch.setattr(transports, "open_connection", unreachable)
    transport = HttpTransport(Settings(url="http://a,http://b,http://c", deadline_s=deadline_s))
    with pytest.raises(Unavailable):
        await transport.connect(None)
    assert tried == given
    await transport.close()


@pytest.fixture
def never_connects(monkeypatch):
    """Let connecting never end. Return an event that is set at the first attempt."""
    tried = asyncio.Event()

    async def open_connection(*_):
        tried.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(transports, "open_connection", open_connection)
    return tried


async def test_closing_a_client_ends_calls_that_wait_for_a_connection(never_connects):
    client = Client("http://127.0.0.1:9", deadline_s=60)
    calls = [
        asyncio.create_task(client.publish("ns1/t1", b"a")),
        asyncio.create_task(client.create_topic("ns1/t2")),
    ]
    await never_connects.wait()
    async with asyncio.timeout(5):
        await client.close()
        for call in calls:
            with pytest.raises(Unavailable, match="closed") as refused:
                await call
            assert refused.value.outcome == "refused"


@pytest.mark.usefixtures("never_connects")
@pytest.mark.parametrize("payload", [b"a", [b"a"]])
async def test_a_publish_that_connects_until_its_deadline_says_so(payload):
    async with Client("http://127.0.0.1:9", deadline_s=0.05) as client:
        with pytest.raises(Unavailable, match="no connection"):
            await client.publish("ns1/t1", payload)


async def test_a_call_that_is_cancelled_while_it_connects_raises_cancelled(never_connects):
    transport = HttpTransport(Settings(url="http://127.0.0.1:9"))
    call = asyncio.create_task(transport.send(PUBLISH, 60))
    await never_connects.wait()
    call.cancel()
    await transport.close()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_connection_that_is_made_as_its_caller_is_cancelled_is_closed(
    transport, raw_broker, monkeypatch
):
    async def open_connection(connection, timeout_s, tls):
        await opened(connection, timeout_s, tls)
        call.cancel()
        return connection

    opened = transports.open_connection
    monkeypatch.setattr(transports, "open_connection", open_connection)
    call = asyncio.create_task(transport.send(PUBLISH, 60))
    with pytest.raises(asyncio.CancelledError):
        await call
    await raw_broker.wait_until_left()


@pytest.mark.parametrize("follow", [True, False])
async def test_an_answer_may_name_the_node_to_ask_from_now_on(raw_broker, follow):
    raw_broker.answers.append(CHUNKED + b"0\r\n\r\n")
    settings = Settings(url=raw_broker.url, follow_leaders=follow)
    nodes = NodeDirectory(settings.urls, follow=follow)
    transport = HttpTransport(settings, nodes=nodes)
    async with transport.stream(POLL, 60) as reply:
        assert not reply.moved(f"{raw_broker.url};node=1;epoch=7")
        assert not reply.moved("not an address")
        assert reply.moved("http://127.0.0.1:9;node=2") is follow
        assert reply.moved("http://127.0.0.1:9;node=2") is follow
        nodes.lost("http://127.0.0.1:9", asyncio.get_running_loop().time())
        assert not reply.moved("http://127.0.0.1:9;node=2")
    await transport.close()


@pytest.mark.slow
async def test_an_https_address_is_trusted_by_the_given_certificates():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 2\r\n\r\n[]")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(url, ca_file=str(TLS / "cert.pem")) as client:
            assert await client.topics() == []
        async with Client(url, deadline_s=2) as client:
            with pytest.raises(Unavailable, match="certificate"):
                await client.topics()


async def test_credentials_are_not_sent_to_a_node_that_only_another_node_names(raw_broker):
    """The given node names a second one, which names a third one."""
    seen = []

    async def listening(leader):
        async def serve(reader, writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                seen.append((server.sockets[0].getsockname()[1], b"Authorization: Basic" in head))
                line = (
                    b""
                    if leader is None
                    else f"Broker-Leader: {leader};node=1;epoch=9\r\n".encode()
                )
                writer.write(b"HTTP/1.1 200 OK\r\n" + line + b"Content-Length: 0\r\n\r\n")

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    third, third_url = await listening(None)
    second, second_url = await listening(third_url)
    first = f"HTTP/1.1 200 OK\r\nBroker-Leader: {second_url};node=2;epoch=8\r\nContent-Length: 0\r\n\r\n"
    raw_broker.answers.extend([first.encode()] * 9)
    settings = Settings(
        url=raw_broker.url,
        headers=(("Authorization", "Basic x"),),
        trust_members="127.0.0.1",
    )
    transport = HttpTransport(settings)
    for _ in range(4):
        await transport.send(PUBLISH, 5)
    await transport.close()
    second.close()
    third.close()
    assert seen
    assert {url for url, _ in seen} == {int(second_url.rpartition(":")[2])}


@pytest.mark.parametrize("url", ["http://user:word@h:1", "http://ok:1,https://user@h"])
def test_credentials_in_the_address_are_refused_when_the_client_is_made(url):
    with pytest.raises(ValueError, match="as a header"):
        SyncClient(url)

import asyncio

import pytest

from broker.client import Settings, protocol
from broker.client.transport import HttpTransport
from broker.errors import OutcomeUnknown, Unavailable
from broker.model import Poll, TopicId

TOPIC = TopicId("ns1", "t1")
PUBLISH = protocol.publish(TOPIC, [b"a"])
POLL = protocol.poll(TOPIC, Poll())
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.fixture
async def transport(raw_broker):
    transport = HttpTransport(Settings(url=raw_broker.url, headers=(("X-Who", "me"),)))
    yield transport
    await transport.close()


async def whole(transport, request):
    async with transport.stream(request, 5) as reply:
        return reply.status, b"".join([chunk async for chunk in reply.chunks])


async def test_headers_that_are_none_are_refused():
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
async def test_nodes_are_told_when_to_refuse(raw_broker, deadline_s, several, timeout):
    url = f"{raw_broker.url},{raw_broker.url}/" if several else raw_broker.url
    transport = HttpTransport(Settings(url=url, deadline_s=deadline_s))
    await transport.send(PUBLISH, 5)
    (request,) = raw_broker.requests
    head = dict(line.split(b": ") for line in request.split(b"\r\n\r\n")[0].split(b"\r\n")[1:])
    assert head.get(b"Request-Timeout") == timeout
    await transport.close()


async def test_writes_at_the_same_time_have_connections_of_their_own_up_to_a_bound(raw_broker):
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


async def test_a_read_without_an_answer_is_unavailable(transport, raw_broker):
    raw_broker.answers.append(None)
    with pytest.raises(Unavailable):
        await whole(transport, POLL)


async def test_an_error_of_the_reader_stays_what_it_is(transport):
    with pytest.raises(TimeoutError, match="mine"):
        async with transport.stream(POLL, 5):
            raise TimeoutError("mine")


async def test_a_close_ends_what_is_under_way(transport, raw_broker):
    never = asyncio.Event()

    async def silence():
        await never.wait()
        return b""

    raw_broker.answers.append(silence)
    sending = asyncio.create_task(transport.send(PUBLISH, 60))
    await raw_broker.wait_for(1)
    await transport.close()
    with pytest.raises(OutcomeUnknown):
        await sending
    never.set()


async def test_nothing_begins_once_a_close_has_begun(transport, raw_broker):
    raw_broker.answers.append(CHUNKED + b"0\r\n\r\n")
    assert await whole(transport, POLL) == (200, b"abc")
    # Each begins in its turn: the first is still connecting, the others come when the close has begun.
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


async def test_where_nobody_listens_nothing_is_sent(raw_broker):
    url = raw_broker.url
    raw_broker.server.close()
    transport = HttpTransport(Settings(url=url))
    with pytest.raises(Unavailable):
        await transport.send(PUBLISH, 5)
    with pytest.raises(Unavailable):
        await whole(transport, POLL)
    await transport.close()

import asyncio
import contextlib

import pytest

from broker.client import Client, Settings, TailOptions, protocol
from broker.client.transport import HttpTransport
from broker.errors import OutcomeUnknown, Unavailable
from broker.model import Message, Poll, PublishRequest, TopicId, log_key
from tests.kit import poll_replies

TOPIC = TopicId("ns1", "t1")
PUBLISH = protocol.publish(TOPIC, PublishRequest(None, [b"a"]))
POLL = protocol.poll(TOPIC, Poll())
DONE = b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 2\r\n\r\n%d\n"


async def connect(url, headers=()):
    transport = HttpTransport(Settings(url=url, headers=tuple(headers), connect_timeout_s=5))
    return await transport.connect(None)


async def test_a_request_and_its_answer(raw_broker):
    raw_broker.answers.append(
        b"HTTP/1.1 400 Bad\r\nBroker-Error: bad_name\r\nContent-Length: 3\r\n\r\nwhy"
    )
    connection = await connect(raw_broker.url, [("Authorization", "x")])
    reply = await connection.send(PUBLISH, 5)
    assert (reply.status, reply.headers["broker-error"], reply.body) == (400, "bad_name", b"why")
    (request,) = raw_broker.requests
    assert request.startswith(b"POST /v1/namespaces/ns1/topics/t1/publish HTTP/1.1\r\nHost: 127.")
    assert b"\r\nAuthorization: x\r\n" in request
    assert request.endswith(b"Content-Length: 5\r\n\r\n" + PUBLISH.body)
    connection.close()


async def test_chunked_answers_are_read_and_interim_ones_skipped(raw_broker):
    raw_broker.answers.append(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    connection = await connect(raw_broker.url)
    reply = await connection.send(PUBLISH, 5)
    assert (reply.status, reply.body) == (200, b"abcde")
    assert not connection.ours
    connection.close()


async def test_pipelined_answers_belong_to_their_requests(raw_broker):
    raw_broker.answers.extend(OK % i for i in range(5))
    connection = await connect(raw_broker.url)
    replies = await asyncio.gather(*[connection.send(PUBLISH, 5) for _ in range(5)])
    assert [reply.body for reply in replies] == [b"%d\n" % i for i in range(5)]
    assert connection.ours
    assert raw_broker.connections == 1
    connection.close()


async def test_a_refused_connection_is_unavailable(raw_broker):
    url = raw_broker.url
    raw_broker.server.close()
    with pytest.raises(Unavailable):
        await connect(url)


async def test_a_connection_lost_after_sending_is_an_unknown_outcome_for_a_write(raw_broker):
    raw_broker.answers.append(None)
    connection = await connect(raw_broker.url)
    with pytest.raises(OutcomeUnknown):
        await connection.send(PUBLISH, 5)
    assert not connection.usable
    with pytest.raises(Unavailable):
        await connection.send(PUBLISH, 5)


async def test_an_answer_cut_in_the_middle_is_no_answer(raw_broker):
    raw_broker.answers.append((b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",))
    connection = await connect(raw_broker.url)
    first, second = await asyncio.gather(
        connection.send(PUBLISH, 5), connection.send(POLL, 5), return_exceptions=True
    )
    assert isinstance(first, OutcomeUnknown)
    assert isinstance(second, Unavailable)


async def test_a_request_behind_a_closing_answer_was_not_processed(raw_broker):
    raw_broker.answers.append(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    connection = await connect(raw_broker.url)
    first, second = await asyncio.gather(
        connection.send(PUBLISH, 5), connection.send(PUBLISH, 5), return_exceptions=True
    )
    assert first.status == 200
    assert isinstance(second, Unavailable)
    assert not connection.usable


async def test_a_write_without_an_answer_in_time_has_an_unknown_outcome(raw_broker):
    never = asyncio.Event()

    async def silence():
        await never.wait()
        return b""

    raw_broker.answers.append(silence)
    connection = await connect(raw_broker.url)
    with pytest.raises(OutcomeUnknown, match="no answer"):
        await connection.send(PUBLISH, 0.02)
    assert not connection.usable
    never.set()


async def test_a_cancelled_request_closes_the_connection_because_order_matches_answers(
    raw_broker,
):
    held = asyncio.Event()

    async def later():
        await held.wait()
        return OK % 0

    raw_broker.answers.append(later)
    connection = await connect(raw_broker.url)
    task = asyncio.create_task(connection.send(PUBLISH, 5))
    await raw_broker.wait_for(1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert not connection.usable
    held.set()


async def test_an_answer_that_is_not_http_is_no_answer(raw_broker):
    raw_broker.answers.append(b"SSH-2.0-OpenSSH\r\n\r\n")
    connection = await connect(raw_broker.url)
    with pytest.raises(OutcomeUnknown, match="not HTTP"):
        await connection.send(PUBLISH, 5)


BY_A_PROXY = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 5\r\n\r\nreset"


async def test_a_proxys_503_to_a_write_is_an_unknown_outcome_on_any_connection_to_the_broker(
    raw_broker,
):
    transport = HttpTransport(Settings(url=raw_broker.url, connect_timeout_s=5))
    raw_broker.answers.extend([BY_A_PROXY, OK % 0, BY_A_PROXY, BY_A_PROXY, BY_A_PROXY])
    assert (await transport.send(PUBLISH, 5)).status == 503  # It may be the original's.
    await transport.send(PUBLISH, 5)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"status 503, .* proxy answered .*: reset"):
            await transport.send(PUBLISH, 5)
    with pytest.raises(Unavailable, match="status 503"):
        async with transport.stream(POLL, 5):
            pass
    assert raw_broker.connections == 4
    await transport.close()


PAGE = b"\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>"
TEXT = b"\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\ndenied"


@pytest.mark.parametrize("answer", [b"400 Bad" + PAGE, b"403 No" + TEXT, b"404 No" + PAGE])
async def test_after_an_answer_of_the_broker_any_refusal_of_a_proxy_is_the_broker_away(
    raw_broker, answer
):
    page = poll_replies.page_of([Message(log_key(1, 0) + bytes(10), b"x")]) + b"\0"
    begin = b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: %d\r\n\r\n"
    proxys = b"HTTP/1.1 " + answer
    raw_broker.answers.extend([begin % len(page) + page, proxys, proxys, begin % 1 + b"\0"])
    told = []
    async with Client(raw_broker.url, on_trouble=told.append, retry_delay_max_s=0) as client:
        tail = client.tail("ns1/t1", options=TailOptions(follow=False))
        assert len([each async for each in tail]) == 1
    status = answer.split()[0].decode()
    name = f"{raw_broker.url} answered with status {status}"
    assert [each.error.message.startswith(name) for each in told] == [True, True]


async def test_a_503_that_names_its_outcome_is_the_brokers(raw_broker):
    refusal = b"HTTP/1.1 503 Busy\r\nBroker-Outcome: refused\r\nContent-Length: 0\r\n\r\n"
    raw_broker.answers.extend([OK % 0, refusal])
    connection = await connect(raw_broker.url)
    assert [(await connection.send(PUBLISH, 5)).status for _ in range(2)] == [200, 503]
    connection.close()


async def test_a_publish_without_a_key_is_not_sent_again_after_a_proxys_503(raw_broker):
    raw_broker.answers.extend([DONE, BY_A_PROXY])
    async with Client(raw_broker.url, deadline_s=5) as client:
        await client.create_topic("ns1/t1")
        with pytest.raises(OutcomeUnknown):
            await client.publish("ns1/t1", b"a")
        assert len(raw_broker.requests) == 2

import asyncio
import gc
import re
import weakref
from typing import cast

import pytest

from broker.config.sections import Config, ServerConfig
from broker.http import drain, server
from broker.http.inbound import Connection
from broker.http.server import HEADS_CUT_AT_ONCE, SPREAD, TICK_S
from broker.model import Poll, PublishRequest
from broker.wire import avro
from tests.kit.serving import Broker, Http, RawHttp, eventually, listening, topic_path

AVRO = {"Content-Type": "avro/binary"}
POLL, PUBLISH = topic_path("t", "poll"), topic_path("t", "publish")
TWO = bytes.fromhex("02040261026200")
EVERYTHING = avro.encode_poll(Poll())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut no client of a busy machine before it has read its last answer."""
    monkeypatch.setattr(drain, "LINGER_S", 60.0)


def raw_request(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


WAITING = raw_request("POST", POLL + "?wait=60", EVERYTHING, "Content-Type: avro/binary")


async def test_framing_of_the_original(http: Http) -> None:
    plain = await http("POST", PUBLISH, TWO, AVRO)
    assert plain.headers["Content-Length"] == "0"
    assert "Content-Type" not in plain.headers
    polled = await http("POST", POLL, EVERYTHING, AVRO)
    assert polled.headers["Transfer-Encoding"] == "chunked"
    assert polled.body.endswith(b"\x00")
    pointer = 10**18 * 2
    under = avro.encode_publish_request(PublishRequest(pointer, [b"x"]))
    answer = await http("POST", PUBLISH, under, AVRO)
    assert answer.headers["Content-Type"] == "avro/binary"
    assert int(answer.headers["Content-Length"]) == len(answer.body) > 0


async def test_request_ids(http: Http) -> None:
    given = await http("GET", "/ping", headers={"X-Request-Id": "abc-1"})
    assert given.headers["X-Request-Id"] == "abc-1"
    made = [(await http("GET", "/ping")).headers["X-Request-Id"] for _ in range(2)]
    assert made[0] != made[1]
    for strange in ("a b", "x" * 129, "ä"):
        reply = await http("GET", "/ping", headers={"X-Request-Id": strange})
        assert re.fullmatch(r"[0-9a-f]{8}-\d+", reply.headers["X-Request-Id"])


async def test_replies_have_a_date(http: Http) -> None:
    date = (await http("GET", "/ping")).headers["Date"]
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", date)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/nothing", 404),
        ("HEAD", "/nothing", 404),
        ("HEAD", "/ping", 200),
        ("HEAD", topic_path("t", "publish"), 405),
        ("HEAD", topic_path("t", "stats"), 200),
        ("HEAD", topic_path("t", "events"), 200),
        ("OPTIONS", topic_path("t"), 405),
        ("OPTIONS", "*", 404),
        ("PATCH", topic_path("t"), 405),
        ("GET", "/v1/namespaces/n/topics/%ff", 400),
        ("GET", "/v1/namespaces/n/topics/\udcff", 400),
        ("GET", topic_path("t", "messages") + "?from=%ff", 400),
        ("GET", "http://elsewhere/ping", 200),
        ("GET", "http://elsewhere/ping?x=1", 400),
    ],
)
async def test_odd_targets(http: Http, method: str, target: str, status: int) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(raw_request(method, target))
        reply = await raw.reply(has_body=method != "HEAD")
        assert reply.status == status
        # Without a route the connection ends as in the original; and bytes beyond ASCII are no HTTP.
        ends = status in (404, 405) or not target.isascii()
        assert (reply.headers.get("Connection") == "close") == ends
        if ends and method == "HEAD":
            assert await raw.rest() == b""
        elif method == "HEAD":
            await raw.send(raw_request("GET", "/ping"))
            assert (await raw.reply()).body == b"OK.\n", "the reply to HEAD had no body"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
        b"GET\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    ],
)
async def test_bytes_that_are_no_http_are_malformed(http: Http, garbage: bytes) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(garbage)
        reply = await raw.reply()
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
        assert re.fullmatch(r"[0-9a-f]{8}-\d+", reply.headers["X-Request-Id"])
        assert await raw.rest() == b""


async def test_pipelined_requests_are_answered_in_their_order(http: Http) -> None:
    async with RawHttp(http.port) as raw:
        publish = raw_request("POST", PUBLISH, TWO, "Content-Type: avro/binary")
        ping = raw_request("GET", "/ping")
        await raw.send((publish + ping) * 50)
        for _ in range(50):
            assert (await raw.reply()).body == b""
            assert (await raw.reply()).body == b"OK.\n"


async def test_an_upgrade_is_declined_and_requests_behind_it_are_answered(http: Http) -> None:
    async with RawHttp(http.port) as raw:
        upgrade = raw_request("GET", "/ping", b"", "Connection: Upgrade", "Upgrade: websocket")
        await raw.send(upgrade + raw_request("GET", "/ping"))
        for _ in range(2):
            assert (await raw.reply()).body == b"OK.\n"
        await raw.send(raw_request("GET", "/ping"))
        assert (await raw.reply()).body == b"OK.\n"


async def test_a_waiting_poll_ends_when_its_client_goes(broker: Broker, http: Http) -> None:
    async with RawHttp(http.port) as raw:
        await raw.send(WAITING)
        await broker.someone_waits()
    await eventually(lambda: not broker.topics.waiting_polls, lambda: "the poll still waits")


async def test_a_connection_that_has_ended_waits_for_no_collector() -> None:
    """Very many short ones would make one collection long, and that blocks the event loop."""
    broker = Broker()
    async with listening(broker) as http:
        gc.disable()
        try:
            async with RawHttp(http.port) as raw:
                await raw.send(raw_request("GET", "/ping"))
                await raw.reply()
                (connection,) = map(weakref.ref, broker.server.open)
            await eventually(lambda: connection() is None, lambda: gc.get_referrers(connection()))
        finally:
            gc.enable()
    await broker.close()


async def test_slow_heads_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_S", 0.05)
    broker = Broker(Config(server=ServerConfig(header_deadline_s=0.1)))
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(b"GET /ping HTTP/1.1\r\nX-")
        async with asyncio.timeout(30):
            assert await raw.rest() == b""
    await broker.close()


async def test_many_slow_heads_are_cut_in_steps() -> None:
    cut: list[int] = []

    class Slow:
        dismissed = False

        def __init__(self, number: int) -> None:
            self.number = number

        def cut(self) -> None:
            cut.append(self.number)
            del broker.server.heads[cast("Connection", self)]

    broker = Broker()
    async with listening(broker):
        slow = [Slow(number) for number in range(HEADS_CUT_AT_ONCE + 1)]
        broker.server.heads = cast("dict[Connection, float]", dict.fromkeys(slow, -1e9))
        broker.server._cut_slow_heads()
        assert cut == list(range(HEADS_CUT_AT_ONCE))
        broker.server._cut_slow_heads()
        assert cut == list(range(HEADS_CUT_AT_ONCE + 1))
    await broker.close()


async def test_connections_that_became_idle_together_do_not_end_in_one_iteration() -> None:
    server = Broker().server
    later = [server.spread_s() for _ in range(SPREAD)]
    assert len(set(later)) == SPREAD
    assert 0 <= min(later) < max(later) < TICK_S


async def test_idle_connections_are_closed_after_a_while() -> None:
    broker = Broker(Config(server=ServerConfig(keep_alive_s=0.1)))
    async with listening(broker) as http, RawHttp(http.port) as used, RawHttp(http.port) as unused:
        await used.send(raw_request("GET", "/ping"))
        await used.reply()
        async with asyncio.timeout(30):
            assert await used.rest() == await unused.rest() == b""
    await broker.close()


async def test_connections_over_the_bound_are_refused() -> None:
    broker = Broker(Config(server=ServerConfig(connections_max=2)))
    async with listening(broker) as http, RawHttp(http.port), RawHttp(http.port):
        await eventually(lambda: broker.server.connections == 2, lambda: broker.server.connections)
        async with RawHttp(http.port) as third:
            reply = await third.reply()
            assert (reply.status, reply.headers["Broker-Error"]) == (503, "overloaded")
            assert reply.headers["X-Request-Id"]
            assert await third.rest() == b""
        await eventually(lambda: broker.server.connections == 2, lambda: broker.server.connections)
    await broker.close()


# Draining.


async def test_a_drain_answers_waiting_requests_and_closes_idle_connections(
    broker: Broker, http: Http
) -> None:
    async with RawHttp(http.port) as idle, RawHttp(http.port) as waiting:
        await idle.send(raw_request("GET", "/ping"))
        await idle.reply()
        await waiting.send(WAITING)
        await broker.someone_waits()
        broker.server.begin_drain(0)
        async with asyncio.timeout(30):
            assert await idle.rest() == b""
            reply = await waiting.reply()
            assert (reply.status, reply.body) == (200, b"\x00")
            assert reply.headers["Connection"] == "close"
    async with asyncio.timeout(30):
        await broker.server.quiet()


async def test_a_drain_answers_a_request_of_which_a_byte_was_read(
    broker: Broker, http: Http
) -> None:
    async with RawHttp(http.port) as raw:
        request = raw_request("POST", PUBLISH, TWO, "Content-Type: avro/binary")
        await raw.send(request[:1])
        await eventually(lambda: broker.server.heads, lambda: "the byte was not read")
        broker.server.begin_drain()
        quiet = asyncio.ensure_future(broker.server.quiet())
        await raw.send(request[1:])
        reply = await raw.reply()
        assert (reply.status, reply.headers["Connection"]) == (200, "close")
    async with asyncio.timeout(30):
        await quiet


async def test_new_connections_are_served_while_draining_and_not_after(
    broker: Broker, http: Http
) -> None:
    broker.server.begin_drain()
    async with RawHttp(http.port) as raw:
        await raw.send(raw_request("GET", "/ping"))
        reply = await raw.reply()
        assert (reply.body, reply.headers["Connection"]) == (b"OK.\n", "close")
    await broker.server.close()
    with pytest.raises(OSError, match=r"refused|reset|failed"):
        await asyncio.open_connection("127.0.0.1", http.port)


async def test_a_drain_ends_streams_after_a_whole_event(broker: Broker, http: Http) -> None:
    await http("POST", PUBLISH, TWO, AVRO)
    async with RawHttp(http.port) as raw:
        await raw.send(raw_request("GET", topic_path("t", "events")))
        await broker.someone_waits()
        broker.server.begin_drain()
        reply = await raw.reply()
        assert reply.body.count(b"data: ") == 2
        assert reply.body.endswith(b"\n\n")


async def test_closing_does_not_wait_for_ever() -> None:
    broker = Broker(Config(server=ServerConfig(drain_s=0.1)))
    async with listening(broker) as http, RawHttp(http.port) as raw:
        await raw.send(b"GET /ping HTTP/1.1\r\n")
        await eventually(lambda: broker.server.heads, lambda: "nothing was read")
        async with asyncio.timeout(30):
            await broker.server.close()
            assert await raw.rest() == b""
    await broker.close()


async def test_an_address_in_use_is_an_error(broker: Broker, http: Http) -> None:
    other = Broker()
    with pytest.raises(OSError, match="in use"):
        await other.server.start("127.0.0.1", http.port)
    await other.close()

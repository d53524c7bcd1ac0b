import pytest

from broker.api import connection
from broker.testing.serving import Broker, Http, RawHttp, eventually


async def test_unfinished_heads_are_bounded_all_together(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_BYTES_MAX", 10_000)
    head = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 4000
    async with RawHttp(http.port) as one, RawHttp(http.port) as two, RawHttp(http.port) as three:
        for raw in (one, two):
            await raw.send(head)
        await eventually(lambda: broker.shell.unread_heads == 2, lambda: broker.shell.unread_heads)
        await three.send(head)
        assert await three.rest() == b""
        await one.send(b"\r\n\r\n")
        assert (await one.reply()).body == b"OK.\n"
        await eventually(lambda: broker.shell.unread_heads == 1, lambda: broker.shell.unread_heads)


async def test_large_bodies_do_not_count_as_heads(broker: Broker, http: Http) -> None:
    for _ in range(5):
        reply = await http(
            "POST",
            "/v1/namespaces/default/topics/t/publish",
            b"x" * 3_000_000,
            {"Content-Type": "text/plain"},
        )
        assert reply.status == 200
    assert broker.shell.unread_heads == 0

import pytest
from aiohttp import web

from broker.http.exchange import SENT, SENT_LAST
from tests.kit.serving import Http, RawHttp


async def test_the_answer_says_only_if_the_connection_stays_open() -> None:
    for sent, stays_open in ((SENT, True), (SENT_LAST, False)):
        assert isinstance(sent, web.StreamResponse)
        assert sent.keep_alive is stays_open
        await sent.write_eof()


@pytest.mark.parametrize(
    ("version", "connection", "told"),
    [
        ("1.1", "", None),
        ("1.1", "Connection: close\r\n", "close"),
        ("1.0", "", "close"),
        ("1.0", "Connection: keep-alive\r\n", "keep-alive"),
    ],
)
async def test_a_connection_stays_open_as_its_client_wishes(
    http: Http, version: str, connection: str, told: str | None
) -> None:
    ping = f"GET /ping HTTP/{version}\r\nHost: localhost\r\n{connection}\r\n".encode()
    async with RawHttp(http.port) as raw:
        await raw.send(ping)
        assert (await raw.reply()).headers.get("Connection") == told
        if told == "close":
            assert await raw.rest() == b""
        else:
            await raw.send(ping)
            assert (await raw.reply()).status == 200

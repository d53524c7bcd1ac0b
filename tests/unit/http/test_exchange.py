import pytest

from tests.kit.serving import Http, RawHttp


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
